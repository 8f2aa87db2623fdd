"""The host as a picture: pure layout (what is where), apart from drawing (`hosttune.report.svg`).

`scene` says what is shown, `shapes` and `metrics` what a picture is made of; `cpus`, `memory`, `devices`, `tree` and
`nodes` lay out the parts of a node, `fabric` the links between GPUs, `panels` what stands around the nodes, and
`layout` puts it all together. Sizes are user units of the viewBox, about one pixel on a desk screen.
"""
