"""An experiment without TensorFlow: as fast as a process, and as orderly as a real one.

It logs `eval/loss` at every step, saves its state, exits with 42 on SIGTERM, and resumes from its
state. Its third step waits until the file `hold` is gone.
"""

import ast
import json
import os
import pathlib
import signal
import sys
import time

THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
KNOWN = {"lr": 1.0, "width": 1, "train.seed": 0, "train.steps": 3, "fail": 0, "hold": ""}


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
  state = workdir / "state"
  step = int(state.read_text()) if state.exists() else 0
  (workdir / "parent").write_text(str(os.getppid()))
  (workdir / "gpus").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
  print("from step", step, "threads", *(os.environ.get(name) for name in THREADS), flush=True)
  while step < settings["train.steps"]:
    step += 1
    while step == 3 and settings["hold"] and os.path.exists(settings["hold"]) and not asked:
      time.sleep(0.01)
    if step == settings["fail"] and not (workdir / "repaired").exists():
      print("error: it broke")
      return 1
    loss = (settings["lr"] - 0.3) ** 2 + 0.01 * settings["train.seed"] + 1 / step
    with (workdir / "metrics.jsonl").open("a") as file:
      file.write(json.dumps({"step": step, "seconds": step / 10, "eval/loss": loss}) + "\n")
    state.write_text(str(step))
    if asked:
      print("saved")
      return 42
  return 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
