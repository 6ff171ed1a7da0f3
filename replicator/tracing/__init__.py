"""What a compiled step keeps of Python since it was traced, and the lines of its operations."""

from replicator.console import quiet

quiet.import_tensorflow()
