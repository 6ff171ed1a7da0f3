"""Plays episodes with the agent of a run: their returns, and a film of the first one.

    replicator play --run=RUN [--episodes=10] [--video=FILE.mp4|FILE.gif]
        [--step=N|best]

The actions are greedy, and the episodes are the first ones of every evaluation of the run.
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
from replicator import UsageError, atomic
from replicator.app import load
from replicator.console.command import Parser, status_of
from replicator.console.status import Status
from replicator.errors import RunFailed

import numpy as np

_SUFFIXES = (".mp4", ".gif")
_HEIGHT = 240  # Pixels of a film.
_FRAMES_PER_SECOND = 50  # At most; more is not seen.


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line `argv` (default: this process's); returns the exit status."""
  return status_of(lambda words: _run(_parse(words)), argv)


def _parse(words: Sequence[str]) -> argparse.Namespace:
  parser = Parser(description="Plays episodes with the agent of a run.")
  parser.add_argument("--run", required=True, metavar="RUN", help="the workdir of the run")
  parser.add_argument("--episodes", type=int, default=10, metavar="N", help="by default 10")
  parser.add_argument("--video", type=pathlib.Path, metavar="FILE",
                      help="a new .mp4 or .gif, a film of the first episode")
  sample.add_loading_flags(parser)
  flags = parser.parse_args(words)
  if flags.episodes < 1:
    raise UsageError(f"--episodes={flags.episodes}: must be at least 1")
  if flags.video:
    if flags.video.suffix not in _SUFFIXES:
      raise UsageError(f"--video={flags.video}: write the name of a {' or '.join(_SUFFIXES)} file")
    flags.video = sample.new_path(flags.video, "--video")
  return flags


def _run(flags: argparse.Namespace) -> int:
  sample.check_program(flags.run, flags.yes)
  with Status() as status:
    status.doing("loading the run")
    run, number = load.load_run(flags.run, flags.step, flags.gin_param, flags.yes)
    agent = run.module
    if not hasattr(agent, "actor"):
      raise UsageError(f"--run={flags.run}: its {type(agent).__name__} is no agent, so it has no "
                       "environments to play in")
    environments = agent.actor.environments
    status.doing(f"playing {environments.name}")
    evaluator = EpisodeEvaluator(lambda: environments, flags.episodes, warn=status.note)
    try:
      episodes = evaluator.play(agent)
    finally:
      evaluator.close()
    if flags.video:
      status.doing(f"rendering {len(episodes.actions)} steps")
      _write_film(flags.video, environments, episodes)
  for i, (value, length) in enumerate(zip(episodes.returns, episodes.lengths, strict=True)):
    print(f"episode {i}: return {value:.6g} in {length} steps")
  returns = episodes.returns[~np.isnan(episodes.returns)]
  if not len(returns):
    raise RunFailed(f"{environments.name}: failed in all {flags.episodes} episodes")
  print(f"{environments.name}, {flags.run}, step {number}: return {returns.mean():.6g} "
        f"+- {returns.std():.3g} (deviation), from {returns.min():.6g} to {returns.max():.6g}, in "
        f"{len(returns)} episodes")
  if flags.video:
    print(f"{flags.video}: episode 0")
  return 0


def _write_film(path: pathlib.Path, environments: Environments, episodes: Episodes) -> None:
  """Writes a film of the first episode, as fast as it would be in the world."""
  every = max(1, round(environments.steps_per_second / _FRAMES_PER_SECOND))
  frames, why = rendering.frames(environments.settings, evaluation_seed(0),
                                 np.stack(episodes.actions),
                                 range(0, len(episodes.actions) + 1, every), _HEIGHT)
  if not frames:
    raise RunFailed(f"{environments.name}: cannot be rendered here: {why}")
  from imageio import v3 as imageio
  speed = environments.steps_per_second / every
  pace: dict[str, Any] = ({"fps": speed, "macro_block_size": 2} if path.suffix == ".mp4" else
                          {"duration": 1000.0 / speed, "loop": 0})
  even = np.stack(frames)[:, :, :frames[0].shape[1] // 2 * 2]  # H.264 has no odd widths.
  film = imageio.imwrite("<bytes>", even, extension=path.suffix, **pace)
  with atomic.created(path) as temporary:
    temporary.write_bytes(film)


if __name__ == "__main__":
  sys.exit(main())
