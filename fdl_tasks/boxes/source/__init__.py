"""The run's source on this box: fetched, its manifest read, its digest checked."""
