"""From a guest to libvirt XML and back: a plan is written as XML and read back.

Above the GPU makers and below planning, which decides all numbers.
"""
