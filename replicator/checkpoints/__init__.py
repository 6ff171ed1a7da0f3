"""What must survive a restart: the variables of a step, on the disk and back."""

from replicator.console import quiet

quiet.import_tensorflow()
