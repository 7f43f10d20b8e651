# `with_container create …` runs a docker command that makes CONTAINER, and takes that away again. Needs engine.sh.
# It is a session of its own, since with an ended script all of its process group is killed: a killed client leaves
# its engine at work, which goes on to make a container that nobody takes away. So once the script is gone the client
# may come to its end, which it does as soon as there is no container for it; after 300 tries the engine is stuck.
# shellcheck disable=SC2016 # the inner shell expands it
with_container() {
    setsid=$(command -v setsid)
    $setsid sh -c '
        script=$1 container=$2 sudo=$3 host=$4
        shift 4
        engine() { ${sudo:+sudo -n} docker ${host:+--host "$host"} "$@"; }
        engine "$@" &
        client=$!
        exec >/dev/null 2>&1 # what the shell says of a killed child would end it, when nobody reads that any more
        {
            while [ -d "/proc/$script" ]; do sleep 1; done
            tries=0
            while kill -0 "$client" && [ "$((tries += 1))" -lt 300 ]; do
                engine rm -f "$container"
                sleep 1
            done
            ! kill -0 "$client" || kill -KILL 0
        } &
        watcher=$!
        wait "$client"
        code=$?
        kill "$watcher"
        # a container that was run with --rm, and came to an end of its own, is gone
        [ "$1" = run ] && [ "$code" -lt 125 ] || engine rm -f "$container"
        exit "$code"
    ' - "$$" "$CONTAINER" "$SUDO" "$ENGINE" "$@"
}
