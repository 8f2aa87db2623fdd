"""A recorded answer of a command-line tool: its text, or the tool's words where it told nothing.

A tool that failed is recorded as {"error": reason}, so that a capture answers as the machine did.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from hosttune.errors import BadInput, CommandFailed
from hosttune.machine.reader import Reader
from hosttune.model.jsontext import recorded_json

_SECONDS = 10.0
_MOST_WORDS = 120  # characters of a tool's error


def unchanged(text: str) -> str:
    """Return the text as it is."""
    return text


def tool_answer(
    reader: Reader, query: str, argv: tuple[str, ...], keep: Callable[[str], str] = unchanged
) -> tuple[str | None, str | None]:
    """Return a tool's text and its error; both None if the answer was not recorded or is damaged.

    `keep` returns the part of the text that is recorded.
    """
    text = reader.query(query, lambda: _ask(reader, argv, keep))
    if text is None or not text.lstrip().startswith("{"):
        return text, None
    try:
        document = recorded_json(text, where=query)
    except BadInput:
        return None, None
    error = document.get("error") if isinstance(document, dict) else None
    return (None, error[:_MOST_WORDS]) if isinstance(error, str) and error else (text, None)


def _ask(reader: Reader, argv: tuple[str, ...], keep: Callable[[str], str]) -> str:
    try:
        return keep(reader.system.run(argv, timeout=_SECONDS))
    except CommandFailed as error:
        lines = error.output.strip().splitlines() or [error.reason]
        return json.dumps({"error": lines[-1] if error.reason.startswith("exit") else error.reason})
