"""Programs and services around runs: launchers, sweeps, trackers and object stores."""
