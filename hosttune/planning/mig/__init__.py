"""MIG instances and vGPUs for guests. Pure."""
