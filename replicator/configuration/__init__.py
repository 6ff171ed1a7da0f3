"""Strict gin: the statements of gin files, the checks on them, and the record of what a run used.

    configurables   what gin can configure: names and parameters
    statements      the statements of gin files and the command line, with their places
    annotations     types of values, checked against the annotations of the code
    checks          mistakes that gin does not report, and values that nothing uses
    operative       the operative configuration: the `config.gin` of a run
    differences     configurations as texts, and the differences between two
    gin_internals   the private names of gin that the others need

Loads no TensorFlow.
"""
