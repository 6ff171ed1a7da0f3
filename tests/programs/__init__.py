"""Small programs that tests run as users run their experiments."""

from replicator.console import quiet

quiet.import_tensorflow()
