"""The request of a guest: the devices that it may have, and the resources for which guests compete. Pure."""
