"""How every ssh that prepare starts is spelled, and the host key that it is held to."""
