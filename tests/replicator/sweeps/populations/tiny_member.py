"""An experiment without TensorFlow whose results depend on all its steps, for populations.

Each step adds the learning rate to its weight, and `eval/loss` is the distance of the weight from
10. It saves at every step, and resumes from its newest checkpoint. Its third step fails in the
member of the number `fail`, in all if that is -1. The member `lost` logs no numbers.
"""

import json
import pathlib
import sys

KNOWN = {"lr": 1.0, "train.steps": 3, "fail": 0, "lost": 0, "saves": 1, "until": 99}


def main(arguments: list[str]) -> int:
  """Runs the command line of an experiment; returns the exit status."""
  pairs = [argument.removeprefix("--gin_param=").split(" = ") for argument in arguments
           if argument.startswith("--gin_param=")]
  settings = {**KNOWN, **{name: json.loads(value.replace("'", '"')) for name, value in pairs}}
  if "--explain" in arguments:
    return 0
  (workdir,) = (pathlib.Path(argument.removeprefix("--workdir="))
                for argument in arguments if argument.startswith("--workdir="))
  newest = max((workdir / "checkpoints").glob("step-*"), default=None)
  step = int(newest.name[5:]) if newest else 0
  weight = float((newest / "weight").read_text()) if newest else 0.0
  print("from step", step, flush=True)
  metrics = workdir / "metrics.jsonl"
  lines = metrics.read_text().splitlines(keepends=True) if metrics.exists() else []
  metrics.write_text("".join(line for line in lines if json.loads(line)["step"] <= step))
  number = int(workdir.name.partition("_")[0].partition("=")[2])
  while step < min(settings["train.steps"], settings["until"]):
    step, weight = step + 1, weight + settings["lr"]
    if step == 3 and settings["fail"] in (number, -1):
      print("error: it broke")
      return 1
    loss = "NaN" if number == settings["lost"] else abs(10 - weight)
    with metrics.open("a") as file:
      file.write(json.dumps({"step": step, "seconds": 0.1, "eval/loss": loss}) + "\n")
    if settings["saves"]:
      folder = workdir / "checkpoints" / f"step-{step:08d}"
      folder.mkdir(parents=True)
      (folder / "weight").write_text(repr(weight))
  return 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
