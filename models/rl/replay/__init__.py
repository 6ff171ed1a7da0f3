"""The replay buffer: what it stores, what it draws, and how fast it is used."""
