"""Object stores: a copy of a workdir there, and workdirs by their URL."""
