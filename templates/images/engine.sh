# `engine ps` is `docker ps`, the way in that the probe found: by sudo, or at an address of its own.
SUDO={{ sudo }}
ENGINE={{ docker_host }}
apart=
late=
engine() {
    if [ -n "$ENGINE" ]; then
        $apart docker --host "$ENGINE" "$@"
    elif [ "$SUDO" = 1 ]; then
        $apart sudo -n docker "$@"
    else
        $apart docker "$@"
    fi
}
# takes CONTAINER away, in a session of its own: with an ended script all of its process group dies. With `late` it
# is done once more after so many seconds: a client that was just making it may have come to that
remove() {
    ! command -v setsid >/dev/null 2>&1 || apart=outlive
    engine rm -f "$CONTAINER" >/dev/null 2>&1
}
# shellcheck disable=SC2016 # the inner shell expands it
outlive() { setsid sh -c 'late=$1 && shift && "$@"; [ -z "$late" ] || { sleep "$late" && "$@"; }' - "$late" "$@"; }
