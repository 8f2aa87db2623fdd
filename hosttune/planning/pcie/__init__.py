"""The PCIe tree of a guest, and the MMIO window that its firmware must open. Pure."""
