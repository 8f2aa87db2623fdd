"""The resources of a host and the possible size of a guest: cores, pages, devices, sizes. Pure."""
