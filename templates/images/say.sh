# `say NAME value` prints a line of an answer; fdl_tasks/images/answer.py reads it. Needs prolog.sh.
say() { printf '__FDL_%s__ %d %s\n' "$1" "$(printf %s "$2" | wc -c)" "$2"; }
# what a program says, as one line of ASCII, a tab for each end of a line
line() { tr '\n' '\t' | tr -cd '\011\040-\176' | tail -c 3000; }
# of a child that was ended the shell says so on stderr; when nobody reads that any more, it would die of it, and its
# traps would not run
trap : PIPE
