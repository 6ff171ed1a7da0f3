"""Many runs of one experiment: the space they span, how they are run, and what they show.

`python -m experiments.sweep --sweep_file=F` is the way in. Nothing here loads TensorFlow: every
trial is a process of its own.
"""
