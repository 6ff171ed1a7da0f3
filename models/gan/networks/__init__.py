"""Generators, discriminators and encoders, each as its paper describes it."""
