"""Sequences sampled from the replay, against a NumPy reference that walks along the streams."""

from models.rl.replay.sequences import SequenceReplay
from models.rl.replay.timesteps import CONTINUES, END, TERMINATED, Timesteps
from replicator.step import context
from tests.models.rl.replay.test_replay import random_timesteps, timesteps_of

import numpy as np


def by_hand(rows: Timesteps, stream: int, first: int, length: int) -> list[np.ndarray]:
  """The sequence after timestep `first` of a stream."""
  own = [part[rows.stream == stream] for part in rows[1:]]
  observation, action, reward, flag = own
  seen, before = slice(first + 1, first + 1 + length), slice(first, first + length)
  is_first = flag[before] == END
  return [observation[seen], np.where(is_first[:, np.newaxis], 0, action[before]),
          np.where(is_first, 0, reward[before]), flag[before] == TERMINATED, is_first]


def test_sequences_go_on_across_the_ends_of_episodes():
  replay = SequenceReplay((2,), 1, 1, length=4)
  flag = [CONTINUES, TERMINATED, END, CONTINUES, CONTINUES, END, CONTINUES]
  rows = timesteps_of(0, flag)
  replay.insert(rows)
  assert replay.size() == 2  # The third place has no four later ones, and is an END besides.
  found = {tuple(x.numpy().tobytes() for x in row) for row in zip(*replay.sample(64), strict=True)}
  expected = {tuple(x.tobytes() for x in by_hand(rows, 0, first, 4)) for first in (0, 1)}
  assert found == expected
  terminated, is_first = by_hand(rows, 0, 0, 4)[3:]
  assert terminated.tolist() == [False, True, False, False]
  assert is_first.tolist() == [False, False, True, False]


def test_every_window_of_the_newest_timesteps_is_sampled_and_no_other():
  length, rows_kept = 3, 12
  replay = SequenceReplay((2,), 1, 2, length=length)
  replay.timesteps = type(replay.timesteps)((2,), 1, 2, capacity=2 * rows_kept, n_step=length)
  rows = random_timesteps(70, 2, seed=5)
  for k in range(0, 70, 7):
    replay.insert(Timesteps(*(part[k:k + 7] for part in rows)))
  expected = {}
  for stream in range(2):
    flag = rows.flag[rows.stream == stream]
    for first in range(len(flag) - rows_kept, len(flag) - length):
      if flag[first] != END:
        sequence = by_hand(rows, stream, first, length)
        expected[sequence[0].tobytes()] = sequence
  assert replay.size() == len(expected)
  drawn = replay.sample(600)
  counts = dict.fromkeys(expected, 0)
  for row in zip(*(x.numpy() for x in drawn), strict=True):
    key = row[0].tobytes()
    counts[key] += 1
    for found, right in zip(row, expected[key], strict=True):
      np.testing.assert_array_equal(found, right)
  mean = 600 / len(expected)
  assert 0.4 * mean < min(counts.values()) <= max(counts.values()) < 1.8 * mean


def test_samples_are_a_function_of_the_seed_and_the_step(monkeypatch):
  replay = SequenceReplay((2,), 1, 2, length=3)
  replay.insert(random_timesteps(70, 2, seed=5))
  draws = []
  for step in (0, 1, 0):
    with context.entered(np.int64(step)):
      draws.append(replay.sample(8).observation.numpy())
  assert draws[0].tobytes() == draws[2].tobytes() != draws[1].tobytes()
