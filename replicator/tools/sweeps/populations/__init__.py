"""Populations: trials that train at the same time, where poor ones copy good ones."""
