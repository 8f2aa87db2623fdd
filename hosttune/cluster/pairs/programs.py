"""How the programs of an end are run: each ends by its own time limit, whoever dies."""

from __future__ import annotations

from collections.abc import Callable

Run = Callable[[tuple[str, ...], float], str]  # a command and its time limit in seconds → stdout, or CommandFailed
KILL_SECONDS = 2  # after its time limit, if a program does not end


def bounded(limit: int, *words: str) -> tuple[str, ...]:
    """Return the command under `timeout`. Its errors stand behind its output, so that neither hides the other."""
    return ("timeout", "-k", str(KILL_SECONDS), str(limit), "sh", "-c", 'exec "$@" 2>&1', "sh", *words)
