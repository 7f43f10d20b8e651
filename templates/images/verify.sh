# Looks at IMAGE as it is on this node now: what docker shows of it under that name, and whether a container of it
# starts, ENTRYPOINT with these arguments and without a network. Where that did not start, whether one can be made at
# all, which takes all of the content. No container stays, and nothing is ever pulled.
{% include "prolog.sh" %}
{% include "images/say.sh" %}
{% include "images/engine.sh" %}
{% include "images/container.sh" %}
IMAGE={{ image }}
CONTAINER={{ container }}
JSON={{ json }}
ENTRYPOINT={{ entrypoint }}
set -- {{ arguments }}

if shown=$(engine image inspect --format "$JSON" -- "$IMAGE" 2>&1); then
    say IMAGE "$(printf '%s\n' "$shown" | grep '^{' | head -n 1)" # past warnings
    ran=$(with_container run --rm --pull=never --network none --name "$CONTAINER" \
        --entrypoint "$ENTRYPOINT" -- "$IMAGE" "$@" 2>&1)
    code=$?
    say RAN "$code $(printf %s "$ran" | line)"
    case $code in
        125 | 126 | 127) # docker's own, or the program's; any other one had a container
            CONTAINER=$CONTAINER-made # the first one may be on its way out still
            # an entrypoint of our own: an image without any could not be created either
            made=$(with_container create --pull=never --network none --name "$CONTAINER" --entrypoint /fdl -- "$IMAGE" 2>&1)
            say CREATED "$? $(printf %s "$made" | line)"
            ;;
    esac
else
    say NOIMAGE "$(printf %s "$shown" | line)"
fi
say END ''
