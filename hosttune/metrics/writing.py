"""The text format of Prometheus: one HELP and one TYPE line a name, then its samples, without timestamps.

The textfile collector of node_exporter drops a whole file for a sample with a timestamp and for a missing line end at
its end. https://prometheus.io/docs/instrumenting/exposition_formats/#text-format-details
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import os
import re
import stat
from collections.abc import Iterable, Mapping
from typing import Literal

from hosttune.errors import BadInput
from hosttune.machine.files import names_ending, read_start, remove_abandoned, sync_folder, write_whole
from hosttune.model.text import visible
from hosttune.model.values import Closed

MOST_LABEL = 120  # characters of a label's value; a longer one is cut, and ends in a digest of all of it
_KEPT = 100


class Family(Closed, frozen=True, kw_only=True):
    """One metric, declared once. `help` is one sentence; `labels` are the names of its labels, in order."""

    name: str
    kind: Literal["gauge", "counter"] = "gauge"
    help: str
    labels: tuple[str, ...] = ()


class Point(Closed, frozen=True, kw_only=True):
    """One sample of a family: a value for each of its labels. `value` None is unknown, and is written as NaN."""

    labels: Mapping[str, str] = {}
    value: float | None = None

    MAPPINGS = ("labels",)


Group = tuple[Family, tuple[Point, ...]]


def written(groups: Iterable[Group]) -> str:
    """Return the text of these groups. Groups of one family are put together; of equal samples the first is kept.

    Raises ValueError for two different families of one name, and for labels that the family does not declare.
    """
    families: dict[str, Family] = {}
    lines: dict[str, dict[str, str]] = {}
    for family, points in groups:
        if families.setdefault(family.name, family) != family:
            raise ValueError(f"two declarations of {family.name}")
        samples = lines.setdefault(family.name, {})
        for point in points:
            if set(point.labels) != set(family.labels):
                raise ValueError(f"{family.name} has the labels {family.labels}, not {tuple(point.labels)}")
            quoted = (f'{name}="{_quoted(label_value(point.labels[name]))}"' for name in family.labels)
            samples.setdefault("{" + ",".join(quoted) + "}" if point.labels else "", number(point.value))
    text = []
    for name, samples in lines.items():
        if samples:
            text.append(f"# HELP {name} {_escaped(families[name].help)}\n# TYPE {name} {families[name].kind}\n")
            text += [f"{name}{labels} {value}\n" for labels, value in samples.items()]
    return "".join(text)


def number(value: float | None) -> str:
    """Return a number as the format writes it; None is NaN."""
    if value is None or math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1 << 53 else repr(float(value))


def label_value(text: str) -> str:
    """Return a text as a label's value: without characters that act on a terminal, and of at most MOST_LABEL."""
    shown = visible(text)
    if len(shown) <= MOST_LABEL:
        return shown
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return f"{shown[:_KEPT]}…{digest[:8]}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')


# --- the textfile ----------------------------------------------------------------------------------------------
# Writes the file that node_exporter's textfile collector reads, whole or not at all.
# Traps of the collector (tried with node_exporter 1.5.0): it reads only names that end in ".prom"; it runs as another
# user, so the file must be readable by all; the same metric in two files makes one of them disappear without an
# error.

MODE = 0o644
SUFFIX = ".prom"
_OURS = b"# HELP hosttune_"
_SAMPLE = re.compile(rb"^hosttune_", re.MULTILINE)
_MOST_READ = 1 << 20  # bytes of another file of the folder
_MOST_FILES = 200
_FOLDER = "name a file in the folder of node_exporter's --collector.textfile.directory (docs/monitoring.md)"


def check_textfile(path: str) -> None:
    """Refuse a path that cannot be written, or that is not hosttune's to write; writes nothing. Raises BadInput."""
    folder = os.path.dirname(os.path.abspath(path))
    if not path.endswith(SUFFIX) or os.path.basename(path) == SUFFIX:
        raise BadInput(
            "the textfile collector reads only files that end in .prom", where=path, hint="name it NAME.prom"
        )
    if not os.path.isdir(folder):
        what = "not a folder" if os.path.lexists(folder) else "no such folder"
        raise BadInput(f"cannot write {path}: {what}", where=folder, hint=_FOLDER)
    try:
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        _refuse_other(path)
        _refuse_second(folder, os.path.basename(path))
    except OSError as error:
        raise _unwritable(path, error) from error


def write_textfile(path: str, text: str) -> None:
    """Write the file with mode 0644: a temporary file beside it, synced, then renamed.

    The collector does not read the temporary file: its name does not end in .prom. On failure the file that was there
    stays as it was, and no temporary file is left. Raises BadInput.
    """
    check_textfile(path)
    try:
        remove_abandoned(os.path.dirname(os.path.abspath(path)), os.path.basename(path))
        write_whole(path, text.encode(), MODE)
    except OSError as error:
        raise _unwritable(path, error) from error
    with contextlib.suppress(OSError):  # it is written; only whether its new name survives a power cut is open
        sync_folder(os.path.dirname(os.path.abspath(path)))


def _refuse_other(path: str) -> None:
    """Refuse a path that has something else: a rename would replace it."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    what = None
    if not stat.S_ISREG(status.st_mode):
        what = "there is something else than a file"
    elif status.st_size and not read_start(path, len(_OURS)).startswith(_OURS):
        what = "there is a file that hosttune has not written"
    if what is not None:
        raise BadInput(f"cannot write {path}: {what}", where=path, hint="give another name, or remove what is there")


def _refuse_second(folder: str, name: str) -> None:
    """Refuse if another file of the folder has hosttune's metrics: one of the two would not be read."""
    others = [one for one in names_ending(folder, SUFFIX) if one != name]
    for other in others[:_MOST_FILES]:
        path = os.path.join(folder, other)
        with contextlib.suppress(OSError):
            if _SAMPLE.search(read_start(path, _MOST_READ)):
                what = f"{path} has hosttune's metrics already; the collector would lose one of the two files"
                raise BadInput(what, where=path, hint=f"write to that file, or remove it: rm {path}")


def _unwritable(path: str, error: OSError) -> BadInput:
    hints = {
        errno.EACCES: "run it as root, or as the owner of the folder",
        errno.EPERM: "run it as root, or as the owner of the folder",
        errno.EROFS: "the file system is read-only: " + _FOLDER,
        errno.ENOSPC: "free space on that disk; the earlier file stays, and its metrics get old",
        errno.EDQUOT: "free space on that disk; the earlier file stays, and its metrics get old",
    }
    return BadInput(f"cannot write {path}: {error.strerror}", where=path, hint=hints.get(error.errno or 0, _FOLDER))
