"""One replica step function, any `tf.distribute` strategy.

The names in `__init__.pyi` are the whole interface. Each loads on first use, so that
`import replicator` is cheap, and commands that do not need TensorFlow start without it.
"""

import importlib

from replicator.console.hidden import find_hidden_modules
from replicator.console.keras_backend import use_tensorflow
from replicator.console.keras_layers import register_layers
from replicator.console.quiet import quiet_tensorflow
from replicator.training.workdir import places

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

use_tensorflow()
quiet_tensorflow(
    before=lambda: importlib.import_module("replicator.app.start").begin_program(),
    after=lambda: importlib.import_module("replicator.internals.first_use").note_start())
find_hidden_modules()
register_layers()
# For runs in an object store, which `training` opens with this tool.
places.open_tool = lambda: importlib.import_module("replicator.tools.storage.remote")
