"""The actions on the host that guests need, and findings about the host. Pure."""
