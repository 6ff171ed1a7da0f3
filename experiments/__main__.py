"""Lists the experiments, this project's and the user's: `python -m experiments`."""

import os

from replicator.console import gin_files, programs


def main() -> None:
  """Prints each experiment's name and summary, and the file if it is the user's own."""
  found = programs.experiments()
  width = max(map(len, found))
  for name, file in sorted(found.items()):
    place = "" if file.parent == gin_files.OURS / "experiments" else f" ({os.path.relpath(file)})"
    print(f"{name:<{width}}  {programs.summary(file)}{place}")
  print("\nreplicator run NAME --help, or python -m experiments.NAME --help, explains one.")


if __name__ == "__main__":
  main()
