"""The modules of a tree as Python parses them: once a process, however many tests walk them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    """A module's tree, which nobody changes."""
    return ast.parse(path.read_text())
