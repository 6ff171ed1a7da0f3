"""Plays episodes with a run's agent; prints their returns, and films the first one.

    replicator play --run=RUN [--episodes=10] [--video=FILE.mp4|FILE.gif]
        [--step=N|best] [--sampled] [--record=FOLDER]

Actions are greedy. The episodes start like the first ones of every evaluation of the run. With
`--sampled`, actions are drawn from the policy. `--record` writes the episodes as a data set in
Minari's format.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from experiments import sample
from models.rl.acting.action_noise import evaluation_seed
from models.rl.acting.evaluation import EpisodeEvaluator, Episodes
from models.rl.environments import rendering
from models.rl.environments.environments import Environments
from models.rl.recording import conversion, dataset
from replicator import UsageError, atomic
from replicator.app import load
from replicator.app.loading_flags import add_loading_flags
from replicator.console.command import Parser, status_of
from replicator.console.status import Status
from replicator.errors import RunFailed

import numpy as np

_SUFFIXES = (".mp4", ".gif")
_HEIGHT = 240  # Of a film, in pixels.
_FRAMES_PER_SECOND = 50  # At most; more would not be visible.


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line `argv` (default: this process's); returns the exit status."""
  return status_of(lambda words: _run(_parse(words)), argv)


def _parse(words: Sequence[str]) -> argparse.Namespace:
  parser = Parser(description="Plays episodes with the agent of a run.")
  parser.add_argument("--run", required=True, metavar="RUN", help="the workdir of the run")
  parser.add_argument("--episodes", type=int, default=10, metavar="N", help="by default 10")
  parser.add_argument("--video", type=pathlib.Path, metavar="FILE",
                      help="a new .mp4 or .gif, a film of the first episode")
  parser.add_argument("--record", type=pathlib.Path, metavar="FOLDER",
                      help="a new folder, a data set of the episodes")
  parser.add_argument("--sampled", action="store_true",
                      help="the policy's own random actions instead of greedy ones")
  add_loading_flags(parser)
  flags = parser.parse_args(words)
  if flags.episodes < 1:
    raise UsageError(f"--episodes={flags.episodes}: must be at least 1")
  if flags.video:
    if flags.video.suffix not in _SUFFIXES:
      raise UsageError(f"--video={flags.video}: must be a {' or '.join(_SUFFIXES)} file")
    flags.video = sample.new_path(flags.video, "--video")
  if flags.record:
    flags.record = sample.new_path(flags.record, "--record")
  return flags


def _run(flags: argparse.Namespace) -> int:
  load.check_program(flags.run, flags.yes)
  with Status() as status:
    status.doing("loading the run")
    run, number = load.load_run(flags.run, flags.step, flags.gin_param, flags.yes)
    agent = run.module
    if not hasattr(agent, "actor"):
      raise UsageError(f"--run={flags.run}: its {type(agent).__name__} is not an agent, so it has "
                       "no environments to play in")
    environments = agent.actor.environments
    status.doing(f"playing {environments.name}")
    evaluator = EpisodeEvaluator(lambda: environments, flags.episodes, warn=status.note)
    try:
      episodes = evaluator.play(agent, flags.sampled, keep_all=bool(flags.record))
    finally:
      evaluator.close()
    if flags.video:
      status.doing(f"rendering {len(episodes.steps[0].actions)} steps")
      _write_film(flags.video, evaluator.environments, episodes)
    if flags.record:
      status.doing(f"writing {episodes.lengths.sum()} steps")
      _write_dataset(flags.record, evaluator.environments, episodes)
  for i, (value, length) in enumerate(zip(episodes.returns, episodes.lengths, strict=True)):
    print(f"episode {i}: return {value:.6g} in {length} steps")
  is_whole = ~np.isnan(episodes.returns)
  returns = episodes.returns[is_whole]
  if not len(returns):
    raise RunFailed(f"{environments.name}: failed in all {flags.episodes} episodes")
  print(f"{environments.name}, {flags.run}, step {number}: return {returns.mean():.6g} "
        f"+- {returns.std():.3g} (deviation), from {returns.min():.6g} to {returns.max():.6g}, in "
        f"{len(returns)} episodes"
        + "".join(f"; {name} {np.nanmean(values[is_whole]):.6g}"
                  for name, values in episodes.info.items()
                  if not np.isnan(values[is_whole]).all()))
  if flags.video:
    print(f"{flags.video}: episode 0")
  if flags.record:
    print(f"{flags.record}: {len(returns)} episodes of {episodes.lengths[is_whole].sum()} steps")
  return 0


def _write_dataset(folder: pathlib.Path, environments: Environments, episodes: Episodes) -> None:
  """Writes the episodes that did not fail."""
  if environments.settings.pixels:
    raise UsageError(f"--record={folder}: with Environments.pixels the agent sees images instead "
                     "of the environment's observations, which a data set needs")
  whole = [steps for steps, value in zip(episodes.steps, episodes.returns, strict=True)
           if not np.isnan(value)]
  dataset.write(folder, [
      conversion.episode_of(environments, np.stack(steps.observations), np.stack(steps.actions),
                            np.array(steps.rewards), steps.terminated) for steps in whole],
                *environments.spaces, environments.settings.spec)


def _write_film(path: pathlib.Path, environments: Environments, episodes: Episodes) -> None:
  """Writes a film of the first episode, in real time."""
  every = max(1, round(environments.steps_per_second / _FRAMES_PER_SECOND))
  actions = episodes.steps[0].actions
  frames, why = rendering.frames(environments.settings, evaluation_seed(0), np.stack(actions),
                                 range(0, len(actions) + 1, every), _HEIGHT)
  if not frames:
    raise RunFailed(f"{environments.name}: cannot be rendered here: {why}")
  from imageio import v3 as imageio
  speed = environments.steps_per_second / every
  pace: dict[str, Any] = ({"fps": speed, "macro_block_size": 2} if path.suffix == ".mp4" else
                          {"duration": 1000.0 / speed, "loop": 0})
  height, width = (size // 2 * 2 for size in frames[0].shape[:2])  # H.264 needs even sizes.
  even = np.stack(frames)[:, :height, :width]
  film = imageio.imwrite("<bytes>", even, extension=path.suffix, **pace)
  with atomic.created(path) as temporary:
    temporary.write_bytes(film)


if __name__ == "__main__":
  sys.exit(main())
