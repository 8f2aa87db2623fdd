"""All output of the command line: documents go to stdout, messages and error blocks go to stderr."""

from __future__ import annotations

import contextlib
import select
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TextIO, TypeVar

from hosttune.errors import BadInput, HosttuneError, Refused
from hosttune.machine.files import drop

if TYPE_CHECKING:
    import click

    from hosttune.report.blocks import Report


D = TypeVar("D")
FORMATS = ("text", "json", "md", "html")
QUIET, NORMAL, VERBOSE = range(3)
MOST_TEXT = 4000  # most characters of one part of an error block: arguments and documents may have any length


def emit(text: str) -> None:
    """Write a document to stdout and flush it. Raises BadInput if stdout cannot be written.

    If the reader has closed the pipe (`| head`), the rest is dropped. This is not an error: the exit code stays that of
    the command.
    """
    output = standard_output()
    try:
        output.write(text if text.endswith("\n") else text + "\n")
        output.flush()
    except BrokenPipeError:
        drop(output)
    except OSError as error:
        drop(output)
        raise unwritable(error.strerror) from error


def emit_report(
    document: D, output: str, build: Callable[[D], Report], only: Mapping[str, Callable[[], str]] | None = None
) -> None:
    """Write a document, or the report that `build` makes of it in another format; `only`: formats of this document
    alone. Raises BadInput.
    """
    emit(report_text(document, output, build, only))


def report_text(
    document: D, output: str, build: Callable[[D], Report], only: Mapping[str, Callable[[], str]] | None = None
) -> str:
    """Return what `emit_report` writes. Raises BadInput."""
    from hosttune.model.values import to_json

    own = {"json": lambda: to_json(document), **(only or {})}
    if output in own:
        return own[output]()
    from hosttune.report.draw import DRAWERS, drawn  # here: JSON is not drawn

    if output not in DRAWERS:
        raise BadInput(f"this report has no format {output}", where="--output", hint=f"one of {', '.join(FORMATS)}")
    return drawn(build(document), output)


@contextlib.contextmanager
def exiting(context: click.Context, code: int) -> Iterator[None]:
    """Print inside, then exit with `code`. If the output cannot be written, only code 0 becomes another."""
    try:
        yield
    except BadInput as error:
        if code == 0:
            raise
        say(error)
    context.exit(code)


def standard_output() -> TextIO:
    """Return stdout. Raises BadInput if it is closed (`>&-`): sys.stdout is None then."""
    if sys.stdout is None:
        raise unwritable("standard output is closed")
    return sys.stdout


def unwritable(why: str | None) -> BadInput:
    """Return the error for output that cannot be written."""
    return BadInput(f"cannot write the output: {why}", where="standard output", hint="write it somewhere else")


class Amount:
    """How much this process writes to stderr: QUIET, NORMAL or VERBOSE. Set for each command by `set_amount`."""

    now = NORMAL


def set_amount(*, quiet: bool, verbose: bool) -> None:
    """Set how much is written to stderr. Raises BadInput for both."""
    if quiet and verbose:
        raise BadInput("both --quiet and --verbose", where="command line", hint="give one of the two")
    Amount.now = QUIET if quiet else VERBOSE if verbose else NORMAL


def tell(text: str) -> None:
    """Write a line to stderr for the user's information. --quiet drops it."""
    if Amount.now != QUIET:
        write(text)


def detail(text: str) -> None:
    """Write a line to stderr, made safe for a terminal, if --verbose is given."""
    if Amount.now == VERBOSE:
        write(shown(text))


def write(text: str) -> None:
    """Write a line to stderr: an error, or a question. If stderr cannot be written, the line is dropped."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except OSError:
        drop(sys.stderr)


def agreed(lines: Iterable[str], question: str) -> bool:
    """Write what would be done, and ask. Raises Refused if stdin is not a terminal."""
    for line in lines:
        write(shown(line))
    if sys.stdin is None or not sys.stdin.isatty():
        raise Refused("cannot ask for confirmation: stdin is not a terminal", where="prompt", hint="give --yes")
    # click.confirm is not used: with a prompt on stderr, its input() ignores Ctrl-C (CPython 3.11, no readline).
    sys.stderr.write(f"{question} [y/N]: ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def waiting(yes: bool, terminal: TextIO | None) -> Callable[[str, float], bool] | None:
    """Return the function that shows a person a step to do by hand and waits for the answer; None: nobody is there."""
    if yes or terminal is None or not terminal.isatty():
        return None

    def wait(text: str, seconds: float) -> bool:
        write(shown(text))
        sys.stderr.write(f"is it done? [y/N] (within {seconds / 60:.0f} minutes): ")
        sys.stderr.flush()
        ready, _, _ = select.select([terminal], [], [], seconds)
        return bool(ready) and terminal.readline().strip().lower() in ("y", "yes")

    return wait


def say(error: HosttuneError) -> None:
    """Write an error to stderr as one block: what, where, what to do."""
    lines = (("error", error.what), ("where", error.where.replace("\n", "\\n")), ("do", error.hint))
    write("\n".join(f"{name:>5}: {_indented(shown(text))}" for name, text in lines))


def _indented(text: str) -> str:
    """Return text in which no later line looks like one of the block: a file's name can have a line break."""
    first, *more = text.split("\n")
    likely = ("error:", "where:", "do:")
    return "\n".join([first, *(f"       {line}" if line.lstrip().startswith(likely) else line for line in more)])


def shown(text: str) -> str:
    """Return untrusted text, made safe for a terminal and cut to MOST_TEXT characters.

    The middle is cut out, because the beginning and the end are more useful.
    """
    half = MOST_TEXT // 2
    cut = text if len(text) <= MOST_TEXT else f"{text[:half]} ... {text[-half:]}"
    return "".join(character if character.isprintable() or character == "\n" else "?" for character in cut)
