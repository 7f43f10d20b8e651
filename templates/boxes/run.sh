# Runs one program of this box, from DIRECTORY: the words are its argv.
{% include "prolog.sh" %}
FDL_DIRECTORY={{ directory }}
set -- {{ words }}

cd -- "$FDL_DIRECTORY" || exit
exec "$@"
