"""Models of environments that an agent learns, and imagines in."""
