# Looks at one worker's binary where it will be started: its machine and C library, the file as this machine
# sees it, and what the loader finds for it. Each line stands between two MARKs; fdl_tasks/builds/readback.py reads them.
{% include "prolog.sh" %}
FDL_MARK={{ mark }}
FDL_FILE={{ file }}
FDL_DIRECTORY={{ directory }}
FDL_LOADER={{ loader }}
FDL_SIZE={{ size }}
FDL_SHA256={{ sha256 }}
FDL_LOOKS={{ looks }}
FDL_PAUSE={{ pause }}
set -- {{ variables }}

fdl_hash() {
    for fdl_tool in sha256sum 'shasum -a 256' 'openssl dgst -sha256 -r'; do
        command -v "${fdl_tool%% *}" >/dev/null || continue
        $fdl_tool <"$FDL_FILE"
        return
    done
}

fdl_look() {
    if [ ! -f "$FDL_FILE" ]; then echo absent; return; fi
    if [ -x "$FDL_FILE" ]; then fdl_x=x; else fdl_x=-; fi
    fdl_size=$(wc -c <"$FDL_FILE") || { echo unreadable; return; }
    fdl_size=$((fdl_size)) fdl_hash=-
    if [ "$fdl_size" = "$FDL_SIZE" ]; then fdl_hash=$(fdl_hash); fi
    fdl_hash=${fdl_hash%% *}
    echo "$fdl_size $fdl_x ${fdl_hash:--}"
}

# Until it is the one just built: a mount's caches may show an older one, or none, for a while.
fdl_look_again() {
    while :; do
        fdl_seen=$(fdl_look)
        FDL_LOOKS=$((FDL_LOOKS - 1))
        case $fdl_seen in "$FDL_SIZE x $FDL_SHA256" | "$FDL_SIZE x -") break ;; esac
        [ "$FDL_LOOKS" -gt 0 ] || break
        sleep "$FDL_PAUSE" || sleep 1 # not every sleep takes fractions
    done
    echo "FILE $fdl_seen"
}

# Goes where it will be started. The loader is looked for apart, since ldd may take another than the file names.
fdl_start() {
    fdl_directory=- fdl_loader=-
    if cd "$FDL_DIRECTORY"; then fdl_directory=x; fi
    if [ -x "${FDL_LOADER:-/}" ]; then fdl_loader=x; fi
    echo "START $fdl_directory $fdl_loader"
}

# With the variables that stand before the --. No name of ours is used here: the user's may be the same.
fdl_with() {
    while [ "$1" != -- ]; do
        export "${1?}"
        shift
    done
    shift
    exec "$@"
}

fdl_answer() {
    echo "MACHINE $(uname -m)"
    FDL_LDD=$(command -v ldd)
    fdl_banner=-
    if [ -n "$FDL_LDD" ]; then fdl_banner=$(ldd --version 2>&1 | sed -n '/^[^+]/{p;q;}'); fi
    echo "LDD $fdl_banner"
    fdl_look_again
    fdl_start
    if [ -z "$FDL_LDD" ] || [ "${fdl_seen#[0-9]}" = "$fdl_seen" ]; then return; fi
    { (fdl_with "$@" -- "$FDL_LDD" -r "$FDL_FILE") 2>&1; printf '\n%s\n' "$?"; } | {
        fdl_last=
        while IFS= read -r fdl_line; do
            [ -z "$fdl_last" ] || printf 'LIB %s\n' "$fdl_last"
            fdl_last=$fdl_line
        done
        echo "CODE $fdl_last"
    }
}

fdl_answer "$@" 2>/dev/null | {
    fdl_count=0
    while IFS= read -r fdl_line; do
        fdl_count=$((fdl_count + 1))
        printf '%s %s %s\n' "$FDL_MARK" "$fdl_line" "$FDL_MARK"
    done
    printf '%s END %s %s\n' "$FDL_MARK" "$fdl_count" "$FDL_MARK"
}
