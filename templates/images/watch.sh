# `watch PID` waits for that child and gives its exit code; when this login's connection is lost, the child is ended:
# it would outlive that. By sudo too, since it may be root's.
watch() {
    (
        [ -d "/proc/$PPID" ] || exit 0 # sshd's process of this login
        while [ -d "/proc/$PPID" ]; do sleep 1; done
        kill "$1" || sudo -n kill "$1"
        sleep 1
        kill -KILL "$1" || sudo -n kill -KILL "$1"
    ) >/dev/null 2>&1 &
    watcher=$!
    wait "$1"
    set -- "$?"
    kill "$watcher" 2>/dev/null
    return "$1"
}
