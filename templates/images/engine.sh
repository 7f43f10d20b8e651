# `engine ps` is `docker ps`, the way in that the probe found: by sudo, or at an address of its own.
SUDO={{ sudo }}
ENGINE={{ docker_host }}
engine() {
    if [ -n "$ENGINE" ]; then
        docker --host "$ENGINE" "$@"
    elif [ -n "$SUDO" ]; then
        sudo -n docker "$@"
    else
        docker "$@"
    fi
}
