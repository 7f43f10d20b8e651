# Gives the image ID of this node the name NAME as well, and says what that name meant before.
{% include "prolog.sh" %}
{% include "images/say.sh" %}
{% include "images/engine.sh" %}
ID={{ id }}
NAME={{ name }}
FORMAT={{ format }}

before=$(engine image inspect --format "$FORMAT" -- "$NAME" 2>/dev/null) || before=
said=$(engine tag -- "$ID" "$NAME" 2>&1)
say TAGGED "$? $(printf %s "$said" | line)"
say BEFORE "$(printf %s "$before" | line)"
say END ''
