"""Every regular expression of the product takes a time that grows as its text does, not as the square of it.

What hosttune reads is not trusted, and a log may have 64 MiB. A pattern is tried on newlines, blanks, digits and its
own words, many times over. The usual fault is `^\\s+` with MULTILINE, or `\\S+ x` in a search: each place of a long run
is tried as the beginning, and reads to the run's end. Write `^[ \\t]+`, a bound, or `(?<!\\S)`.
"""

from __future__ import annotations

import ast
import importlib
import re
import re._parser as parser  # type: ignore[import-not-found]
import time
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from trees import nodes_of

import hosttune
from hosttune.assets import read_table
from hosttune.rules.causes.logs import logs

PACKAGE = Path(hosttune.__file__).parent
METHODS = frozenset(("match", "search", "fullmatch", "finditer", "findall", "sub", "split", "subn"))
LENGTHS = (30, 400, 4_000, 12_000, 30_000)
SECONDS = 4e-6  # of CPU for a character; a linear pattern takes a twentieth, a quadratic one twice that for the longest
LINEAR = 4e-7  # of CPU for a character; of 4,000 a quadratic pattern takes twice that, and no other is tried on more
LATIN = "".join(map(chr, range(256)))
RUNS = ("\n", " ", "\t", "0", "a", "x ", "\n ")


class Unknown(str):
    """A part of a pattern that is known only when it is used."""

    def __getattr__(self, name: str) -> Unknown:
        return Unknown("x")

    def __getitem__(self, place: object) -> Unknown:
        return Unknown("x")


class Names(dict[str, Any]):
    """The names of a module; any other one is unknown."""

    def __missing__(self, name: str) -> Any:
        if name in __builtins__:  # type: ignore[operator]  # a dict in every module but __main__
            raise KeyError(name)
        return Unknown("x")


def called(path: Path) -> Iterator[tuple[ast.expr, str, ast.Call]]:
    """(on what, method, call) of each call of a method of patterns."""
    for node in nodes_of(path, ast.Call):
        if isinstance(node.func, ast.Attribute):
            yield node.func.value, node.func.attr, node


def patterns() -> Iterator[tuple[str, re.Pattern[Any], frozenset[str]]]:
    """(place, pattern, how it is used) of each in the package."""
    paths = sorted(PACKAGE.rglob("*.py"))
    used: dict[tuple[Path | None, str], set[str]] = {}
    for path in paths:
        for on, method, _ in called(path):
            if method in METHODS and isinstance(on, ast.Name):
                used.setdefault((path, on.id), set()).add(method)
                used.setdefault((None, on.id), set()).add(method)  # in another module
    for path in paths:
        of_re = [(method, call) for on, method, call in called(path) if isinstance(on, ast.Name) and on.id == "re"]
        if not of_re:
            continue
        names = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        module = importlib.import_module(names)
        targets = {
            id(node.value): node.targets[0].id
            for node in nodes_of(path, ast.Assign)
            if isinstance(node.targets[0], ast.Name)
        }
        others = unnamed(path)
        for method, call in of_re:
            if method not in METHODS | {"compile"}:
                continue
            target = targets.get(id(call), "")
            known = used.get((path, target)) or used.get((None, target)) or others or {"search"}
            how = {method} if method != "compile" else known
            yield f"{names}:{call.lineno}", made(call, module), frozenset(how)
    for log in logs():
        yield f"the sign of {log.name}", re.compile(log.sign), frozenset(("search",))


def unnamed(path: Path) -> set[str]:
    """The methods that a module calls of what is no constant: `pattern.match` of a pattern from a table."""
    return {
        method for on, method, _ in called(path)
        if method in METHODS - {"split"} and not (isinstance(on, ast.Name) and (on.id == "re" or on.id.isupper()))
    }  # fmt: skip


def parts(value: Any) -> Iterator[Any]:
    """What a table holds: a mapping, a list, a value with fields."""
    if isinstance(value, Mapping):
        yield from (*value.keys(), *value.values())
    elif isinstance(value, list | tuple | Set):
        yield from value
    elif is_dataclass(value) and not isinstance(value, type):
        yield from (getattr(value, field.name, None) for field in fields(value))
    elif hasattr(type(value), "__struct_fields__"):
        yield from (getattr(value, name, None) for name in value.__struct_fields__)


def kept() -> Iterator[tuple[str, re.Pattern[Any], frozenset[str]]]:
    """Patterns that are kept in tables: of every module's globals, at any depth, and of the shipped rules."""
    seen: set[int] = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        if path.name in ("__main__.py", "launch.py"):
            continue
        module = importlib.import_module(name)
        how = frozenset(unnamed(path) or {"search"})
        left = [(key, value) for key, value in vars(module).items() if not key.startswith("__")]
        while left:
            key, value = left.pop()
            if id(value) in seen or isinstance(value, ModuleType | str | bytes | int):
                continue
            seen.add(id(value))
            if isinstance(value, re.Pattern):
                yield f"{name}: in {key}", value, how
            left += [(key, part) for part in parts(value)]
    likes = [("", read_table(table)) for table in sorted(PACKAGE.rglob("*.toml"))]
    while likes:
        key, value = likes.pop()
        if key == "like":
            yield f"like = {value!r}", re.compile(value, re.IGNORECASE), frozenset(("fullmatch",))
        elif isinstance(value, dict):
            likes += value.items()
        elif isinstance(value, list):
            likes += [(key, part) for part in value if isinstance(part, dict)]


