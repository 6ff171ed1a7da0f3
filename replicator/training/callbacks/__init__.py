"""What hangs on the training loop: each is an example for callbacks of your own."""
