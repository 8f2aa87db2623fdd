"""Captured hosts as discovery describes them, each read once a process: a Host is frozen, so tests share it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import hosttune
from hosttune.model.host import Host

HERE = Path(__file__).resolve().parents[1]
EXAMPLE = str(HERE.parent / "examples/hgx-h200-8.tar.xz")
XE9680 = str(HERE / "hosts/derived/xe9680-8xh100-lspci.tar.xz")


@cache
def discovered(archive: str = EXAMPLE) -> Host:
    """The host of a capture: the bundled example, unless another is named."""
    return hosttune.discover(archive)
