"""How observations of spaces are seen: images as bytes, everything else as a vector."""

from models.rl.environments.observations import view_of

import numpy as np
import pytest
from gymnasium import spaces

RNG = np.random.default_rng(0)
BYTES = RNG.integers(0, 256, [20, 30, 3], np.uint8)
RAMP = np.linspace(0, 1, 20 * 30 * 3).reshape(20, 30, 3)


def box(low, high, shape, dtype) -> spaces.Box:
  return spaces.Box(low, high, shape, dtype)


@pytest.mark.parametrize("space, observation, expected", [
    (box(0, 255, (20, 30, 3), np.uint8), BYTES, BYTES),
    (box(0, 255, (3, 20, 30), np.uint8), BYTES.transpose(2, 0, 1), BYTES),
    (box(0, 255, (10, 84, 84), np.uint8), np.arange(10 * 84 * 84).reshape(10, 84, 84) % 251,
     (np.arange(10 * 84 * 84).reshape(10, 84, 84) % 251).transpose(1, 2, 0)),
    (box(0, 255, (20, 30), np.uint8), BYTES[..., 0], BYTES[..., :1]),
    (box(0, 255, (20, 30, 3), np.int64), BYTES.astype(np.int64), BYTES),
    (box(0, 1, (20, 30, 3), np.float32), BYTES / np.float32(255), BYTES),
    (box(0, 255, (20, 30, 3), np.float64), BYTES + 0.3, BYTES),
    (box(0, 1, (20, 30, 3), np.float64), 3.0 * RAMP - 1.0,
     np.rint(np.clip(255 * (3.0 * RAMP - 1.0), 0, 255))),
    (box(0, 1, (3, 20, 30), np.float32), BYTES.transpose(2, 0, 1) / np.float32(255), BYTES),
    (spaces.Dict({"a": spaces.Dict({"b": box(0, 255, (20, 30, 3), np.uint8)})}),
     {"a": {"b": BYTES}}, BYTES),
    (box(0, 1, (10, 10, 4), bool), BYTES[:10, :10, [0, 1, 2, 0]] > 99,
     BYTES[:10, :10, [0, 1, 2, 0]] > 99),
    (box(0, 255, (1, 20, 3), np.uint8), BYTES[:1, :20], BYTES[:1, :20])],
    ids=lambda value: str(value)[:40] if isinstance(value, spaces.Space) else "")
def test_images_are_seen_as_bytes_with_the_channels_last(space, observation, expected):
  view = view_of(space, "float32")
  found = view.convert(observation.astype(space.dtype) if isinstance(space, spaces.Box)
                       else observation)
  assert found.dtype == view.dtype == np.uint8 and found.shape == view.shape
  np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("space, size", [
    (box(0, 255, (4, 4), np.uint8), 16), (box(-1, 1, (20, 30, 3), np.float32), 1800),
    (box(0, 1, (10, 10, 4), np.float32), 400), (box(0, 65535, (20, 30, 1), np.uint16), 600),
    (box(0, 255, (20, 30, 7), np.int64), 4200), (box(0, 1, (84, 84), np.float32), 7056),
    (box(0, 255, (2, 20, 30, 3), np.uint8), 3600), (spaces.MultiBinary([8, 8, 4]), 256),
    (spaces.Dict({"x": box(0, 1, (), np.float32)}), 1),
    (spaces.Dict({"image": box(0, 255, (20, 30, 3), np.uint8), "x": spaces.Discrete(3)}), 1803)],
    ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_other_observations_are_vectors(space, size, dtype):
  view = view_of(space, dtype)
  space.seed(0)
  observation = space.sample()
  found = view.convert(observation)
  assert (view.shape, found.shape, found.dtype) == ((size,), (size,), dtype)
  np.testing.assert_array_equal(found, spaces.flatten(space, observation).astype(dtype))


@pytest.mark.parametrize("space, words", [
    (box(0, 255, (3, 84, 84), np.uint8), "are converted to bytes, 84 x 84 x 3"),
    (box(0, 1, (64, 64, 3), np.float32), "images of float32, Box(0.0, 1.0, (64, 64, 3), float32)"),
    (box(0, 255, (4, 84, 84, 1), np.uint8), "and set Environments.stack"),
    (box(0, 65535, (64, 64, 1), np.uint16), "a vector of 4,096 float32 numbers, without conv"),
    (spaces.Dict({"image": box(0, 255, (64, 64, 3), np.uint8), "x": spaces.Discrete(3)}),
     "'gymnasium.wrappers:FilterObservation': {'filter_keys': ['NAME']}"),
    (box(0, 255, (84, 84), np.uint8), ""), (box(-1, 1, (2000,), np.float32), ""),
    (box(-1, 1, (2, 3), np.float32), "")], ids=str)
def test_what_is_not_obvious_is_said(space, words):
  note = view_of(space, "float32").note
  assert words in note and bool(words) == bool(note)


@pytest.mark.parametrize("space, observation", [
    (box(0, 1, (20, 30, 3), np.float32), np.full([20, 30, 3], np.nan, np.float32)),
    (box(0, 1, (20, 30, 3), np.float32), np.zeros([20, 30, 1], np.float32)),
    (box(0, 255, (20, 30, 3), np.uint8), np.zeros([20, 30, 3])),
    (box(0, 255, (20, 30, 3), np.int64), np.full([20, 30, 3], 0.5))], ids=str)
def test_images_outside_their_space_are_failures(space, observation):
  with pytest.raises(ValueError, match="its observation"):
    view_of(space, "float32").convert(observation)
