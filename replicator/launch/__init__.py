"""All processes of a cluster on this machine. Loads no TensorFlow."""

from replicator.launch.supervisor import launch as launch
from replicator.launch.tf_config import tf_configs as tf_configs
