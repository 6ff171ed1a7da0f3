"""Every test process has eight logical CPU devices, so that no strategy test needs to skip."""

from replicator import quiet

quiet.import_tensorflow()

NUM_DEVICES = 8


def pytest_configure(config):
  import tensorflow as tf
  cpu = tf.config.list_physical_devices("CPU")[0]
  devices = [tf.config.LogicalDeviceConfiguration() for _ in range(NUM_DEVICES)]
  tf.config.set_logical_device_configuration(cpu, devices)
  assert len(tf.config.list_logical_devices("CPU")) == NUM_DEVICES
