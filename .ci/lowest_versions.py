"""Prints pip constraints: the lowest version of each package that `setup.cfg` allows."""

import configparser
import pathlib

from packaging.requirements import Requirement

declared = configparser.ConfigParser()
declared.read(pathlib.Path(__file__).parents[1] / "setup.cfg")
groups = [declared["options"]["install_requires"], declared["options.extras_require"]["rl"]]
for line in "\n".join(groups).splitlines():
  if line and not line.startswith("#"):
    package = Requirement(line)
    for bound in package.specifier:
      if bound.operator in (">=", "=="):
        print(f"{package.name}=={bound.version}")
