"""The modules of a tree as Python parses them: once a process, however many tests walk them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

Node = TypeVar("Node", bound=ast.AST)


@cache
def tree_of(path: Path) -> ast.Module:
    """A module's tree, which nobody changes."""
    return ast.parse(path.read_text())


@cache
def _nodes(path: Path) -> dict[type[ast.AST], list[ast.AST]]:
    found: dict[type[ast.AST], list[ast.AST]] = {}
    for node in ast.walk(tree_of(path)):
        found.setdefault(type(node), []).append(node)
    return found


def nodes_of(path: Path, kind: type[Node]) -> list[Node]:
    """The nodes of a module's tree that are of one kind."""
    return _nodes(path).get(kind, [])  # type: ignore[return-value]  # a list of that kind


def texts_of(path: Path) -> Iterator[str]:
    """The texts of a module, without docstrings."""
    documentation = {id(node.value) for node in nodes_of(path, ast.Expr)}
    for node in nodes_of(path, ast.Constant):
        if isinstance(node.value, str) and id(node) not in documentation:
            yield node.value
