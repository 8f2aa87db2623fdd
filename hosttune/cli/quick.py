"""`hosttune discover -o json` without click: its import takes as long as reading a host with 100 PCI functions.

Fleet runs and monitoring request this document often. Only a call of exactly this form is handled here. Every other
call, and every invalid one, goes to the command itself (`documents.discover`), which calls the same function.
"""

from __future__ import annotations

from collections.abc import Sequence


def document(words: Sequence[str]) -> str | None:
    """Return the host document that the arguments request; None if click must parse them. Raises HosttuneError."""
    if words[:1] != ["discover"] or len(words) % 2 == 0:
        return None
    options = dict(zip(words[1::2], words[2::2], strict=True))
    root = options.pop("--root", None)
    if len(words) != 3 + 2 * (root is not None) or root == "" or (root or "").startswith("-"):
        return None
    if options not in ({"-o": "json"}, {"--output": "json"}):
        return None
    import hosttune

    return hosttune.discover(root).to_json()
