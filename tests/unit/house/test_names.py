"""One word, one class: what is searched for by its name is found once."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from trees import nodes_of

import hosttune


def test_no_two_classes_have_one_name() -> None:
    files = Path(hosttune.__file__).parent.rglob("*.py")
    names = Counter(node.name.lstrip("_") for file in files for node in nodes_of(file, ast.ClassDef))
    assert names["Guest"] == 1
    assert {name: number for name, number in names.items() if number > 1} == {}
