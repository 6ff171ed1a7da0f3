"""All processes of a cluster on this machine. Loads no TensorFlow."""

from replicator.launch.placement import free_ports as free_ports
from replicator.launch.supervisor import launch as launch
from replicator.launch.supervisor import tf_configs as tf_configs
