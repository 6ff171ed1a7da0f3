"""Strict gin: what files and command lines say, what is configurable, and what a run used.

Loads no TensorFlow, but for `library_names`.
"""
