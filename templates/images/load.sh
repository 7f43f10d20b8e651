# Loads an image from stdin on a target; the words of its Docker are the arguments. stdout: a mark, what the load
# says, a mark with its exit code. A load that never reads would outlive a lost connection: it is ended with it.
{% include "prolog.sh" %}
set -- {{ docker }}

echo __FDL_LOAD__
exec 3<&0 </dev/null
"$@" load <&3 3<&- 2>&1 &
load=$!
exec 3<&-
( # the parent is sshd's process of this login
    [ -d "/proc/$PPID" ] || exit 0
    while [ -d "/proc/$PPID" ]; do sleep 1; done
    kill "$load" || sudo -n kill "$load"
    sleep 1
    kill -KILL "$load" || sudo -n kill -KILL "$load"
) >/dev/null 2>&1 &
watcher=$!
wait "$load"
code=$?
kill "$watcher" 2>/dev/null
echo "__FDL_LOADED__ $code"
exit "$code"