def made(call: ast.Call, module: ModuleType) -> re.Pattern[Any]:
    """The pattern of a call of `re`, with the flags that are written there."""
    given = (*call.args[1:], *(word.value for word in call.keywords))
    flags = [arg for arg in given if re.fullmatch(r"(?:re\.[A-Z]+[ |]*)+", ast.unparse(arg))]
    values: Mapping[str, Any] = Names(module.__dict__)
    text, *known = [
        eval(compile(ast.Expression(node), "pattern", "eval"), {}, values) for node in (call.args[0], *flags)
    ]
    return re.compile(text if isinstance(text, bytes | re.Pattern) else str(text), sum(known))


def of_set(members: Any, char: str) -> bool:
    """Whether a character is one of a set, as the parser gives it."""
    negated, *rest = members if str(members[0][0]) == "NEGATE" else (None, *members)
    classes: Mapping[str, Callable[[str], bool]] = {
        "DIGIT": str.isdigit,
        "SPACE": str.isspace,
        "WORD": lambda one: one.isalnum() or one == "_",
    }
    is_in = False
    for kind, value in rest:
        if str(kind) == "RANGE":
            is_in |= value[0] <= ord(char) <= value[1]
        elif str(kind) == "CATEGORY":
            name = str(value).removeprefix("CATEGORY_")
            is_in |= classes[name.removeprefix("NOT_")](char) != name.startswith("NOT_")
        else:
            is_in |= value == ord(char)
    return is_in != (negated is not None)


def words(pattern: re.Pattern[Any]) -> str:
    """A text that the pattern describes: first alternatives only, of a set one character, of a repetition one turn."""

    def walk(parsed: Any) -> Iterator[str]:
        for kind, value in parsed:
            name = str(kind)
            if name == "LITERAL":
                yield chr(value)
            elif name == "IN":
                yield next((char for char in "x0 :,." + LATIN if of_set(value, char)), "x")
            elif name in ("ANY", "NOT_LITERAL"):
                yield "y" if value == ord("x") else "x"
            elif name.endswith("_REPEAT"):
                yield from walk(value[2])
            elif name == "SUBPATTERN":
                yield from walk(value[3])
            elif name == "BRANCH":
                yield from walk(value[1][0])

    return "".join(walk(parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE if pattern.flags & 256 else 0)))


def seconds(pattern: re.Pattern[Any], method: str, text: str) -> float:
    data: Any = text.encode("latin-1", "replace") if isinstance(pattern.pattern, bytes) else text
    began = time.process_time()
    if method in ("match", "fullmatch"):
        getattr(pattern, method)(data)
    else:
        for _ in pattern.finditer(data):
            pass
    return time.process_time() - began


def slow(pattern: re.Pattern[Any], how: frozenset[str]) -> str | None:
    """The first kind of text for which the pattern takes too long."""
    own = words(pattern)
    ways = {method if method in ("match", "fullmatch") else "search" for method in how}
    for unit in (*RUNS, *((own, own + "\n", own + " ") if own else ())):
        for method in ways:
            for length in LENGTHS:
                text = (unit * (length // len(unit) + 1))[:length] + "\0"
                most = length * SECONDS + 0.01
                took = seconds(pattern, method, text)
                # A little too long once is the machine's doing.
                if took > 3 * most or (took > most and all(seconds(pattern, method, text) > most for _ in range(2))):
                    return f"{method} of {length:,} characters {unit[:20]!r}…"
                if length >= 4_000 and took < length * LINEAR:
                    break
    return None


def test_no_pattern_takes_a_time_that_is_the_square_of_its_text() -> None:
    found = list(patterns())
    assert len(found) > 400
    tried = {(pattern.pattern, pattern.flags) for _, pattern, _ in found}
    tables = [one for one in kept() if (one[1].pattern, one[1].flags) not in tried]
    assert len(tables) > 30
    found += tables
    faults = [f"{place}: {pattern.pattern!r}: {why}" for place, pattern, how in found if (why := slow(pattern, how))]
    assert faults == [], "\n".join(faults)


@pytest.mark.parametrize(
    ("text", "method"),
    [
        (r"(?m)^\s+GPU0", "search"),
        (r"\S+ severity", "search"),
        (r"[a-z.]*[a-z][a-z.]*", "fullmatch"),
        (r"[0-9]+:", "sub"),
    ],
)
def test_a_quadratic_pattern_is_seen(text: str, method: str) -> None:
    assert slow(re.compile(text), frozenset((method,)))
