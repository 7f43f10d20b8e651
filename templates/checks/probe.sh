# Looks at one machine before anything is built for it: its data path, its project root, what of the
# controller's fresh files shows there, and with ABI=1 its CPU, its C library and pkill.
# Prints the __FLODL_…__ lines that fdl_tasks/checks/probe.py reads, the last one __FLODL_END__.
{% include "prolog.sh" %}
DATA={{ data_path }}
ROOT={{ root }}
ABI={{ abi }}
PAUSE={{ pause }}
set -- {{ fresh }}

first_fresh_file() {
    for name do
        [ "$name" = "$1" ] || sleep "$PAUSE" 2>/dev/null || sleep 1 # not every sleep takes fractions
        file=$ROOT/target/cluster/$name content=
        { IFS= read -r content <"$file"; } 2>/dev/null
        if [ -n "$content" ]; then
            mtime=$(stat -c %Y -- "$file" 2>/dev/null || stat -f %m -- "$file" 2>/dev/null)
            case $mtime in '' | *[!0-9]*) mtime=- ;; esac
            printf '%s %s %s\n' "$name" "$mtime" "$content"
            return
        fi
    done
    echo absent
}

if [ -d "$DATA" ]; then echo __FLODL_DP_DIR__=1; else echo __FLODL_DP_DIR__=0; fi
# listing it is the proof: [ -r ] asks the mode bits, and a mount may refuse all the same
if ls -- "$DATA/." >/dev/null 2>&1; then echo __FLODL_DP_READ__=1; else echo __FLODL_DP_READ__=0; fi

echo __FLODL_ROOT__
if [ -d "$ROOT" ]; then
    printf '1 %s\n' "$(df -Pk -- "$ROOT" 2>/dev/null | tail -n 1)"
else
    echo 0
    set -- # nothing can show under a root that is not there
fi

if [ "$#" -gt 0 ]; then
    echo __FLODL_SHARED__
    first_fresh_file "$@"
fi

if [ "$ABI" = 1 ]; then
    echo __FLODL_ABI__
    uname -m
    echo __FLODL_LDD__
    banner=-
    if command -v ldd >/dev/null 2>&1; then
        # glibc's banner comes on stdout, musl's on stderr; a line with + is an echo of set -x
        banner=$(ldd --version 2>&1 | sed -n '/^[^+]/{p;q;}')
    fi
    printf '%s\n' "$banner"
    echo __FLODL_PKILL__
    if command -v pkill >/dev/null 2>&1; then echo present; else echo absent; fi
fi
echo __FLODL_END__
