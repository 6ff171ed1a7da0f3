"""An experiment without TensorFlow: as fast as a process, and as orderly as a real one.

Each step adds the learning rate to a weight, logs `eval/loss` and saves. It exits with 42 on
SIGTERM, and resumes from its newest checkpoint. Its third step waits until the file `hold` is gone.
Step `fail` breaks where there is no file `repaired`: in every trial, or in the member `only` of a
population. Its member `lost` logs no numbers.
"""

import ast
import json
import os
import pathlib
import re
import signal
import sys
import time

THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
KNOWN = {"lr": 1.0, "width": 1, "train.seed": 0, "train.steps": 3, "hold": "", "fail": 0,
         "only": 0, "lost": -1, "saves": True, "until": 99}


def main(arguments: list[str]) -> int:
  """Runs the command line of an experiment; returns the exit status."""
  settings = dict(KNOWN)
  workdir = pathlib.Path()
  for argument in arguments:
    flag, _, value = argument.partition("=")
    if flag == "--gin_param":
      name, _, text = value.partition(" = ")
      if name not in KNOWN:
        print(f"error: --gin_param: nothing configurable is called '{name}'", file=sys.stderr)
        return 2
      settings[name] = ast.literal_eval(text)
    elif flag == "--workdir":
      workdir = pathlib.Path(value)
  if "--explain" in arguments:
    return 0
  return run(workdir, settings)


def run(workdir: pathlib.Path, settings: dict) -> int:
  """Pretends to train."""
  asked = []
  signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
  found = re.match(r"member=(\d+)_", workdir.name)
  member = int(found[1]) if found else 0
  newest = max((workdir / "checkpoints").glob("step-*"), default=None)
  step = int(newest.name[5:]) if newest else 0
  weight = float((newest / "weight").read_text()) if newest else 0.0
  metrics = workdir / "metrics.jsonl"
  lines = metrics.read_text().splitlines(keepends=True) if metrics.exists() else []
  metrics.write_text("".join(line for line in lines if json.loads(line)["step"] <= step))
  (workdir / "parent").write_text(str(os.getppid()))
  (workdir / "gpus").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
  print("from step", step, "threads", *(os.environ.get(name) for name in THREADS), flush=True)
  while step < min(settings["train.steps"], settings["until"]):
    step, weight = step + 1, weight + settings["lr"]
    while step == 3 and settings["hold"] and os.path.exists(settings["hold"]) and not asked:
      time.sleep(0.01)
    if (step == settings["fail"] and settings["only"] in (0, member)
        and not (workdir / "repaired").exists()):
      print("error: it broke")
      return 1
    loss = (weight / step - 0.3) ** 2 + 0.01 * settings["train.seed"] + 1 / step
    with metrics.open("a") as file:
      file.write(json.dumps({"step": step, "seconds": step / 10, "eval/loss": (
          "NaN" if member == settings["lost"] else loss)}) + "\n")
    if settings["saves"]:
      new = workdir / "checkpoints" / ".new"
      new.mkdir(parents=True, exist_ok=True)
      (new / "weight").write_text(repr(weight))
      new.rename(new.with_name(f"step-{step:08d}"))
    if asked:
      print("saved")
      return 42
  return 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
