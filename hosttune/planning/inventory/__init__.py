"""What a host has, and how large a guest may be on it: cores, pages, devices, sizes. Pure."""
