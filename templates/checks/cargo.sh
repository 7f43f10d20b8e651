# Prints where cargo is; exits 1 or 127 without one. It is not started: rustup's might download a toolchain.
{% include "prolog.sh" %}
command -v cargo
