"""System → Host: reads CPUs, memory, PCI, devices, platform and guests. Changes nothing."""
