"""Penalties on a discriminator, each as its paper describes it, set in gin: `[@r1(), @r2()]`."""
