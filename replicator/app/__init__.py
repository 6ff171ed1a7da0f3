"""The command line of an experiment: `run(main)` parses it, runs `main`, and exits."""

from replicator.console import quiet

quiet.import_tensorflow()

from replicator.app import config as config
from replicator.app.experiment import main_of as main_of
from replicator.app.experiment import run as run
