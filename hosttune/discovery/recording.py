"""Makes a scrubbed archive of a System. `--root` replays it to the same host document (except for scrubbed values).

A capture has exactly what discovery and validation read. Both run on a `Recording`, which remembers every file,
listing, link and answer, and, for the capture's `manifest`, what was looked for and missing. A name that was listed but
never read becomes an empty directory; readers get nothing from it, as on the machine, where they did not read it.
`EXTRA_FACTS` are recorded for later checks, although nothing needs them yet. `scrub` lists what is replaced.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING

from hosttune.discovery.scrub import Scrub
from hosttune.errors import BadInput, Unreadable
from hosttune.machine import manifest
from hosttune.machine.files import write_whole
from hosttune.machine.reader import Reader
from hosttune.machine.system import COMMANDS, COMPLETE, MAX_LINKS, NODES, UNREADABLE, System, join_link
from hosttune.model import sysfs

if TYPE_CHECKING:
    from hosttune.model.host import Host

EXTRA_FACTS = (
    "/proc/cmdline",
    "/proc/cpuinfo",
    "/proc/interrupts",
    "/proc/meminfo",
    "/proc/modules",
    "/proc/version",
    f"{sysfs.CPUS}/isolated",
    f"{sysfs.CPUS}/nohz_full",
)
# Links whose target depends on the reading process; recorded as directories.
_MAGIC = ("/proc/self", "/proc/thread-self")
_NO_NAME = "no file of this name"  # if even this is proven to be absent, all names of the directory are known
_LONGEST_REASON = 200  # characters of the reason why a file cannot be read
MACHINE_ID = "/etc/machine-id"


class Recording(System):
    """A System that remembers what was read from it, by real path (no links on the way)."""

    def __init__(self, inner: System) -> None:
        self.inner = inner
        self.captured = inner.captured
        self.complete = inner.complete
        self.scratch = inner.scratch
        self.facts = inner.facts
        self.origin = inner.origin
        self.files: dict[str, bytes] = {}
        self.links: dict[str, str] = {}  # real path -> path inside the machine
        self.present: set[str] = set()  # exists; nothing more is known
        self.listed: set[str] = set()  # directories of which every name is known
        self.missing: set[str] = set()  # looked for, and proven to be absent
        self.unreadable: dict[str, str] = {}
        self.answers: dict[str, str] = {}
        self._real: dict[str, str] = {"/": "/"}
        self._asking = False

    def read_bytes(self, path: str) -> bytes | None:
        """See System."""
        with self._refusals_kept(path):
            data = self.inner.read_bytes(path)
        if data is not None and not self._asking:
            self.files[self._resolve(path)] = data
        elif data is None:
            self._miss(path)
        return data

    def list(self, path: str) -> list[str]:
        """See System."""
        with self._refusals_kept(path):
            names = self.inner.list(path)
        if self._asking:
            return names
        if names or self.inner.exists(path):
            real = self._resolve(path)
            self.present.add(real)
            if self.inner.lacks(f"{path.rstrip('/')}/{_NO_NAME}"):  # otherwise a capture that proves nothing
                self.listed.add(real)
            self.present.update(f"{real.rstrip('/')}/{name}" for name in names)
        else:
            self._miss(path)
        return names

    def link(self, path: str) -> str | None:
        """See System."""
        with self._refusals_kept(path):
            target = self.inner.link(path)
        if target is not None and not self._asking:
            self._resolve(path)
        elif target is None:
            self._miss(path)
        return target

    def exists(self, path: str) -> bool:
        """See System."""
        with self._refusals_kept(path):
            there = self.inner.exists(path)
        if not self._asking:
            real = self._resolve(path)
            if there:
                self.present.add(real)
            else:
                self._miss(path)
        return there

    def lacks(self, path: str) -> bool:
        """See System."""
        return self._miss(path) if not self._asking else self.inner.lacks(path)

    def _miss(self, path: str) -> bool:
        """Record a path that was looked for, if it is proven to be absent; return whether it is."""
        if self._asking or not self.inner.lacks(path):
            return False
        parent, _, name = path.rpartition("/")
        self.missing.add(f"{self._resolve(parent or '/').rstrip('/')}/{name}")
        return True

    def query(self, name: str, live: Callable[[], str | None]) -> str | None:
        """See System. Only the answer is recorded, not what is read or asked to get it."""
        within, self._asking = self._asking, True
        try:
            answer = self.inner.query(name, live)
        finally:
            self._asking = within
        if within:
            return answer
        if answer is not None:
            self.answers[name] = answer
        elif not self.inner.captured or self.inner.lacks(COMMANDS + name):
            self.missing.add(COMMANDS + name)
        return answer

    def derive(self, name: str, make: Callable[[], str]) -> str:
        """See System. Only the answer is recorded."""
        self._asking = True
        try:
            self.answers[name] = self.inner.derive(name, make)
        finally:
            self._asking = False
        return self.answers[name]

    def run(self, argv: tuple[str, ...], *, timeout: float = 20.0) -> str:
        """See System."""
        return self.inner.run(argv, timeout=timeout)

    @contextmanager
    def _refusals_kept(self, path: str) -> Iterator[None]:
        try:
            yield
        except Unreadable as error:
            if not self._asking:
                self.unreadable[self._resolve(path)] = error.reason
            raise

    def _resolve(self, path: str, depth: int = 0) -> str:
        """Return the path with every link on it resolved, and record each link."""
        known = self._real.get(path)
        if known is not None:
            return known
        parent, _, name = path.rpartition("/")
        real = f"{self._resolve(parent or '/', depth).rstrip('/')}/{name}"
        target = None if real in _MAGIC or depth > MAX_LINKS else self._target(real)
        if target is not None:
            self.links[real] = target
            real = self._resolve(target, depth + 1)
        self._real[path] = real
        return real

    def _target(self, real: str) -> str | None:
        try:
            return self.inner.link(real)
        except Unreadable:
            return None


Say = Callable[[str], None]


def write_capture(system: System, path: str, say: Say = lambda text: None) -> Host:
    """Write a scrubbed capture of the machine as a tar.gz; return the host document from the same data.

    `say` gets a line for each thing that is left out, because it is not a file of the machine. Raises BadInput if the
    file exists or cannot be written, and for "-"; after a failure nothing is left behind.
    """
    from hosttune.discovery.evidence import gather
    from hosttune.discovery.running import read_running

    if path == "-":
        raise BadInput("not a file name", where=path, hint="give a file name: a capture is not written to stdout")
    if os.path.lexists(path):
        raise _exists(path)
    # Raise BadInput if no file can be made here: before the machine is read, which can take a minute.
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise _unwritable(path, f"no folder {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _unwritable(path, f"no permission to write to {folder}")
    recording = Recording(system)
    host = gather(recording, wait=True).host
    read_running(Reader(recording))  # for the linter
    for fact in EXTRA_FACTS:
        try:
            recording.read_bytes(fact)
        except Unreadable:
            continue  # recorded as unreadable
    entries = list(_entries(recording, Scrub(_key(system), host.hostname), say))
    _write(path, entries)
    for name in _other_answers(system, {name for name, _ in entries}):
        say(f"left out: {COMMANDS}{name}, which hosttune does not read here")
    return host


def _other_answers(system: System, kept: Collection[str]) -> list[str]:
    """Return answers in the root that are not in the capture, because hosttune does not know what they contain."""
    try:
        names = system.list(COMMANDS.rstrip("/")) if system.captured else []
    except Unreadable:
        return []
    return [name for name in names if f"{COMMANDS}{name}"[1:] not in kept]


def _key(system: System) -> str:
    """Return the key for replacements: the machine id, which must stay confidential (machine-id(5))."""
    try:
        return system.read(MACHINE_ID) or "hosttune"
    except Unreadable:
        return "hosttune"


# --- contents of the archive ---------------------------------------------------------------------------------

Entry = tuple[str, bytes | str | None]  # path without the leading "/"; contents, or a link's target, or None: directory


def _entries(recording: Recording, scrub: Scrub, say: Say = lambda text: None) -> Iterator[Entry]:
    """Yield everything recorded, scrubbed, ordered by path; a directory has an entry only if nothing in it has one."""
    from hosttune.discovery.guests import DEFINITION

    entries: dict[str, bytes | str | None] = dict.fromkeys(recording.present)
    entries |= {path: _relative(path, target) for path, target in recording.links.items()}
    for file, data in recording.files.items():
        if not file.startswith(COMMANDS):
            entries[file] = scrub.contents(file, data)
    entries.pop(MACHINE_ID, None)  # used only for the digest, which a capture does not have
    files = {file.removeprefix(COMMANDS): data for file, data in recording.files.items() if file.startswith(COMMANDS)}
    answers = {name: data.decode("utf-8", "replace") for name, data in files.items()} | recording.answers
    for name, answer in answers.items():
        content = _answer(name, answer, scrub)
        if content is None:
            say(f"left out: {COMMANDS}{name}, which is not what hosttune writes there")
            entries.pop(COMMANDS + name, None)
        else:
            entries[COMMANDS + name] = content
        if name.startswith(DEFINITION):
            say(f"of {COMMANDS}{name} only CPUs, memory and host devices are kept")
    for path in [path for path, entry in entries.items() if f"{path}/".startswith(COMMANDS) and entry is None]:
        del entries[path]  # listed there, but not read
    if recording.unreadable:
        lines = sorted(
            f"{scrub.path(path)}\t{scrub.words(' '.join(reason.split()))[:_LONGEST_REASON]}\n"
            for path, reason in recording.unreadable.items()
        )
        entries[UNREADABLE] = "".join(lines).encode()
    if recording.complete:
        entries[COMPLETE] = _manifest(recording, scrub, entries).encode()
    for path in sorted(entries):
        entry = entries[path]
        if path != "/":
            yield scrub.path(path)[1:], scrub.path(entry) if isinstance(entry, str) else entry


def _manifest(recording: Recording, scrub: Scrub, entries: Mapping[str, bytes | str | None]) -> str:
    """Return the manifest: what the capture has, and what was missing, so that a later loss or change is detected."""
    from hosttune.discovery.evidence import FACTS

    present = (scrub.path(path) for path in (*entries, COMPLETE))
    listed, missing = ([scrub.path(path) for path in paths] for paths in (recording.listed, recording.missing))
    links = (scrub.path(path) for path, entry in entries.items() if isinstance(entry, str))
    digests = {
        scrub.path(path): sha256(entry).hexdigest() for path, entry in entries.items() if isinstance(entry, bytes)
    }
    facts = FACTS if recording.facts is None else recording.facts
    return manifest.seal(manifest.write(present, listed, missing, links, facts), digests)


def _answer(name: str, answer: str, scrub: Scrub) -> bytes | None:
    """Return a recorded answer, scrubbed, even if hosttune did not write it; None for one that is left out.

    Of libvirt's facts and definitions only what discovery needs is kept; of the kernel log only lines that are events.
    """
    from hosttune.discovery import strip_nodes
    from hosttune.discovery.guests import DEFINITION, QUERY
    from hosttune.discovery.kernellog import QUERY as KERNEL_LOG
    from hosttune.discovery.kernellog import strip_log
    from hosttune.discovery.portdetails import MODULE, strip_module
    from hosttune.discovery.portinfo import PORT_INFO, strip_port_info
    from hosttune.discovery.roce import DEVINFO, strip_devinfo
    from hosttune.discovery.running import RUNNING, strip_running
    from hosttune.discovery.scrub import strip_facts, strip_xml

    text: str | None = answer
    if name == QUERY:
        text = strip_facts(answer, scrub.node)
    elif name == RUNNING:
        text = strip_running(answer, scrub.node, scrub.words)
    elif name.startswith(DEFINITION):
        text = strip_xml(answer, scrub.node)
    elif name == NODES:
        text = strip_nodes(answer, scrub.node)
    elif name == KERNEL_LOG:
        text = strip_log(answer, scrub.words)
    elif name.startswith(MODULE):
        text = strip_module(answer)
    elif name.startswith(DEVINFO):
        text = strip_devinfo(answer)
    elif name.startswith(PORT_INFO):
        text = strip_port_info(answer)
    return None if text is None else scrub.contents(COMMANDS + name, text.encode())


def _relative(path: str, target: str) -> str:
    """Return a link's target as in sysfs (relative), so that the capture can also be unpacked."""
    relative = os.path.relpath(target, os.path.dirname(path))
    return relative if join_link(os.path.dirname(path), relative) == target else target


# --- the file ------------------------------------------------------------------------------------------------


def _write(path: str, entries: list[Entry]) -> None:
    """Write the archive completely or not at all. Raises BadInput."""
    # A tar.gz with fixed owners and times: the same facts give the same bytes.
    import gzip
    import io
    import tarfile

    file = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for name, content in entries:
            member = tarfile.TarInfo(name)
            member.mode = 0o644 if isinstance(content, bytes) else 0o755
            if content is None:
                member.type = tarfile.DIRTYPE
                tar.addfile(member)
            elif isinstance(content, str):
                member.type = tarfile.SYMTYPE
                member.linkname = content
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    packed = file.getvalue()
    try:
        write_whole(path, packed, 0o600, replace=False)  # private: its owner decides who may read it
    except FileExistsError as error:
        raise _exists(path) from error
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from error


def _unwritable(path: str, why: str) -> BadInput:
    return BadInput(f"cannot be written: {why}", where=path, hint="name a file in a directory of yours")


def _exists(path: str) -> BadInput:
    return BadInput("already exists", where=path, hint="name a file that does not exist yet")
