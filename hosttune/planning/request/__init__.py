"""What a guest asks for: the devices that it may have, and what guests compete for. Pure."""
