"""Networks with layers of `replicator` in files of Keras."""

import replicator

import keras
import numpy as np
import pytest

LAYERS = {
    "GlobalBatchNorm": lambda: replicator.GlobalBatchNorm(0.5, 1e-2, center=False),
    "gamma_initializer": lambda: replicator.GlobalBatchNorm(
        gamma_initializer=keras.initializers.Constant(2.0), name="norm"),
    "Dropout": lambda: replicator.Dropout(0.25, [None, 1], stream="mine"),
    "SpectralNorm": lambda: replicator.SpectralNorm(keras.layers.Dense(3), power_iterations=2),
}


def test_every_public_layer_is_here():
  public = {name for name in dir(replicator) if isinstance(getattr(replicator, name), type)
            and issubclass(getattr(replicator, name), keras.layers.Layer)}
  assert public <= LAYERS.keys()


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # In Keras.
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_network_is_the_same_when_it_is_loaded(name, policy, tmp_path):
  keras.config.set_dtype_policy(policy)
  layer = LAYERS[name]()
  net = keras.Sequential([keras.Input([4]), keras.layers.Dense(5), layer])
  x = np.random.default_rng(0).normal(size=[8, 4]).astype(np.float32)
  for variable in net.variables:  # As training would.
    variable.assign(variable + 0.1)
  net.save(tmp_path / "net.keras")
  loaded = keras.models.load_model(tmp_path / "net.keras")
  np.testing.assert_array_equal(loaded(x), net(x))
  again = loaded.layers[-1]
  assert type(again) is type(layer) and again.dtype_policy.name == layer.dtype_policy.name
  settings = {key: value for key, value in layer.get_config().items()
              if isinstance(value, str | int | float | list)}
  assert settings == {key: again.get_config()[key] for key in settings}
