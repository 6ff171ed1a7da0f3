"""Programs and services around runs: launchers, sweeps, trackers, object stores."""
