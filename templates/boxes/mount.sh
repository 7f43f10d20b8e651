# Runs a program that stays when it is done (sshfs), from DIRECTORY. The ssh that it starts keeps its stderr for good,
# so that is a file and no pipe of ours: nobody would read on from that after the run.
{% include "prolog.sh" %}
FDL_DIRECTORY={{ directory }}
set -- {{ words }}

folder=
trap '[ -z "$folder" ] || rm -rf -- "$folder"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
cd -- "$FDL_DIRECTORY" || exit
if folder=$(mktemp -d 2>/dev/null); then said=$folder/said; else said=/dev/null; fi
"$@" >"$said" 2>&1
code=$?
cat -- "$said" >&2
exit "$code"
