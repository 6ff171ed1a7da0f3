"""The command line of an experiment: `run(main)` parses it, runs `main`, and exits."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
