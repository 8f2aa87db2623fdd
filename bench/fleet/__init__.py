"""`make bench-fleet`: what a fleet costs. See bench/README.md."""
