"""A picture of an episode: a strip of its frames, or curves if it cannot be rendered."""

from typing import TYPE_CHECKING

from models.rl.environments import rendering

import numpy as np
from PIL import Image, ImageDraw, ImageFont

if TYPE_CHECKING:
  from models.rl.environments.wrapper import EnvironmentSettings

_ROWS, _COLUMNS = 2, 8
_HEIGHT, _CAPTION, _GAP = 120, 14, 2  # Pixels of a frame, of its caption, and between frames.
_MAX_CURVES = 24


def picture_of(settings: "EnvironmentSettings", seed: int, actions: np.ndarray,
               rewards: np.ndarray, observations: list[np.ndarray]) -> tuple[np.ndarray, str]:
  """Returns the picture of an episode, uint8 `[h, w, 3]`, and a description of it.

  Args:
    settings: settings of the environment, which replays the episode.
    seed: seed of the episode.
    actions: float32 `[t, action_size]`.
    rewards: [t].
    observations: vectors, of which the agent acted on the first t; empty for images.
  """
  steps = np.linspace(0, len(actions), _ROWS * _COLUMNS).round().astype(int).tolist()
  frames, why = rendering.frames(settings, seed, actions, steps, _HEIGHT)
  if frames:
    returns = np.concatenate([[0.0], np.cumsum(rewards)])
    captions = [f"{step}: {returns[step]:.4g}" for step in steps]
    return (_strip(frames, captions),
            "the picture shows the first episode, with step: return so far")
  return (_curves(observations[:len(actions)], actions, rewards),
          f"the picture shows curves of the first episode, which cannot be rendered here ({why})")


def _strip(frames: list[np.ndarray], captions: list[str]) -> np.ndarray:
  height, width = frames[0].shape[0] + _CAPTION + _GAP, frames[0].shape[1] + _GAP
  sheet = Image.new("RGB", (_COLUMNS * width - _GAP, _ROWS * height - _GAP), "white")
  draw, font = ImageDraw.Draw(sheet), ImageFont.load_default()
  for i, (frame, caption) in enumerate(zip(frames, captions, strict=True)):
    row, column = divmod(i, _COLUMNS)
    x, y = column * width, row * height
    draw.text((x + 2, y + 1), caption, fill="black", font=font)
    sheet.paste(Image.fromarray(frame), (x, y + _CAPTION))
  return np.asarray(sheet)


def _curves(observations: list[np.ndarray], actions: np.ndarray, rewards: np.ndarray) -> np.ndarray:
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure
  shown = {"actions": actions, "reward": rewards}
  if observations:
    shown = {"observation": np.stack(observations)[:, :_MAX_CURVES], **shown}
  figure = Figure(figsize=(9, 6), dpi=80, layout="constrained")
  canvas = FigureCanvasAgg(figure)
  for axes, (name, values) in zip(figure.subplots(len(shown), sharex=True), shown.items(),
                                  strict=True):
    axes.plot(values, linewidth=1)
    axes.set_ylabel(name)
    axes.margins(x=0)
  axes.set_xlabel(f"step; return {rewards.sum():.4g}")
  canvas.draw()
  return np.asarray(canvas.buffer_rgba())[..., :3].copy()
