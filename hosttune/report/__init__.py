"""Documents → text and pictures for people."""
