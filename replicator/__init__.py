"""One replica step function, any `tf.distribute` strategy.

The names in `__init__.pyi` are the whole interface. Each loads on first use, so that
`import replicator` costs nothing and `python -m replicator.launch` starts without TensorFlow.
"""

import lazy_loader

from replicator import moved

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

moved.say_where(__name__)
