"""Metrics: what a validation found, as text for Prometheus (node_exporter's textfile collector reads it). Pure, except
`writing.write_textfile`, which writes the file.

`families` declares each metric once: name, help and labels. `hardware` makes the series of the evidence,
`exposition` those of the validation and of what hosttune manages; it puts all together and keeps them within
`MOST_SERIES`. `writing` knows the text format. What is unknown has the value NaN, or a label value of its own; it never
looks like a good value.

Text format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from hosttune.metrics.exposition import MOST_SERIES, CommandRun, Observed, exposition
from hosttune.metrics.writing import Family, Point, check_textfile, write_textfile

__all__ = ["MOST_SERIES", "CommandRun", "Family", "Observed", "Point", "check_textfile", "exposition", "write_textfile"]
