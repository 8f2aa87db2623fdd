"""Find the best placements of all guests: candidates, bounds, order of preference, branch and bound. Pure."""
