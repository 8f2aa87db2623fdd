"""A chosen placement, written down as a planned guest. Pure."""
