"""The manifest of a capture made by hosttune: which paths existed on the machine, which were looked for and missing,
and a digest of each file.

It is in `.hosttune/capture`, after the line with the format's number. Without it a missing file may never have been
looked for, or may have been lost later; neither proves that the machine has none. One line for each directory:

    DIRECTORY<tab>all|some<tab>NAME/NAME<tab>NAME/NAME<tab>NAME/NAME

The names are: those that existed, then those that were looked for and missing, then which of the first are links (not
in older captures). `all`: the directory was listed, so other names did not exist. A name with a tab or a line break is
left out, so nothing is proven about it.

A line for each directory with files has their digests: a file that was changed later is told by it. Captures of before
have none, and earlier versions of hosttune skip these lines:

    DIRECTORY<tab>sha256<tab>NAME=HEX/NAME=HEX

A line `<tab>facts<tab>NUMBER` says which facts were recorded (`hosttune.discovery.evidence`); without it: the oldest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType

import msgspec

from hosttune.model.values import MAX_ID, grouped, number

FORMAT = "2"
_DIGESTS, _FACTS = "sha256", "facts"


class DirectoryNames(msgspec.Struct, frozen=True):
    """What is known about one directory. `listed`: `present` has all of its names. `links` None: unknown."""

    listed: bool
    present: frozenset[str]
    absent: frozenset[str]
    links: frozenset[str] | None = None


class Manifest:
    """The paths of a capture, by directory."""

    def __init__(
        self, folders: Mapping[str, DirectoryNames], digests: Mapping[str, str] = MappingProxyType({}), facts: int = 0
    ) -> None:
        self._folders = folders
        self._digests = digests
        self.facts = facts

    def __bool__(self) -> bool:
        return bool(self._folders)

    def names(self, path: str) -> frozenset[str]:
        """Return the names that were in a directory, as far as they are known."""
        directory_names = self._folders.get(path)
        return frozenset() if directory_names is None else directory_names.present

    def had(self, path: str) -> bool:
        """Return whether a path existed on the machine."""
        parent, _, name = path.rpartition("/")
        return path == "/" or name in self.names(parent or "/")

    def was_no_link(self, path: str) -> bool:
        """Return whether a path existed and was not a link: a directory with its own line, or a file."""
        parent, _, name = path.rpartition("/")
        known = self._folders.get(parent or "/")
        no_link = known is not None and known.links is not None and name in known.present and name not in known.links
        return path in self._folders or no_link

    def changed(self, path: str, data: bytes) -> bool:
        """Return whether a file's contents are others than when it was captured; False where that is not recorded."""
        digest = self._digests.get(path)
        if digest is None:
            return False
        from hashlib import sha256  # here: it loads OpenSSL, and many captures have no digests

        return sha256(data).hexdigest() != digest

    def lacked(self, path: str) -> bool:
        """Return whether a path did not exist: it was looked for, or its directory was listed."""
        while path != "/":
            parent, _, name = path.rpartition("/")
            parent = parent or "/"
            known = self._folders.get(parent)
            if known is not None and (name in known.absent or (known.listed and name not in known.present)):
                return True
            path = parent
        return False


def write(
    present: Iterable[str], listed: Iterable[str], absent: Iterable[str], links: Iterable[str] = (), facts: int = 0
) -> str:
    """Return the text of a manifest, from absolute paths without links on the way; those of `listed` are directories.

    `links` are those of `present` that are links themselves.
    """
    # Names by directory; the directories themselves are also names of theirs.
    there: dict[str, set[str]] = {}
    for path in present:
        while path != "/":
            parent, _, name = path.rpartition("/")
            parent = parent or "/"
            names = there.setdefault(parent, set())
            if name in names:
                break
            names.add(name)
            path = parent
    missing, linked = (
        grouped((folder or "/", name) for folder, _, name in (path.rpartition("/") for path in paths))
        for paths in (absent, links)
    )
    whole = set(listed)
    lines = [FORMAT, f"\t{_FACTS}\t{facts}"]
    for folder in sorted({*there, *missing, *whole}):
        names, not_there = there.get(folder, set()), set(missing.get(folder, ()))
        if _writable(folder):
            # The directory was listed, but this line cannot contain all of its names.
            word = "all" if folder in whole and all(map(_writable, names)) else "some"
            lists = (
                "/".join(sorted(filter(_writable, part)))
                for part in (names, not_there - names, set(linked.get(folder, ())))
            )
            lines.append("\t".join((folder, word, *lists)))
    return "\n".join(lines) + "\n"


def seal(text: str, digests: Mapping[str, str]) -> str:
    """Return a manifest with these digests, by absolute path, in place of those that it has."""
    rows = ((path.rpartition("/"), digest) for path, digest in sorted(digests.items()) if _writable(path))
    by_folder = grouped((folder or "/", f"{name}={digest}") for (folder, _, name), digest in rows)
    kept = (line for line in text.split("\n")[:-1] if line.split("\t")[1:2] != [_DIGESTS])
    sealed = (f"{folder}\t{_DIGESTS}\t{'/'.join(names)}" for folder, names in by_folder.items())
    return "\n".join((*kept, *sealed, ""))


@lru_cache(maxsize=1)  # a command and `watch` open the same capture again and again
def read(text: str) -> Manifest:
    """Parse a manifest. An older format gives an empty one; invalid lines are left out."""
    lines = text.split("\n")
    if lines[0] != FORMAT:
        return Manifest({})
    folders: dict[str, DirectoryNames] = {}
    digests: dict[str, str] = {}
    facts = 0
    for line in lines[1:-1]:  # an incomplete last line is dropped
        parts = line.split("\t")
        if len(parts) in (4, 5) and parts[1] in ("all", "some"):
            names = (frozenset(filter(None, part.split("/"))) for part in parts[2:])
            folders[parts[0]] = DirectoryNames(parts[1] == "all", *names)
        elif len(parts) == 3 and parts[1] == _DIGESTS:
            at = parts[0].rstrip("/")
            digests.update(
                (f"{at}/{name}", hexed) for name, _, hexed in (p.rpartition("=") for p in parts[2].split("/"))
            )
        elif parts[:2] == ["", _FACTS]:
            facts = number(parts[-1], MAX_ID) or 0
    return Manifest(folders, digests, facts)


def _writable(name: str) -> bool:
    return "\t" not in name and "\n" not in name
