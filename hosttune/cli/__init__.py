"""The command line: parse, one call, render, exit code.

`process` runs one command and makes an exit code of every outcome; `commands` names the commands; each command's
module is imported when that command is called, and what is heavy by the function that needs it; `output` writes.
`quick` answers the one call that machines make most, without click.
"""

from __future__ import annotations

from hosttune.cli.process import main, run

__all__ = ["main", "run"]
