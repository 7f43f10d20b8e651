# Starts one worker's binary as the launcher will, with the command's check arguments.
# The words are NAME=value..., --, PROGRAM, ARGUMENT...
{% include "prolog.sh" %}
FDL_DIRECTORY={{ directory }}
set -- {{ words }}

cd "$FDL_DIRECTORY" || exit
while [ "$1" != -- ]; do
    export "${1?}"
    shift
done
shift
exec "$@"
