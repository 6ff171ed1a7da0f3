"""Environments: made, wrapped, drawn, and run in processes of their own."""
