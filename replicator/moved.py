"""Where public names went: modules, what they hold, and what gin files name.

A program or a gin file that uses an old name gets one line with the new one. The `config.gin` of an
earlier run is read as if it had the new names. A package of the user's that hides a module of this
project gets a line, too.
"""

import importlib.abc
import importlib.util
import pathlib
import sys
from collections.abc import Callable
from typing import Any

# In each package, the old and the new names of modules. An old one may be a package today.
_IN_PACKAGES = {
    "models": {
        "gan.augmentation.shift": "vision.augmentation.flip_and_shift",
        "export.layers": "export.networks"},
    "models.vision": {
        "data": "sources",
        "images": "images.image_source", "pictures": "images.decode",
        "in_threads": "images.thread_map", "picture_files": "images.write",
        "decoding": "images.encoded_images", "encoding": "sources",
        "images.encoded_examples": "sources",
        "held_out": "images.image_source", "images.subset": "images.image_source",
        "grid": "images.grid", "labels": "images.labels",
        "folder": "files.image_folder", "image_zip": "files.image_zip",
        "image_arrays": "files.image_arrays", "tfds": "files.libraries",
        "hugging_face": "files.libraries", "files.tfds": "files.libraries",
        "files.hugging_face": "files.libraries", "digits": "builtin.digits",
        "stacked_digits": "builtin.digits",
        "builtin.stacked_digits": "builtin.digits", "shapes": "builtin.shapes",
        "shards": "shards.sharded_images", "shard_index": "shards.index",
        "imagenet_shards": "shards.imagenet", "tfrecords": "shards.sharded_images",
        "shards.tfrecords": "shards.sharded_images",
        "augmentation.two_views": "augmentation.random_view",
        "augment": "augmentation.random_view", "mixing": "augmentation.mixup",
        "resnet": "classification.resnet", "lars": "classification.lars",
        "linear_probe": "classification.linear_probe",
        "classifier": "classification.small_classifier"},
    "models.rl": {
        "environments": "environments.environments", "environment_wrapper": "environments.wrapper",
        "environment_registry": "environments.environments", "rendering": "environments.rendering",
        "environments.registry": "environments.environments",
        "replay": "replay.replay", "replay.writer": "replay.replay",
        "replay_writer": "replay.replay", "sum_tree": "replay.sum_tree",
        "timesteps": "replay.timesteps", "rate_limiter": "agents",
        "replay.rate_limiter": "agents",
        "networks": "networks.actor_critic", "critic_heads": "networks.critic_heads",
        "categorical": "networks.critic_heads", "normalization": "networks.observation_normalizer",
        "actor": "acting.actor", "environment_loop": "acting.environment_loop",
        "action_noise": "acting.action_noise", "saved_state": "acting.saved_state",
        "adder": "acting.environment_loop", "acting.adder": "acting.environment_loop",
        "evaluation": "acting.evaluation",
        "episode_picture": "acting.evaluation", "acting.episode_picture": "acting.evaluation",
        "actor_pool": "actor_pool.pool",
        "actor_process": "actor_pool.actor_process", "ray_actors": "actor_pool.actor_process",
        "actor_pool.ray_actor": "actor_pool.actor_process",
        "exported_policy": "actor_pool.policy_graph", "supervisor": "actor_pool.pool"},
    "models.gan": {
        "losses": "losses.adversarial",
        "tfgan": "losses.tfgan", "latents": "latents.distributions",
        "latent_optimization": "latents.optimization", "evaluation": "evaluation.sample_quality",
        "feature_metrics": "evaluation.feature_metrics",
        "mode_coverage": "evaluation.mode_coverage",
        "sample_evaluator": "evaluation.sample_evaluator", "sampling": "evaluation.sampling",
        "sample_variance": "evaluation.sample_variance",
        "augmentation.adaptive": "augmentation.ada",
        "augmentation.augmentation": "networks.protocols",
        "networks.biggan_blocks": "networks.residual_blocks",
        "networks.r3gan_blocks": "networks.r3gan",
        "networks.biggan_layers": "networks.residual_blocks",
        "networks.sngan_blocks": "networks.residual_blocks"},
    "models.metrics": {
        "frechet": "distances.frechet", "kernel": "distances.kernel",
        "neighbors": "distances.neighbors", "inception_score": "distances.inception_score",
        "sliced_wasserstein": "distances.sliced_wasserstein",
        "statistics": "distances.feature_statistics", "checks": "distances.checks",
        "extractor": "extractors.extractor", "inception": "extractors.inception",
        "efficientnet": "extractors.efficientnet", "adaptors": "extractors.keras_features",
        "pretrained": "extractors.torch_weights", "torch_file": "extractors.torch_file",
        "torch_pickle": "extractors.torch_file", "image_sets": "images.image_sets"},
    "replicator": {
        "console.exit_status": "console.command", "collectives.calls": "collectives.validation",
        "collectives.moves": "collectives.primitives",
        "collectives.transport": "collectives.packing",
        "collectives.items": "collectives.map_reduce",
        "strategies.dealing": "strategies.distributed_evaluation",
        "strategies.equal_calls": "strategies.collective_order",
        "strategies.tf_config": "cluster.tf_config",
        "trackers.follower": "trackers.sync", "trackers.record": "trackers.sync",
        "trackers.mlflow": "trackers.services", "trackers.trackio": "trackers.services",
        "trackers.wandb": "trackers.services", "sweeps.attempt": "sweeps.trial_process",
        "sweeps.views.page": "sweeps.results", "sweeps.views.table": "sweeps.results",
        "sweeps.table": "sweeps.results", "sweeps.progress": "sweeps.results",
        "sweeps.slurm_task": "sweeps.trial_process",
        "optimizers.networks": "optimizers.owned_variables", "workdir.owner": "workdir.lock",
        "workdir.introduction": "workdir.run_summary", "workdir.live_report": "workdir.report",
        "workdir.notebook": "workdir.report", "tracing.convolutions": "tracing.graphs",
        "divergence.signals": "divergence.diagnostics",
        "checkpoints.copies": "checkpoints.replica_checksums",
        "app.library_names": "app.keras_configurables", "step.nests": "step.nest",
        "layers.pool": "example_pool", "launch.task": "launch.supervisor",
        "optimizers.clipping": "optimizers.optimizer",
        "training.scalars": "training.training_function"},}
