# Looks at one node's Docker: the way in, the engine, the image IMAGE; and its store, the other images, room, tools.
# Prints a line a fact, `__FDL_<NAME>__ <bytes of the value> <value>`, which fdl_tasks/images/facts.py reads;
# the last one is __FDL_END__. Changes nothing. With BRIEF=1 it ends where the image is there: if all nodes have the
# same one nothing else is needed, and each start of a docker client costs.
{% include "prolog.sh" %}
{% include "images/engine.sh" %}
IMAGE={{ image }}
BRIEF={{ brief }}
MOST={{ most }}
JSON={{ json }}
INFO={{ info }}
SIZE={{ size }}

say() { printf '__FDL_%s__ %d %s\n' "$1" "$(printf %s "$2" | wc -c)" "$2"; }
line() { tr '\n\r\t' '   ' | tr -cd '\040-\176' | head -c "${1:-3000}"; } # what a program says, as one line of ASCII
value() { printf '%s\n' "$1" | grep '^{' | head -n 1; }                   # the JSON in it, past warnings
words() { printf '%s\n' "$1" | grep -v '^{' | line; }
finish() {
    say END ''
    exit 0
}
first_of_archive() { # what stands in the first 64 KiB of the image's archive, and what docker says of it
    { engine save "$IMAGE" 2>&3 | head -c 65536 | tar -tf - 2>/dev/null; } 3>&1
}
room() {
    kib=$(df -Pk -- "$1" 2>/dev/null | awk 'NR > 1 { for (i = NF; i > 4; i--) if ($i ~ /^[0-9]+%$/) { print $(i - 1); exit } }')
    [ -z "$kib" ] || say FREE "$kib $1"
}

command -v docker >/dev/null 2>&1 || { say NODOCKER "$(printf %s "$PATH" | line)" && finish; }
way=user
[ -z "$ENGINE" ] || way=host
version=$(engine version --format "$JSON" 2>&1)
code=$?
case $code$way$version in
    [1-9]*user*"permission denied"*)
        if asked=$(sudo -n docker version --format "$JSON" 2>&1); then
            way=sudo code=0 version=$asked SUDO=1
        else
            say USER "$(id -un 2>/dev/null | line)"
            say SUDO "$(words "$asked")"
        fi
        ;;
esac
[ "$code" -eq 0 ] || { say REFUSED "$(words "$version")" && finish; }
say WAY "$way"
say VERSION "$(value "$version")"
if image=$(engine image inspect --format "$JSON" -- "$IMAGE" 2>&1); then
    say IMAGE "$(value "$image")"
    [ "$BRIEF" = 0 ] || finish
else
    say NOIMAGE "$(words "$image")"
    image=
fi

info=$(engine info --format "$INFO" 2>&1) || say NOINFO "$(words "$info")"
say INFO "$(value "$info")"
if [ -n "$image" ]; then
    say SIZES "$(engine history --no-trunc --human=false --format "$SIZE" -- "$IMAGE" 2>/dev/null | line)"
    case $info in
        *io.containerd.snapshotter*) # such a store keeps the name of an image whose content never arrived
            archive=$(first_of_archive)
            say ARCHIVE "$(printf %s "$archive" | line 60000)"
            case $archive in
                *manifest.json*) say MANIFEST "$(engine save "$IMAGE" 2>/dev/null | head -c 65536 | tar -xOf - manifest.json 2>/dev/null)" ;;
            esac
            ;;
    esac
fi

root=$(printf '%s\n' "$info" | sed -n 's/.*"DockerRootDir":"\([^"\\]*\)".*/\1/p')
[ -z "$root" ] || room "$root"
case $info in
    *io.containerd.snapshotter*)
        ! [ -S /run/containerd/containerd.sock ] || room /var/lib/containerd ;; # a containerd of the system's own
esac

# shellcheck disable=SC2046 # ids are words
engine image inspect --format "$JSON" -- \
    $(engine image ls --quiet --no-trunc 2>/dev/null | awk '!seen[$0]++' | head -n "$MOST") 2>/dev/null | head -c 2500000 |
    while IFS= read -r other; do
        case $other in '{'*) say OTHER "$other" ;; esac
    done

tools=
! command -v zstd >/dev/null 2>&1 || tools="$tools zstd"
! grep -qw aes /proc/cpuinfo 2>/dev/null || tools="$tools aes"
say TOOLS "${tools# }"
# -S: what the node's own Python would set up at its start is not needed, and slow with some
say PYTHON "$(python3 -S -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null | line)"
finish
