"""Build a planned guest from its chosen placement. Pure."""
