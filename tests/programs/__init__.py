"""Small programs that tests run as users run theirs."""

from replicator import quiet

quiet.import_tensorflow()
