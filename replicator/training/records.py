"""Records of TFRecord files at any position, for sources that read shards where they lie."""

from replicator.internals.tensorflow_internals import record_reader

__all__ = ["record_reader"]
