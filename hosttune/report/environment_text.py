"""A judged environment as text: a line for each variable, with the reason and the source below."""

from __future__ import annotations

from hosttune.model.environment import VERDICTS, EnvironmentLine, JudgedEnvironment


def environment_text(found: JudgedEnvironment, where: str) -> str:
    """Return the counts of the verdicts, and each line in the file's order."""
    counts = {verdict: sum(one.verdict == verdict for one in found.lines) for verdict in VERDICTS}
    words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    head = f"{where}: {words or 'no variable is set'}"
    return "\n".join((head, *(text for one in found.lines for text in _line(one))))


def _line(one: EnvironmentLine) -> list[str]:
    said = one.value if one.name is None else one.name if one.value is None else f"{one.name}={one.value}"
    lines = [f"{one.verdict:8} line {one.line}: {said}", f"         {one.why}"]
    return [*lines, f"         source: {one.source}"] if one.source else lines
