"""A look at images before training: what there is, and what may be wrong with it."""
