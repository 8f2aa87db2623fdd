"""What a capture of hosttune's says of itself: which paths were on the machine, and which were looked for and were not.

Written into `.hosttune/capture` after the line with the format's number. Without it a missing file may never have been
looked for, or may have been lost since: neither proves that the machine has none. One line a directory:

    DIRECTORY<tab>all|some<tab>NAME/NAME<tab>NAME/NAME<tab>NAME/NAME

the names in it that were there, then those that were looked for and were not, then which of the first are links (older
captures do not say). `all`: the directory was listed, so what is not named was not there. A name with a tab or a line
break is left out: of it nothing is proven.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

FORMAT = "2"


class Names(NamedTuple):
    """What is known of one directory. `listed`: `present` is all that was in it. `links` None: not known."""

    listed: bool
    present: frozenset[str]
    absent: frozenset[str]
    links: frozenset[str] | None = None


class Manifest:
    """The paths of a capture, by directory."""

    def __init__(self, folders: Mapping[str, Names]) -> None:
        self._folders = folders

    def __bool__(self) -> bool:
        return bool(self._folders)

    def names(self, path: str) -> frozenset[str]:
        """The names that were in a directory, as far as they are known."""
        found = self._folders.get(path)
        return frozenset() if found is None else found.present

    def had(self, path: str) -> bool:
        """Whether it was on the machine."""
        parent, _, name = path.rpartition("/")
        return path == "/" or name in self.names(parent or "/")

    def was_no_link(self, path: str) -> bool:
        """Whether it was on the machine and no link: a directory that has a line of its own, or a file."""
        parent, _, name = path.rpartition("/")
        known = self._folders.get(parent or "/")
        told = known is not None and known.links is not None and name in known.present and name not in known.links
        return path in self._folders or told

    def lacked(self, path: str) -> bool:
        """Whether it was looked for, or its directory was listed, and it was not there."""
        while path != "/":
            parent, _, name = path.rpartition("/")
            parent = parent or "/"
            known = self._folders.get(parent)
            if known is not None and (name in known.absent or (known.listed and name not in known.present)):
                return True
            path = parent
        return False


def write(present: Iterable[str], listed: Iterable[str], absent: Iterable[str], links: Iterable[str] = ()) -> str:
    """The text of a manifest: absolute paths without links on the way, those of `listed` are directories.

    `links` are those of `present` that are links themselves.
    """
    there = _by_folder(present)
    missing: dict[str, set[str]] = {}
    for path in absent:
        parent, _, name = path.rpartition("/")
        missing.setdefault(parent or "/", set()).add(name)
    linked: dict[str, set[str]] = {}
    for path in links:
        parent, _, name = path.rpartition("/")
        linked.setdefault(parent or "/", set()).add(name)
    whole = set(listed)
    lines = [FORMAT]
    for folder in sorted({*there, *missing, *whole}):
        names, not_there = there.get(folder, set()), missing.get(folder, set())
        if _writable(folder):
            # A directory with a name that cannot be written was listed, but the line does not say all.
            word = "all" if folder in whole and all(map(_writable, names)) else "some"
            lists = (
                "/".join(sorted(filter(_writable, part))) for part in (names, not_there - names, linked.get(folder, ()))
            )
            lines.append("\t".join((folder, word, *lists)))
    return "\n".join(lines) + "\n"


def read(text: str) -> Manifest:
    """A manifest's text; an empty one for an older format, and without the lines that do not read as such."""
    lines = text.split("\n")
    if lines[0] != FORMAT:
        return Manifest({})
    folders: dict[str, Names] = {}
    for line in lines[1:-1]:  # a last line without its end is cut off
        parts = line.split("\t")
        if len(parts) in (4, 5) and parts[1] in ("all", "some"):
            names = (frozenset(filter(None, part.split("/"))) for part in parts[2:])
            folders[parts[0]] = Names(parts[1] == "all", *names)
    return Manifest(folders)


def _by_folder(paths: Iterable[str]) -> dict[str, set[str]]:
    """Names by directory, with the directories themselves as names of theirs."""
    found: dict[str, set[str]] = {}
    for path in paths:
        while path != "/":
            parent, _, name = path.rpartition("/")
            parent = parent or "/"
            names = found.setdefault(parent, set())
            if name in names:
                break
            names.add(name)
            path = parent
    return found


def _writable(name: str) -> bool:
    return "\t" not in name and "\n" not in name
