# Removes what one transfer left on this node, if anything: its private directories, and its relay's names for the
# image, RELAYED, when one ran. The words of the node's Docker are the arguments.
{% include "prolog.sh" %}
FDL_NAME={{ name }}
FDL_RELAYED={{ relayed }}
FDL_FORMAT={{ format }}
set -- {{ docker }}

for fdl_place in "${TMPDIR:-/tmp}" /tmp /var/tmp "$HOME"; do
    rm -rf -- "$fdl_place/$FDL_NAME".* || exit
done
[ -n "$FDL_RELAYED" ] || exit 0
fdl_names=$("$@" image ls --filter "reference=$FDL_RELAYED" --format "$FDL_FORMAT") || exit
for fdl_named in $fdl_names; do
    "$@" rmi "$fdl_named" >/dev/null || exit
done
