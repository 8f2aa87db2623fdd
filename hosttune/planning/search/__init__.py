"""Which placements of all guests are best: candidates, bounds, order of preference, branch and bound. Pure."""
