"""Data sets of recorded episodes, and agents that learn from them."""
