"""The precision that a run computes in, and whether this machine is fast in it."""

import pathlib

import keras
import tensorflow as tf

_CPU = pathlib.Path("/proc/cpuinfo")
_BFLOAT16 = {"avx512_bf16", "amx_bf16"}


def use(precision: str) -> None:
  """Makes Keras compute in a precision, in the whole process."""
  keras.config.set_floatx("float64" if precision == "float64" else "float32")
  keras.config.set_dtype_policy(precision)


def warnings(precision: str) -> list[str]:
  """A line if this machine emulates the precision, which takes many times as long as float32."""
  on_cpus = {device.device_type for device in tf.config.list_physical_devices()} == {"CPU"}
  if precision != "mixed_bfloat16" or not on_cpus or not _CPU.exists():
    return []
  known = next((line.partition(":")[2].split() for line in _CPU.read_text().splitlines()
                if line.startswith("flags")), None)
  if known is None or _BFLOAT16 & set(known):
    return []
  return ["warning: train.precision = 'mixed_bfloat16': this CPU has no bfloat16 instructions "
          f"({', '.join(sorted(_BFLOAT16))}), so steps take several times as long as in 'float32'"]
