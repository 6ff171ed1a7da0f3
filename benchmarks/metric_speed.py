"""Time and memory of precision, recall, density and coverage, against torch-fidelity and `prdc`.

  python -m benchmarks.metric_speed [--samples=10000] [--dimensions=2048] [--of=neighbors,...]

Each contender runs in its own process, on equally many real and generated features. The table shows
wall and CPU seconds; other work on the machine affects CPU seconds less. The memory is the peak
resident size of that process, which includes the features; the first line gives their size. Beyond
10,000 samples, the references need tens of gigabytes, so select contenders with `--of`.
"""

import contextlib
import importlib.util
import io
import json
import time
from collections.abc import Callable

from benchmarks import usage
from benchmarks.record import Table

import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("samples", 10_000, "Real features, and as many generated ones.", 2)
flags.DEFINE_integer("dimensions", 2048, "Of the features.", 1)
flags.DEFINE_list("of", None, "Which contenders take part; all that are installed if not given.")
flags.DEFINE_string("run", None, "The contender that this process is (set by the benchmark).")


Metric = Callable[[np.ndarray, np.ndarray], object]


# Each contender imports what it needs, and returns what is timed.


def neighbors() -> Metric:
  from models.metrics.distances.neighbors import neighbor_scores
  return neighbor_scores


def neighbors_prdc() -> Metric:
  import prdc

  def metric(real: np.ndarray, generated: np.ndarray) -> object:
    with contextlib.redirect_stdout(io.StringIO()):
      return prdc.compute_prdc(real, generated, nearest_k=5)
  return metric


def neighbors_torch_fidelity() -> Metric:
  import torch
  from torch_fidelity.metric_prc import prc_features_to_metric
  return lambda real, generated: prc_features_to_metric(
      torch.from_numpy(generated), torch.from_numpy(real), verbose=False)


CONTENDERS = {contender.__name__: contender for contender in (
    neighbors, neighbors_prdc, neighbors_torch_fidelity)}


def features() -> tuple[np.ndarray, np.ndarray]:
  """Real and generated features like those of Inception: positive, correlated, of a mean."""
  random = np.random.default_rng(0)
  mixing = random.normal(size=[64, FLAGS.dimensions], scale=0.1).astype(np.float32)

  def draw(scale: float) -> np.ndarray:
    hidden = scale * random.standard_normal([FLAGS.samples, 64], np.float32) @ mixing
    hidden += 0.3 * random.standard_normal(hidden.shape, np.float32) + 0.2
    return np.maximum(hidden, 0, out=hidden)

  return draw(1.0), draw(0.9)


def measure() -> None:
  """Runs one contender; prints its result, time and memory."""
  metric, pair = CONTENDERS[FLAGS.run](), features()
  begun, cpu = time.perf_counter(), time.process_time()
  found = metric(*pair)
  print(json.dumps({"seconds": time.perf_counter() - begun, "cpu": time.process_time() - cpu,
                    "mib": usage.resident_mib(), "found": str(found)}))


def main(argv: list[str]) -> None:
  del argv
  if FLAGS.run:
    measure()
    return
  size = 2 * 4 * FLAGS.samples * FLAGS.dimensions / 2 ** 20
  table = Table(f"{FLAGS.samples:,} real and generated features of {FLAGS.dimensions:,} "
                f"dimensions, {size:,.0f} MiB",
                {"seconds": ".1f", "CPU seconds": ".1f", "MiB": ",.0f", "found": ""})
  for name in FLAGS.of or CONTENDERS:
    module = "prdc" if name.endswith("prdc") else "torch_fidelity"
    if name != "neighbors" and not importlib.util.find_spec(module):
      print(f"{name:26} is left out: {module} is not installed")
      continue
    found = usage.measured_alone(
        "benchmarks.metric_speed", f"--samples={FLAGS.samples}",
        f"--dimensions={FLAGS.dimensions}", f"--run={name}")
    table.add(name, found["seconds"], found["cpu"], found["mib"], found["found"])


if __name__ == "__main__":
  app.run(main)
