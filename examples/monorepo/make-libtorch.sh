#!/bin/sh
# Makes small stand-ins for libtorch, so that the example builds on a machine without GPU or download.
#
#   ./make-libtorch.sh [ROOT [VARIANT...]]
#
# ROOT is the project root (default: this script's directory); the variants go to ROOT/libtorch/.
# Each is a real shared library, and each exports one symbol that the others lack: a binary that was
# linked against one does not start with another, as with the real thing. A variant that is already
# there in the wanted version is not touched. LIBTORCH_VERSION (default 2.10.0) is that version.
set -eu
export LC_ALL=C

wanted=${LIBTORCH_VERSION:-2.10.0}
staging=

die() {
    echo "make-libtorch: $1" >&2
    exit 1
}

is_variant() { # VARIANT
    case $1 in precompiled/* | builds/*) ;; *) return 1 ;; esac
    case ${1#*/} in '' | [!A-Za-z0-9]* | *[!A-Za-z0-9._-]*) return 1 ;; esac
}

facts_of() { # CUDA version, then GPU architectures, as the file .arch names them
    case $1 in
    cpu) echo 'none cpu' ;;
    cu126) echo '12.6 5.0 5.2 6.0 6.1 7.0 7.5 8.0 8.6 8.9 9.0' ;;
    cu128) echo '12.8 7.0 7.5 8.0 8.6 8.9 9.0 12.0' ;;
    gfx[0-9]*) echo "none $1" ;;
    *) echo 'unknown unknown' ;;
    esac
}

library_source() { # NAME BUILD
    symbol=torch_kernels_$(printf %s "$2" | tr -c 'A-Za-z0-9' '_')
    cat <<SOURCE
const char *torch_variant(void) { return "$1"; }
const char *torch_build_version(void) { return "$2"; }
int $symbol(void) { return 0; }
SOURCE
}

fill() { # DIRECTORY VARIANT BUILD
    name=${2##*/}
    facts=$(facts_of "$name")
    origin=precompiled
    case $2 in builds/*) origin=compiled ;; esac
    mkdir "$1/lib"
    library_source "$name" "$3" | "${CC:-cc}" -shared -fPIC -Wl,-soname,libtorch.so -o "$1/lib/libtorch.so" -x c -
    printf 'cuda=%s\ntorch=%s\narchs=%s\nsource=%s\nvariant=%s\n' \
        "${facts%% *}" "$wanted" "${facts#* }" "$origin" "$name" >"$1/.arch"
    printf '%s\n' "$3" >"$1/build-version"
}

is_current() { # DIRECTORY BUILD
    [ -f "$1/lib/libtorch.so" ] && [ -f "$1/.arch" ] && [ "$(cat "$1/build-version" 2>/dev/null)" = "$2" ]
}

make_variant() { # VARIANT
    build=$wanted+${1##*/}
    home=$root/libtorch/$1
    if is_current "$home" "$build"; then
        echo "libtorch/$1: $build is there"
        return
    fi
    mkdir -p "${home%/*}"
    staging=$(mktemp -d "${home%/*}/.making.XXXXXX")
    fill "$staging" "$1" "$build"
    chmod 755 "$staging"
    rm -rf "$home"
    mv "$staging" "$home"
    echo "libtorch/$1: $build made"
}

command -v "${CC:-cc}" >/dev/null || die "no C compiler: install gcc (Debian: apt install gcc) or set CC"
trap '[ -z "$staging" ] || rm -rf "$staging"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

root=${1:-$(dirname "$0")}
[ -d "$root" ] || die "$root is not a directory"
[ "$#" -eq 0 ] || shift
[ "$#" -gt 0 ] || set -- precompiled/cu128 precompiled/cu126 precompiled/cpu builds/gfx1030
for variant; do
    is_variant "$variant" || die "$variant is no variant: it is precompiled/NAME or builds/NAME"
done
for variant; do make_variant "$variant"; done
