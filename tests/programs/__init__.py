"""Small programs that tests run as users run their experiments."""
