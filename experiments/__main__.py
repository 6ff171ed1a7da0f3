"""Lists the experiments, this project's and the user's: `python -m experiments`."""

import os

from replicator.console import gin_files, programs


def main() -> None:
  """Prints the name, the first line and, if it is not of this project, the file of each."""
  found = programs.experiments()
  width = max(map(len, found))
  for name, file in sorted(found.items()):
    place = "" if file.parent == gin_files.OURS / "experiments" else f" ({os.path.relpath(file)})"
    print(f"{name:<{width}}  {programs.summary(file)}{place}")
  print("\nreplicator run NAME --help, or python -m experiments.NAME --help, explains one.")


if __name__ == "__main__":
  main()
