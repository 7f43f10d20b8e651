# Runs build.sh in a container of a compose service; the output is build.sh's and Compose's own.
# Killing the client would leave the container running, so it has a name and is removed by it on any bad end.
{% include "prolog.sh" %}
FDL_ROOT={{ root }}
FDL_CONTAINER={{ container }}
FDL_INNER={{ inner }}
set -- {{ words }}

fdl_remove() { docker rm -f "$FDL_CONTAINER" >/dev/null 2>&1; }

cd "$FDL_ROOT" || exit
fdl_client=
trap 'trap "" TERM HUP INT; kill -KILL "$fdl_client" 2>/dev/null; fdl_remove; exit 143' TERM HUP INT
env "$@" bash -c "$FDL_INNER" &
fdl_client=$!
wait "$fdl_client"
fdl_code=$?
[ "$fdl_code" -eq 0 ] || fdl_remove
exit "$fdl_code"