MODULES = {f"{package}.{old}": f"{package}.{new}"
           for package, moved in _IN_PACKAGES.items() for old, new in moved.items()}
"""The full names of modules, new by old."""

NAMES = {
    "replicator.LinearDecay": "replicator.schedules.LinearDecay",
    "replicator.Pool": "replicator.ExamplePool",
    "replicator.TrackedRun": "replicator.trackers.tracker.TrackedRun",
    "replicator.Tracker": "replicator.trackers.tracker.Tracker",
    "experiments.sngan.Evaluator": "models.gan.evaluation.sample_evaluator.SampleEvaluator",
    "models.gan.networks.sngan.Generator": "models.gan.networks.sngan.SNGANGenerator",
    "models.gan.networks.sngan.Discriminator": "models.gan.networks.sngan.SNGANDiscriminator"}
"""The full names of what modules hold, and of gin's `configurable.parameter`s, new by old."""

GONE = {
    "models.gan.checks": "write replicator.errors.at_least_one",
    "models.rl.processes": "write replicator.processes.spawning around what starts processes",
    "models.metrics.table": "write models.metrics.comparison.table",
    "models.metrics.image_classes": "models.metrics.images.image_sets reads labels",
    "replicator.strategies.layer_support": "the error of the step names what cannot be updated",
    "replicator.wrap_optimizer.clip_each_network": "wrap_optimizers makes an optimizer for each "
                                                   "network, which clips by its own norm",
    "replicator.Guard.strict": "Guard.action applies to every scalar above its limit; write "
                               "Guard.limits",
    "models.gan.evaluation.sample_quality.frechet_distance":
        "models.metrics.distances.frechet takes FeatureStatistics.of(features)",
    "models.gan.bigbigan_losses": "the losses of BigBiGAN are in experiments.bigbigan",
    "models.gan.losses.bigbigan": "the losses of BigBiGAN are in experiments.bigbigan",
    "experiments.sngan.SNGAN.bigan": "the encoder regresses codes; one that is a player is "
                                     "trained by python -m experiments.bigan",
    "models.gan.losses.adversarial.hinge.real_margin": "both margins are 1",
    "models.gan.losses.adversarial.hinge.fake_margin": "both margins are 1",
    "models.gan.networks.acgan.ACGANDiscriminator.spectral": "the classifier is a plain layer",
    "models.vision.classification.lars.LARS.nesterov": "the momentum is the paper's",
    "models.vision.augmentation.flip_and_shift.FlipAndShift.largest": "it is 1/8, as in the paper",
    "models.gan.losses.adversarial.relativistic": "it is a part of R3GAN; write R3GAN for GAN, "
                                                  "and run python -m experiments.r3gan"}
