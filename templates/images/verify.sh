# Looks at IMAGE as it is on this node now: what docker shows of it under that name, and whether a container can
# be made of it, which takes all of its content. The container is removed again, and nothing is ever pulled.
{% include "prolog.sh" %}
{% include "images/say.sh" %}
{% include "images/engine.sh" %}
{% include "images/container.sh" %}
IMAGE={{ image }}
CONTAINER={{ container }}
JSON={{ json }}

if shown=$(engine image inspect --format "$JSON" -- "$IMAGE" 2>&1); then
    say IMAGE "$(printf '%s\n' "$shown" | grep '^{' | head -n 1)" # past warnings
    # an entrypoint of our own: an image without any could not be created either
    created=$(with_container create --pull=never --network none --name "$CONTAINER" --entrypoint /fdl -- "$IMAGE" 2>&1)
    say CREATED "$? $(printf %s "$created" | line)"
else
    say NOIMAGE "$(printf %s "$shown" | line)"
fi
say END ''
