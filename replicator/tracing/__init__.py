"""What a compiled step keeps of Python from the moment it was traced, and where its graph came from."""

from replicator.console import quiet

quiet.import_tensorflow()
