# Tries ways from this node to others, all at once: a login on each that does nothing, with the keys pinned in
# KNOWN_HOSTS. Says per way its number, ssh's exit code (- when it was ended after LIMIT seconds) and its words.
{% include "prolog.sh" %}
{% include "images/say.sh" %}
KNOWN_HOSTS={{ known_hosts }}
LIMIT={{ limit }}
set -- {{ logins }}

login() { # login <number> <words> <word>...: the command is the first so many of the words
    number=$1 count=$2
    shift 2
    others=$(($# - count))
    while [ "$count" -gt 0 ]; do
        set -- "$@" "$1"
        shift
        count=$((count - 1))
    done
    shift "$others"
    "$@" </dev/null >"said.$number" 2>&1 &
    echo "$!" >"pid.$number"
    wait "$!"
    echo "$?" >"new.$number"
    mv "new.$number" "code.$number"
}
limit() { # once its clock has ended, after LIMIT seconds or killed, ends the logins that have not
    sleep "$LIMIT" &
    echo "$!" >clock
    wait "$!"
    for pid in pid.*; do
        [ -e "code.${pid#pid.}" ] || kill -KILL "$(cat "$pid")"
    done
}

command -v ssh >/dev/null 2>&1 || { say NOSSH '' && say END '' && exit 0; }
directory=$(mktemp -d) || exit 1
trap 'rm -rf -- "$directory"' EXIT
trap 'exit 143' HUP INT TERM
cd "$directory" || exit 1
printf %s "$KNOWN_HOSTS" >known_hosts || exit 1

mkfifo clock || exit 1
limit >/dev/null 2>&1 &
read -r timer <clock
ways=0 running=
while [ "$#" -gt 0 ]; do
    login "$ways" "$@" &
    running="$running $!"
    words=$1
    shift
    shift "$words"
    ways=$((ways + 1))
done
# shellcheck disable=SC2086 # process ids are words
wait $running
kill -KILL "$timer" 2>/dev/null # a shell that has just forked loses any other signal
way=0
while [ "$way" -lt "$ways" ]; do
    code=$(cat "code.$way" 2>/dev/null)
    case $code in '' | 137) code=- ;; esac # ended by limit: ssh itself ends with 255, or as the command does
    say WAY "$way $code $(line <"said.$way")"
    way=$((way + 1))
done
wait
say END ''
