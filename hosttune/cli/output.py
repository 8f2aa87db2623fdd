"""What is written, and where: documents on stdout, a line or an error block on stderr."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from hosttune.errors import BadInput, HosttuneError
from hosttune.state import drop

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 110  # columns of text that does not go to a terminal
MOST_TEXT = 4000  # characters of one part of an error block: an argument or a document may be of any length


class ReaderGone(Exception):
    """Whoever read our output has seen enough (`| head`): no error, but nothing more may be written."""


def console(output: TextIO) -> Console:
    """A console that draws for `output` (its encoding, width and colours) without writing there: see `emit_page`.

    rich respects NO_COLOR and COLUMNS, and sends no colours into a pipe.
    """
    from rich.console import Console

    width = None if output.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    sheet = io.TextIOWrapper(io.BytesIO(), encoding=output.encoding or "utf-8")
    terminal = True if output.isatty() else None
    return Console(file=sheet, force_terminal=terminal, width=width, highlight=False, markup=False, emoji=False)


def emit(text: str) -> None:
    """A document on stdout, at once. Raises ReaderGone, and BadInput for an output that cannot be written."""
    output = standard_output()
    try:
        output.write(text if text.endswith("\n") else text + "\n")
        output.flush()
    except BrokenPipeError as error:
        raise ReaderGone from error
    except OSError as error:
        drop(output)
        raise unwritable(error.strerror) from error


def emit_page(print_document: Callable[[Console], None]) -> None:
    """Text on stdout, styled as stdout takes it; put together first, so that one place meets a failing stdout."""
    page = console(standard_output())
    with page.capture() as captured:
        print_document(page)
    emit(captured.get())


def standard_output() -> TextIO:
    """stdout. Raises BadInput where it is closed (`>&-`), for which Python has None."""
    if sys.stdout is None:
        raise unwritable("standard output is closed")
    return sys.stdout


def unwritable(why: str | None) -> BadInput:
    """The error of an output that cannot be written."""
    return BadInput(f"cannot write the output: {why}", where="standard output", hint="write it somewhere else")


def tell(text: str) -> None:
    """A line on stderr. Where stderr itself cannot be written nothing more can be told: the exit code remains."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except OSError:
        drop(sys.stderr)


def say(error: HosttuneError) -> None:
    """One block: what, where, what to do."""
    tell(f"error: {shown(error.what)}\nwhere: {shown(error.where)}\n   do: {shown(error.hint)}")


def shown(text: str) -> str:
    """Text from anywhere, safe for a terminal and of bounded length: the middle goes, both ends say more."""
    half = MOST_TEXT // 2
    cut = text if len(text) <= MOST_TEXT else f"{text[:half]} ... {text[-half:]}"
    return "".join(character if character.isprintable() or character == "\n" else "?" for character in cut)
