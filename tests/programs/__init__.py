"""Small programs that tests run as users run their experiments."""

from replicator import quiet

quiet.import_tensorflow()
