"""Penalties on a discriminator, each as its paper describes it, made by gin: `[@r1(), @r2()]`."""
