"""What is to be done on the host for the guests, and what an operator should know of it. Pure."""
