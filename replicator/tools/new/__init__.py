"""New projects: the files written by `replicator new`."""
