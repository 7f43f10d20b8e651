#!/bin/sh
# What people do by hand: save the image to a file on its node, load that file on all others at once over ssh.
# baseline_sync.sh SSH_CONFIG IMAGE FILE SOURCE TARGET=ADDRESS...
# The source finds the targets' host keys in its known_hosts already.
set -u
config=$1 image=$2 file=$3 source=$4
shift 4

at() { ssh -F "$config" "$@"; }
id() { at "$1" "docker image inspect --format '{{.Id}}' $image 2>/dev/null || true"; }
# shellcheck disable=SC2317 # `all` calls it by its name
bring() { # bring <target> <address>
    at "$source" "ssh -o BatchMode=yes -o StrictHostKeyChecking=yes root@$2 docker load <$file" &&
        [ "$(id "$1")" = "$wanted" ] &&
        at "$1" "docker run --rm --network none --entrypoint /bin/sh $image -c 'exit 0'"
}
all() { # all <deed>: of every target at once; fails when one of them did
    deed=$1 running=
    shift
    for target do
        "$deed" "${target%%=*}" "${target#*=}" &
        running="$running $!"
    done
    failed=0
    for one in $running; do wait "$one" || failed=1; done
    return "$failed"
}

all id "$source" "$@"
wanted=$(id "$source")
[ -n "$wanted" ] || exit 1
at "$source" "rm -f $file && docker save -o $file $image" || exit 1
all bring "$@"
code=$?
at "$source" "rm -f $file"
exit "$code"
