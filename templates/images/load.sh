# Loads an image from stdin on a target; the words of its Docker are the arguments. stdout: a mark, what the load
# says, a mark with its exit code. A load that never reads would outlive a lost connection: it is ended with it.
{% include "prolog.sh" %}
{% include "images/watch.sh" %}
set -- {{ docker }}

echo __FDL_LOAD__
exec 3<&0 </dev/null
"$@" load <&3 3<&- 2>&1 &
exec 3<&-
watch "$!"
code=$?
echo "__FDL_LOADED__ $code"
exit "$code"
