"""One Docker image on every node: probe, source, plan, ways, transfer, verify."""
