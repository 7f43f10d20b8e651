# Removes the private directories of one transfer, if any are left on this node.
{% include "prolog.sh" %}
FDL_NAME={{ name }}

for fdl_place in "${TMPDIR:-/tmp}" /tmp /var/tmp "$HOME"; do
    rm -rf -- "$fdl_place/$FDL_NAME".* || exit
done
