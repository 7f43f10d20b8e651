# Pulls an image from the relay at the other end of this ssh, and gives it the name NAME; the words of the target's
# Docker are the arguments. stdin: the relay's password, then a reference, 127.0.0.1:PORT/PATH@DIGEST, a line each.
# stdout: as load.sh. However it ends, the relay's own name for the image is gone afterwards, and so is the password.
{% include "prolog.sh" %}
{% include "images/watch.sh" %}
NAME={{ name }}
FORMAT={{ format }}
set -- {{ docker }}

forget() { "$@" rmi "$reference" >/dev/null 2>&1; }
# shellcheck disable=SC2317 # the trap calls it
tidy() {
    forget "$@"
    rm -rf -- "$directory"
}
bring() { # the name comes before the relay's is taken away: an image without any is gone
    "$@" pull "$reference" 2>&1 &
    watch "$!"
    code=$?
    [ "$code" -le 128 ] || sleep 1 # its engine may be giving it the relay's name at this moment
    [ "$code" -eq 0 ] || return "$code"
    "$@" tag "$reference" "$NAME" 2>&1
}

IFS= read -r password
IFS= read -r reference || exit 2
exec </dev/null
trap : PIPE # as in say.sh
# The password's directory has no context: the engine is named as the login's own configuration finds it.
case " $* " in
    *" --host "*) ;;
    *)
        host=$("$@" context inspect --format "$FORMAT" 2>/dev/null)
        [ -z "$host" ] || set -- "$@" --host "$host"
        ;;
esac
umask 077
directory=$(mktemp -d "${TMPDIR:-/tmp}/fdl-pull.XXXXXX") || exit 1
set -- "$@" --config "$directory"
trap 'tidy "$@"' EXIT
trap 'exit 143' HUP INT TERM
auth=$(printf 'fdl:%s' "$password" | base64 | tr -d '\n')
printf '{"auths": {"%s": {"auth": "%s"}}}\n' "${reference%%/*}" "$auth" >"$directory/config.json" || exit 1
DOCKER_CONTENT_TRUST=0
export DOCKER_CONTENT_TRUST

echo __FDL_LOAD__
bring "$@"
code=$?
tidy "$@"
trap - EXIT
echo "__FDL_LOADED__ $code"
exit "$code"
