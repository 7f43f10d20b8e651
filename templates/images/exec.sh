# Starts a container of IMAGE once, without a network: ENTRYPOINT with these arguments. It is removed again, and
# nothing is ever pulled.
{% include "prolog.sh" %}
{% include "images/say.sh" %}
{% include "images/engine.sh" %}
{% include "images/container.sh" %}
IMAGE={{ image }}
CONTAINER={{ container }}
ENTRYPOINT={{ entrypoint }}
set -- {{ arguments }}

said=$(with_container run --rm --pull=never --network none --name "$CONTAINER" \
    --entrypoint "$ENTRYPOINT" -- "$IMAGE" "$@" 2>&1)
say RAN "$? $(printf %s "$said" | line)"
say END ''
