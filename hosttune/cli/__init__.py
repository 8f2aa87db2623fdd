"""The command line: parse the options, make one call, print the result, set the exit code.

`process` runs one command and turns every outcome into an exit code. `commands` lists the commands. The module of a
command is imported only when that command is called, and slow imports are inside the functions that need them. `output`
writes all output.
"""

from __future__ import annotations

from hosttune.cli.process import main, run

__all__ = ["main", "run"]
