# `take_lock` lets one transfer of an image at a time go out from this login. FDL_LOCK is the file; FDL_YIELD=1: who
# had to wait ends then, since the nodes may be in sync by now. stdout: a line of JSON where there is something to say.
# The file stays open as 9 in the script and its sender: their end frees it, however they end.
lock_file() { # made in a directory that nobody else can write to: a link there would lead elsewhere
    umask 077
    # shellcheck disable=SC3067 # a shell without -O takes no lock
    mkdir -p -- "$locks" && [ ! -L "$locks" ] && [ -O "$locks" ] && chmod 700 "$locks" &&
        [ ! -L "$locks/$FDL_LOCK" ] && : >>"$locks/$FDL_LOCK"
}
take_lock() {
    locks=${HOME:-/dev/null}/.cache/fdl-tasks
    if ! command -v flock || ! (lock_file); then
        echo '{"lock": "none"}' >&3
        return
    fi
    exec 9>>"$locks/$FDL_LOCK"
    flock -n 9
    case $? in
        0) return ;;
        1) echo '{"lock": "waiting"}' >&3 ;; # any other code: the file system has no locks
    esac
    flock 9 || { echo '{"lock": "none"}' >&3 && return; }
    echo '{"lock": "waited"}' >&3
    [ "$FDL_YIELD" = 0 ] || exit 0
} 3>&1 >/dev/null 2>&1
