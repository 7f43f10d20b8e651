"""The libtorch variants of this box: chosen, downloaded, unpacked, installed, active."""
