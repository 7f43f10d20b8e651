# Sends an image from this node to its targets: runs fdl_tasks/images/sender.py or relay.py, which nothing installs.
# stdout: lines of JSON, as that program says.
{% include "prolog.sh" %}
{% include "images/lock.sh" %}
FDL_NAME={{ name }}
FDL_KNOWN_HOSTS={{ known_hosts }}
FDL_PROGRAM={{ program }}
FDL_JOB={{ job }}
FDL_LOCK={{ lock }}
FDL_YIELD={{ yields }}

take_lock
fdl_tidy() { rm -rf -- "${TMPDIR:-/tmp}/$FDL_NAME".*; } # by the name: mktemp itself may be ended
trap fdl_tidy EXIT
trap 'exit 143' HUP INT TERM
trap : PIPE # what a shell says of its ended child goes nowhere then, and must not end it before its clean-up
fdl_directory=$(mktemp -d "${TMPDIR:-/tmp}/$FDL_NAME.XXXXXX") || exit 1
cd "$fdl_directory" || exit 1
printf %s "$FDL_KNOWN_HOSTS" >known_hosts || exit 1
printf '%s\n' "$FDL_JOB" | python3 -I -S -c "$FDL_PROGRAM"
