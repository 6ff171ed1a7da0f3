"""Operations across replicas: what a step calls, and how its tensors travel."""
