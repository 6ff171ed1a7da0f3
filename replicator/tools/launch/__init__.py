"""Starts all processes of a cluster. Does not load TensorFlow."""

from replicator.tools.launch.placement import free_ports as free_ports
from replicator.tools.launch.supervisor import launch as launch
from replicator.tools.launch.supervisor import tf_configs as tf_configs
