"""The host as a picture: pure layout (what is where), separate from drawing (`hosttune.report.svg`).

`host_view` decides what is shown; `shapes` is what a picture is made of. `cpus`, `tree` and `nodes`
lay out the parts of a node, `fabric` the links between GPUs, `panels` what is around the nodes, and
`layout` combines everything. Sizes are user units of the viewBox, about one pixel on a desktop screen.
"""
