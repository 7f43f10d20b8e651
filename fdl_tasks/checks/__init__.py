"""Preflight: what is looked at on the controller and on every worker before anything is built."""
