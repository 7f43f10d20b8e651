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
ended() {
    set -- code.*
    [ -e "$1" ] && [ "$#" -ge "$ways" ]
}

command -v ssh >/dev/null 2>&1 || { say NOSSH '' && say END '' && exit 0; }
directory=$(mktemp -d) || exit 1
trap 'rm -rf -- "$directory"' EXIT
trap 'exit 143' HUP INT TERM
cd "$directory" || exit 1
printf %s "$KNOWN_HOSTS" >known_hosts || exit 1

ways=0
while [ "$#" -gt 0 ]; do
    login "$ways" "$@" &
    words=$1
    shift
    shift "$words"
    ways=$((ways + 1))
done
until=$(($(date +%s) + LIMIT))
while ! ended && [ "$(date +%s)" -lt "$until" ]; do
    sleep 0.1 2>/dev/null || sleep 1 # not every sleep takes fractions
done
way=0
while [ "$way" -lt "$ways" ]; do
    code=-
    if [ -e "code.$way" ]; then
        code=$(cat "code.$way")
    else
        kill -KILL "$(cat "pid.$way")" 2>/dev/null
    fi
    say WAY "$way $code $(line <"said.$way")"
    way=$((way + 1))
done
wait
say END ''
