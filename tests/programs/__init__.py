"""Small programs that tests run as users run theirs."""

from replicator.console import quiet

quiet.import_tensorflow()
