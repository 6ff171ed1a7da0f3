"""Timesteps for the tests of the replay."""

import numpy as np
import tensorflow as tf

from models.rl.replay.replay import Replay
from models.rl.replay.timesteps import Timesteps


def timesteps_of(stream, flag, seed: int = 0, size: int = 2) -> Timesteps:
  """Timesteps with random contents."""
  rng, m = np.random.default_rng(seed), len(flag)
  return Timesteps(np.broadcast_to(np.int32(stream), m),
                   rng.normal(size=[m, size]).astype(np.float32),
                   rng.normal(size=[m, 1]).astype(np.float32),
                   rng.normal(size=m).astype(np.float32), np.array(flag, np.uint8))


def random_timesteps(m: int, streams: int, seed: int) -> Timesteps:
  """Streams of different speeds, with episodes that are short, long, terminated and truncated."""
  rng = np.random.default_rng(seed)
  stream = rng.choice(streams, m, p=np.arange(1, streams + 1) / (streams * (streams + 1) / 2))
  return timesteps_of(stream, rng.choice(3, m, p=[0.8, 0.1, 0.1]), seed)


def give_errors(replay: Replay, index: list[int], errors: list[float]) -> None:
  drawn = replay.sample(1)._replace(index=tf.constant(index, tf.int64))
  replay.update_priorities(drawn, tf.constant(errors))
