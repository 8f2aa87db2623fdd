"""The PCIe tree of a guest, and the window that its firmware must open. Pure."""
