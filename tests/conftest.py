"""Every test process has eight logical CPU devices, so that no strategy test needs to skip."""

import replicator  # noqa: F401  (quiets TensorFlow's start-up log before it is imported)
import tensorflow as tf

NUM_DEVICES = 8


def pytest_configure(config):
  cpu = tf.config.list_physical_devices("CPU")[0]
  devices = [tf.config.LogicalDeviceConfiguration() for _ in range(NUM_DEVICES)]
  tf.config.set_logical_device_configuration(cpu, devices)
  assert len(tf.config.list_logical_devices("CPU")) == NUM_DEVICES