"""The full names that have no successor, and what to write in their place."""


def new_name(name: str) -> str | None:
  """The new name of an old one, both as gin files write them: cut in front; None for any other."""
  found = next((new for old, new in NAMES.items() if ends(old, name)), None)
  module, _, last = name.rpartition(".")
  if module and not found:
    found = next((f"{new}.{last}" for old, new in MODULES.items() if ends(old, module)), None)
  return found


def renamed(selector: str, parameter: str, here: Callable[[str], str | None]) -> tuple[str, str]:
  """The new names of a configurable and its parameter, or the same.

  `here` returns the name that a new full name has in its place, or None if it is none there.
  """
  owner, _, last = (new_name(f"{selector}.{parameter}") or "").rpartition(".")
  if name := here(owner):
    return name, last
  return here(new_name(selector) or "") or selector, parameter


def remedy(name: str) -> str | None:
  """The advice for a name that is gone, which may be cut in front; None for any other name."""
  return next((remedy for old, remedy in GONE.items() if ends(old, name)), None)


def ends(full: str, name: str) -> bool:
  """Whether a full name may be written as `name` in a gin file."""
  return f".{full}".endswith(f".{name}")


def say_where(module: str) -> None:
  """Makes the old names of `module`, which runs now, raise errors that name the new ones."""
  running = sys.modules[module]
  found = getattr(running, "__getattr__", None)

  def attribute(name: str) -> Any:
    if line := _line(f"{module}.{name}"):
      raise ImportError(line)
    if found:
      return found(name)
    if not name.startswith("_"):
      importlib.util.find_spec(f"{module}.{name}")  # Raises an error for a name that has moved.
    raise AttributeError(f"module '{module}' has no attribute '{name}'", name=name, obj=running)

  running.__getattr__ = attribute  # type: ignore[method-assign]


def _line(name: str) -> str | None:
  """One line on a full name that has moved or is gone; None for any other."""
  if new := MODULES.get(name) or NAMES.get(name):
    return f"{name} has moved: write {new}"
  return f"{name} is gone: {GONE[name]}" if name in GONE else None


def _hidden(name: str) -> str | None:
  """One line on a module of this project that a package of the user's hides; None for any other.

  `models` and `experiments` are namespace packages: with folders of these names elsewhere on the
  path they make one package, but an `__init__.py` ends that.
  """
  top = name.partition(".")[0]
  init = getattr(sys.modules.get(top), "__file__", None)
  ours = pathlib.Path(__file__).parents[1] / name.replace(".", "/")
  if top not in ("models", "experiments") or not init or not (
      ours.is_dir() or ours.with_suffix(".py").is_file()):
    return None
  return (f"{name} is hidden by {init}; remove that file, or write this in it: import pkgutil; "
          "__path__ = pkgutil.extend_path(__path__, __name__)")


class _Finder(importlib.abc.MetaPathFinder):
  """Is asked for a module after all who find modules."""

  def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
    """Raises an error for a module that is hidden or has moved, or for a name that was in one."""
    package, _, last = name.rpartition(".")
    line = _hidden(name) or _line(name)
    if package in MODULES and not last.startswith("_"):
      new = MODULES[package]
      if hasattr(importlib.import_module(new), last):
        line = f"{name} has moved: write {new}.{last}"
    if line:
      raise ModuleNotFoundError(line)


sys.meta_path.append(_Finder())
