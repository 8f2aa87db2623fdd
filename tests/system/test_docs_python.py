"""docs/python.md is made from the docstrings of the package's functions, and their examples run."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import applyroots
import pytest
from applyroots import Root

import hosttune
from hosttune.errors import Declined
from hosttune.journal import JournalFailed
from hosttune.transaction.plancheck import Incomplete

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/python.md"
ERRORS = (hosttune.HosttuneError, hosttune.BadInput, hosttune.Refused, Declined, Incomplete, JournalFailed)
SECTIONS = ("Parameters", "Returns", "Raises", "Example")
root = applyroots.root


def functions() -> list[Callable[..., Any]]:
    """The public functions, in the order of the source."""
    found = [getattr(hosttune, name) for name in hosttune.__all__]
    return sorted(filter(inspect.isfunction, found), key=lambda function: function.__code__.co_firstlineno)


def sections(function: Callable[..., Any]) -> dict[str, str]:
    """The docstring, "" for what stands above its sections."""
    parts = re.split(rf"^({'|'.join(SECTIONS)}):\n", inspect.getdoc(function) or "", flags=re.MULTILINE)
    named = dict(zip(parts[1::2], map(textwrap.dedent, parts[2::2]), strict=True))
    return {"": parts[0].strip(), **{name: text.strip("\n") for name, text in named.items()}}


def items(text: str) -> Iterator[tuple[str, str]]:
    """(name, text) of `name: text`, whose further lines are indented."""
    for block in re.split(r"\n(?=\S)", text):
        name, _, rest = block.partition(":")
        yield name, " ".join(rest.split())


def signature(function: Callable[..., Any]) -> str:
    """The head of a function as it stands in the source, without `def`; what is a lambda there as "..."."""
    (head,) = ast.parse(inspect.getsource(function)).body
    assert isinstance(head, ast.FunctionDef)
    args = head.args
    args.defaults = [ast.Constant(...) if isinstance(one, ast.Lambda) else one for one in args.defaults]
    args.kw_defaults = [ast.Constant(...) if isinstance(one, ast.Lambda) else one for one in args.kw_defaults]
    assert head.returns is not None
    arguments, returns = re.sub(r"(?<! )=(?! )", " = ", ast.unparse(head.args)), ast.unparse(head.returns)
    if len(arguments) <= 90:
        return f"hosttune.{head.name}({arguments}) -> {returns}"
    lines = ",\n    ".join(re.split(r", (?=\w+: |\*)", arguments))
    return f"hosttune.{head.name}(\n    {lines},\n) -> {returns}"


def page() -> str:
    """docs/python.md."""
    about, _, rest = (inspect.getdoc(hosttune) or "").partition("\n\n")
    code, _, notes = rest.partition("\n\nEvery value")
    text = [
        "# How is hosttune used from Python?", "",
        "<!-- Made from the docstrings: pytest --regenerate tests/system/test_docs_python.py -->", "",
        about, "", "```python", textwrap.dedent(code).strip(), "```", "", *wrapped(f"Every value{notes}"), "",
        "`help(hosttune.plan)` says what each parameter is and what is raised; here is what a function does and gives.",
    ]  # fmt: skip
    for function in functions():
        found = sections(function)
        text += ["", f"## `{function.__name__}`", "", "```python", signature(function), "```", "", *wrapped(found[""])]
        text += ["", *wrapped(f"Returns: {' '.join(found['Returns'].split())}")] if "Returns" in found else []
        text += ["", "```pycon", found["Example"], "```"]
    return "\n".join(text) + "\n"


def wrapped(text: str) -> Iterator[str]:
    for number, paragraph in enumerate(text.split("\n\n")):
        yield from [""] if number else []
        yield from textwrap.wrap(" ".join(paragraph.split()), 120)


def test_the_page_is_made_from_the_docstrings(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--regenerate"):
        PAGE.write_text(page())
    assert PAGE.read_text() == page()


@pytest.mark.parametrize("function", functions(), ids=lambda function: function.__name__)
def test_a_docstring_names_every_parameter_what_is_raised_and_an_example(function: Callable[..., Any]) -> None:
    found = sections(function)
    assert [name for name, _ in items(found["Parameters"])] == list(inspect.signature(function).parameters)
    assert all(text for _, text in items(found["Parameters"]))
    assert {name for name, _ in items(found["Raises"])} <= {error.__name__ for error in ERRORS}
    assert ">>> " in found["Example"]


def test_the_examples_run(root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the page, with the bundled example and a scratch root beside it."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "scratch").symlink_to(root.path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOSTTUNE_STATE", str(tmp_path / "state"))
    known: dict[str, Any] = {"hosttune": hosttune}
    said: list[str] = []
    tried = 0
    for function in functions():
        text = inspect.getdoc(function) or ""
        test = doctest.DocTestParser().get_doctest(text, known, function.__name__, None, None)
        runner = doctest.DocTestRunner()
        runner.run(test, out=said.append, clear_globs=False)
        known, tried = test.globs, tried + runner.tries
    assert "".join(said) == ""
    assert tried > 12
    assert not (tmp_path / "state").exists()
