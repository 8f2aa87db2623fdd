"""`hosttune discover -o json` without click, whose import costs as much as reading a host of a hundred functions.

Fleets and monitoring ask for this document again and again. A call of exactly this form is answered here; every other
one, and every mistake, is read by the command itself (`documents.discover`), which calls the same function.
"""

from __future__ import annotations

from collections.abc import Sequence


def document(words: Sequence[str]) -> str | None:
    """The host document that the arguments ask for; None where click has to read them. Raises HosttuneError."""
    if words[:1] != ["discover"] or len(words) % 2 == 0:
        return None
    options = dict(zip(words[1::2], words[2::2], strict=True))
    root = options.pop("--root", None)
    if len(words) != 3 + 2 * (root is not None) or (root or "").startswith("-"):
        return None
    if options not in ({"-o": "json"}, {"--output": "json"}):
        return None
    import hosttune

    return hosttune.discover(root).to_json()
