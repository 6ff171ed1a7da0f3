"""New projects: the files that `replicator new` writes."""
