# Starts a container of IMAGE once, without a network: ENTRYPOINT with these arguments. It is removed again, and
# nothing is ever pulled.
{% include "prolog.sh" %}
{% include "images/say.sh" %}
{% include "images/engine.sh" %}
IMAGE={{ image }}
CONTAINER={{ container }}
ENTRYPOINT={{ entrypoint }}
set -- {{ arguments }}

trap remove EXIT
trap 'late=2; exit 143' HUP INT TERM
# with its signals passed on, the client would outlive this script's end; one of Docker 28 minds no signal until its
# container is gone
said=$(
    trap 'late=2; remove; exit 143' HUP INT TERM
    engine run --rm --pull=never --network none --sig-proxy=false --name "$CONTAINER" \
        --entrypoint "$ENTRYPOINT" -- "$IMAGE" "$@" 2>&1 &
    wait "$!"
)
code=$?
[ "$code" -ge 125 ] || trap - EXIT # it ran, so it is gone
say RAN "$code $(printf %s "$said" | line)"
say END ''
