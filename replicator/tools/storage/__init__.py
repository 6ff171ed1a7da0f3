"""Object stores: mirroring a workdir to a URL, and reading workdirs by URL."""
