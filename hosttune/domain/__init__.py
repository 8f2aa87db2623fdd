"""From a guest to libvirt XML and back: a plan is written as XML and read back.

Above the GPU makers and below planning, which decides all numbers. `writer` writes, `reader` reads, `compare` compares
two guests, `update` writes parts of one into XML that is there; discovery needs the reader alone, so this package
imports none of them. jinja2 and lxml are imported inside the functions that use them, for the same reason.
"""
