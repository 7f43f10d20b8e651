# Sends an image from this node to its targets by one file: the way without python3 3.8. Always the whole image.
# The words: SAVING words of `docker save`, then per target its name, a count, and so many words of its command.
# stdout: lines of JSON, as fdl_tasks/images/sender.py gives them.
{% include "prolog.sh" %}
{% include "images/lock.sh" %}
FDL_NAME={{ name }}
FDL_KNOWN_HOSTS={{ known_hosts }}
FDL_NEEDED={{ needed }}
FDL_STALL={{ stall }}
FDL_LOAD_STALL={{ load_stall }}
FDL_SAVING={{ saving }}
FDL_LOCK={{ lock }}
FDL_YIELD={{ yields }}
set -- {{ words }}

json() { printf '"%s"' "$(tr -d '\000-\010\013-\037' | tr '\t' ' ' | sed 's/[\\"]/\\&/g')"; } # one line of text
finish() { # finish [reason]
    if [ -n "$1" ]; then reason=$(printf %s "$1" | tr '\n' ' ' | json); else reason=null; fi
    printf '{"end": true, "error": %s}\n' "$reason"
    exit 0
}
first() { # first <count> <word>...: runs the first so many words
    count=$1
    shift
    others=$(($# - count))
    while [ "$count" -gt 0 ]; do
        set -- "$@" "$1"
        shift
        count=$((count - 1))
    done
    shift "$others"
    exec "$@"
}

room() { # the directory with the most room that this login can write to
    for place in "${TMPDIR:-/tmp}" /tmp /var/tmp "$HOME"; do
        [ -w "$place" ] || continue
        kib=$(df -Pk -- "$place" 2>/dev/null | awk 'NR > 1 { for (i = NF; i > 4; i--) if ($i ~ /^[0-9]+%$/) { print $(i - 1); exit } }')
        [ -z "$kib" ] || echo "$kib $place"
    done | sort -rn | head -n 1
}

save() { # through a pipe: under sudo nothing else would end it when this script is ended
    { (first "$FDL_SAVING" "$@") 2>said; echo "$?" >code; } | cat >image.tar
}

check() { # what a shell can tell of an archive: its end, its table, and that it has all that its manifest names
    code=$(cat code)
    [ "$code" = 0 ] || finish "docker save ended with $code: $(tail -n 3 said)"
    size=$(($(wc -c <image.tar)))
    if [ "$(tail -c 1024 image.tar | tr -d '\000' | wc -c)" -ne 0 ] || ! tar -tf image.tar >table 2>said; then
        finish "docker save ended well, but its archive stops after $size bytes"
    fi
    tar -xOf image.tar manifest.json 2>said >manifest ||
        finish "docker save ended well, but its archive lacks manifest.json: the source's copy is incomplete"
    lacks=$(tr '"' '\n' <manifest | grep -E '^(blobs/[a-z0-9]+/[0-9a-f]+|[0-9a-f]{64}\.json|[0-9a-f]{64}/layer\.tar)$' |
        grep -vxFf table | head -n 1)
    [ -z "$lacks" ] ||
        finish "docker save ended well, but its archive lacks $lacks: the source's copy is incomplete"
}

position() { sed -n 's/^pos:[^0-9]*//p' "/proc/$1/fdinfo/0" 2>/dev/null; } # how far a process has read its stdin

watch() { # watch <number> <name> <pid>: says how far it is, ends it when it stands still
    before='' still=0
    while sleep 1 >/dev/null 2>&1; do
        now=$(position "$3")
        [ -z "$now" ] || printf '{"target": %s, "bytes": %s}\n' "$2" "$now"
        if [ "$now" = "$before" ]; then still=$((still + 1)); else still=0 before=$now; fi
        if [ "$now" = "$size" ]; then limit=$FDL_LOAD_STALL why="its load made no progress for $limit s"
        else limit=$FDL_STALL why="it took no byte for $limit s"; fi
        [ "$still" -lt "$limit" ] || { echo "$why" >"why.$1"; kill "$3"; }
    done
}

load() { # load <number> <name> <count> <word>...
    number=$1 name=$(printf %s "$2" | json) began=$(date +%s)
    shift 2
    (first "$@") <image.tar >"said.$number" 2>&1 9>&- & # the lock is the script's alone
    child=$!
    watch "$number" "$name" "$child" 9>&- &
    watcher=$!
    wait "$child"
    code=$?
    kill "$watcher"
    why=null
    [ ! -s "why.$number" ] || why=$(json <"why.$number")
    said=$(tail -n 40 "said.$number" | tr -d '\000-\010\013-\037' | tr '\t' ' ' | sed 's/[\\"]/\\&/g; s/^/"/; s/$/"/' | paste -sd, -)
    printf '{"target": %s, "bytes": %s, "seconds": %s, "code": %s, "said": [%s], "error": %s, "late": false}\n' \
        "$name" "$size" "$(($(date +%s) - began))" "$code" "$said" "$why"
}

take_lock
found=$(room)
[ "$((${found%% *} + 0))" -ge "$((FDL_NEEDED / 1024))" ] ||
    finish "the image's file needs $((FDL_NEEDED / 1024)) KiB on the source, and no directory has them (the most: $found)"
# shellcheck disable=SC2317 # the trap calls it
tidy() { rm -rf -- "${found#* }/$FDL_NAME".*; } # by the name: mktemp itself may be ended
trap tidy EXIT
trap 'exit 143' HUP INT TERM
trap : PIPE # what a shell says of its ended child goes nowhere then, and must not end it before its clean-up
command -v tar >/dev/null || finish "the source has neither python3 3.8 nor tar to check the archive with: install one"
directory=$(mktemp -d "${found#* }/$FDL_NAME.XXXXXX") || exit 1
cd "$directory" || exit 1
printf %s "$FDL_KNOWN_HOSTS" >known_hosts || exit 1

save "$@" &
wait "$!" || finish "the image's file could not be written: no room in $directory?"
check
shift "$FDL_SAVING"
number=0
while [ "$#" -gt 0 ]; do
    load "$number" "$@" &
    words=$2
    shift 2
    shift "$words"
    number=$((number + 1))
done
wait
finish
