# Pulls IMAGE from its registry: the one way to give a digest's name back to what a graphdriver store has.
{% include "prolog.sh" %}
{% include "images/say.sh" %}
{% include "images/engine.sh" %}
IMAGE={{ image }}

said=$(engine pull --quiet -- "$IMAGE" 2>&1)
say PULLED "$? $(printf %s "$said" | line)"
say END ''
