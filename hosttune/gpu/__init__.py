"""The seam to the GPU makers: one module a maker, chosen by PCI ids."""
