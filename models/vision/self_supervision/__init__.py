"""Learning features without labels."""
