"""Access to a machine: the interface, this machine, captures, scratch roots, and reading through them."""
