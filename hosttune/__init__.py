"""hosttune: discover, plan, tune and validate KVM hosts for GPU guests.

    import hosttune

    host = hosttune.discover("host.tar.gz")  # or discover(): this machine
    intent = hosttune.Intent.from_yaml(text)
    plan = hosttune.plan(host, intent)
    print(hosttune.domain_xml(plan, "guest"))
    hosttune.apply(plan)  # as root, on the host itself
    print(hosttune.validate().verdict)
    hosttune.revert()

Every value is immutable. A `Place` is a text or a `pathlib.Path`. Sizes are in bytes, CPU lists texts such as
"0-3,8", PCI addresses texts such as "0000:41:00.0", None is unknown. An error is a `HosttuneError` with `what`, `where`
and `hint`: BadInput for what cannot be read or makes no sense, Refused for what a guard refuses.

Importing the package imports nothing else: each function imports what it needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from hosttune.errors import BadInput, HosttuneError, Refused
    from hosttune.machine.system import System
    from hosttune.model.host import Host
    from hosttune.model.intent import Intent
    from hosttune.model.plan import Plan
    from hosttune.model.result import Result
    from hosttune.model.validation import Validation

__version__ = "0.1.0"

Place: TypeAlias = str | os.PathLike[str]
"""A file or a directory, as a text or a `pathlib.Path`."""

__all__ = [
    "BadInput",
    "Host",
    "HosttuneError",
    "Intent",
    "Plan",
    "Refused",
    "Result",
    "Validation",
    "__version__",
    "apply",
    "capture",
    "discover",
    "domain_xml",
    "plan",
    "recover",
    "revert",
    "status",
    "validate",
]


def discover(root: Place | None = None) -> Host:
    """Discover a host: its CPUs, memory, PCI functions, GPUs, guests, and what could not be read (`problems`).

    Changes nothing. What the kernel refused or what sources disagree on is a problem in the document, not an error.

    Parameters:
        root: a captured host, as a directory or a tar archive (`capture` writes one); None: this machine.

    Raises:
        BadInput: the capture cannot be read.

    Example:
        >>> host = hosttune.discover("examples/hgx-h200-8.tar.xz")
        >>> sum(gpu.vendor == "nvidia" for gpu in host.gpus), len(host.numa_nodes)
        (8, 2)
    """
    from hosttune.gpu import begin
    from hosttune.machine.reader import Reader

    reader = Reader(_system(root))
    begin(reader)  # before the other rooms are imported: a maker's library takes long to answer
    from hosttune.discovery import read

    if reader.system.captured and not reader.system.scratch:
        return read(reader)
    from hosttune.transaction.site import site_of

    return site_of(reader.system).with_force(read(reader))


def capture(path: Place, root: Place | None = None, *, say: Callable[[str], None] = lambda text: None) -> Host:
    """Write a capture of a host: all that discovery and validation read, without what identifies the machine.

    `discover` and the other functions take it as `root` and find the same host. Only its owner may read the file; look
    through it before you give it to others (`tar tzf`).

    Parameters:
        path: the file to write (tar.gz); it must not exist yet.
        root: a captured host to capture again; None: this machine.
        say: gets a line for each recorded answer that is left out or cut.

    Returns:
        The host document that the capture was made from, with nothing replaced in it.

    Raises:
        BadInput: the file exists or cannot be written. Nothing is left behind then.

    Example:
        >>> captured = hosttune.capture("host.tar.gz", "examples/hgx-h200-8.tar.xz")
        >>> hosttune.discover("host.tar.gz").gpus[0].address == captured.gpus[0].address
        True
    """
    from hosttune.discovery.recording import write_capture

    return write_capture(_system(root), os.fspath(path), say)


def plan(host: Host, intent: Intent) -> Plan:
    """Decide which CPUs, memory and devices each guest gets, and which settings the host needs for them.

    Pure: reads and changes nothing, and the same host and intent always give the same plan.

    Parameters:
        host: of `discover`, or `Host.from_json`.
        intent: of `Intent.from_yaml` or `Intent.from_json`. Memory is in bytes or a text with KiB, MiB, GiB, TiB.

    Returns:
        The plan. A guest that does not fit is in `unplaced`, with the reasons; that is not an error. `expected` has
        what guests with GPUs can reach, where a source tells it.

    Raises:
        BadInput: the intent contradicts itself, or names a device that the host does not have.

    Example:
        >>> intent = hosttune.Intent.from_yaml("version: 1\\nguests: [{name: train, gpus: ['0000:41:00.0']}]")
        >>> plan = hosttune.plan(host, intent)
        >>> plan.guests[0].name, len(plan.guests[0].vcpu_pins), plan.unplaced
        ('train', 22, ())
    """
    from hosttune.planning import plan as decide
    from hosttune.predicting.expecting import with_expectations

    return with_expectations(decide(host, intent), host)


def domain_xml(plan: Plan, name: str) -> str:
    """The libvirt domain XML of one planned guest.

    Parameters:
        plan: of `plan`, or `Plan.from_json`.
        name: of a guest in `plan.guests`.

    Raises:
        BadInput: the plan has no such guest.

    Example:
        >>> print(hosttune.domain_xml(plan, "train").splitlines()[0])
        <domain type='kvm'>
    """
    from hosttune.domain.writer import domain_xml as write

    return write(plan, name)


def apply(
    plan: Plan | Intent | None = None,
    root: Place | None = None,
    *,
    dry_run: bool = False,
    guests: bool = True,
    start: bool = False,
    disrupt: Collection[str] = (),
    confirm: Callable[[Sequence[str]], bool] = lambda lines: True,
    say: Callable[[str], None] = lambda text: None,
) -> Result:
    """Make a machine match a plan. Each write is read back; where one fails, everything is put back as it was.

    Needs root. Never reboots. What was applied before stays in force; `revert` takes all of it back.

    Parameters:
        plan: what to apply. An intent: the plan in force or saved for it, else a new one. None: the saved plan. A plan
            made from a capture names no machine and is refused: give its intent.
        root: a scratch root, which is written in place of the machine; a capture can only be rehearsed (`dry_run`).
        dry_run: write nothing; the result lists every write in `writes`.
        guests: define the plan's guests; False: host settings only.
        start: start the guests when everything is in place.
        disrupt: GPUs (addresses) that may be reset, and running guests (names) that may be redefined.
        confirm: gets a line for each change just before the first write; False ends the call with nothing written.
        say: gets a line for each step.

    Returns:
        What became of each action, in `entries`. `exit_code` is that of the command: 0, the machine matches the plan;
        1, a step failed and everything was put back; 4, something could not be put back, which a person must correct.

    Raises:
        BadInput: the plan is not one that hosttune makes.
        Incomplete: the plan has guests that found no place.
        Refused: with nothing written: not root, a captured host, a plan of another host or of one that has changed
            since, a device or guest in use, another hosttune at work, an unfinished transaction.
        Declined: `confirm` returned False.
        JournalFailed: the record of the changes cannot be written; without it nothing is changed.

    Example:
        >>> done = hosttune.apply(intent, "scratch", guests=False)
        >>> done.exit_code, done.changed, {entry.outcome for entry in done.entries} <= {"done", "already", "pending"}
        (0, True, True)
    """
    from hosttune.transaction import calls
    from hosttune.transaction.applying import ApplyOptions
    from hosttune.transaction.site import open_site

    return calls.apply(
        open_site(_text(root)),
        lambda: plan,
        ApplyOptions(guests=guests, start=start, disrupt=frozenset(disrupt)),
        confirm=lambda todo: confirm(calls.change_lines(todo)),
        say=say,
        dry_run=dry_run,
    )


def status(root: Place | None = None) -> Result:
    """What is applied on a machine, what has drifted from it, what waits for a reboot. Changes nothing.

    Parameters:
        root: a scratch root or a capture; None: this machine.

    Returns:
        The settings in force in `entries`, changed ones in `drift`. `exit_code` is 1 where something has drifted, was
        left alone by a revert, or is unfinished, or where nothing can be known (`state_known`: a capture keeps no
        state, and only root can read what root has applied); else 0.

    Raises:
        Refused: a journal cannot be read.

    Example:
        >>> hosttune.status("scratch").drift
        ()
    """
    from hosttune.handover import notes
    from hosttune.transaction.site import open_site

    return notes.status(open_site(_text(root)))


def revert(
    root: Place | None = None,
    *,
    force: bool = False,
    dry_run: bool = False,
    confirm: Callable[[Sequence[str]], bool] = lambda lines: True,
    say: Callable[[str], None] = lambda text: None,
) -> Result:
    """Put everything back to what it was before hosttune changed it: all that is in force, in one transaction.

    Parameters:
        root: a scratch root; None: this machine.
        force: also restore settings that something else has changed since.
        dry_run: write nothing; the result has what would be restored.
        confirm: gets a line for each setting just before the first write; False ends the call with nothing written.
        say: gets a line for each step.

    Returns:
        What became of each action. `exit_code`: 0, everything is at its original; 1, something that others have changed
        since was left alone; 4, something could not be put back, which a person must correct.

    Raises:
        Refused: with nothing written: not root, a captured host, an unfinished transaction (see `recover`), a running
            guest that still uses what would be taken back.
        Declined: `confirm` returned False.

    Example:
        >>> hosttune.revert("scratch").exit_code, hosttune.status("scratch").entries
        (0, ())
    """
    from hosttune.transaction import calls
    from hosttune.transaction.site import open_site

    return calls.revert(open_site(_text(root)), say, force=force, dry_run=dry_run, confirm=confirm)


def recover(
    root: Place | None = None,
    *,
    force: bool = False,
    disrupt: Collection[str] = (),
    say: Callable[[str], None] = lambda text: None,
) -> Result:
    """Take back what an apply or a revert that was interrupted (a crash, a power cut) had done.

    Parameters:
        root: a scratch root; None: this machine.
        force: also restore settings that something else has changed since.
        disrupt: running guests (names) that the interrupted apply had started and that may be ended.
        say: gets a line for each step.

    Returns:
        As `revert`; without an unfinished transaction no entries and 0.

    Raises:
        Refused: as `revert`.

    Example:
        >>> hosttune.recover("scratch").entries
        ()
    """
    from hosttune.transaction import calls
    from hosttune.transaction.site import open_site

    return calls.recover(open_site(_text(root)), say, force=force, disrupt=disrupt)


def validate(
    root: Place | Host | None = None,
    *,
    level: int = 0,
    guest: bool = False,
    against: Validation | None = None,
    expect: Host | Plan | Validation | None = None,
    duration: float | None = None,
    scratch: str | None = None,
    peers: Collection[str] = (),
    floors: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Validation:
    """Check that a host is fit for a tenant, and measure it. Changes no setting.

    A validation of this machine is kept in the state directory, where root asks or it has measured: a later one expects
    the same devices and compares its figures.

    Parameters:
        root: a captured host; or a host document, of which less can be known; None: this machine.
        level: 0 checks; 1 also quick benchmarks (about a minute); 2 full benchmarks; 3 a burn-in. Above 0 GPUs are
            loaded, on this machine only.
        guest: this machine is a guest.
        against: an earlier validation; what is worse than in it is in `worse`.
        expect: devices of this document must be here.
        duration: seconds of the burn-in of level 3 (300).
        scratch: directory in which storage is measured; nothing else is written.
        peers: hosts to which the network is measured.
        floors: text of a TOML file with a fleet's own floors, in the units of their metrics (docs/benchmarks.md).
        say: gets a line for each measurement, and what a person should know besides.

    Returns:
        One result for each check and subject. `verdict` is the worst: fail, unknown, warn or pass. What could not be
        read is unknown, never a pass.

    Raises:
        BadInput: a capture or floors cannot be read, or an option has no use at this level.
        Refused: a level above 0 for a captured host, or for a GPU that is in use.

    Example:
        >>> validation = hosttune.validate("examples/hgx-h200-8.tar.xz")
        >>> validation.verdict, [row.outcome for row in validation.results if row.check == "pcie-link"][:2]
        ('warn', ['pass', 'pass'])
    """
    from hosttune.rules.checks.expected import of_value
    from hosttune.validating import ValidationRequest
    from hosttune.validating import validate as check

    request = ValidationRequest(
        level=level,
        guest=guest,
        against=against,
        expect=of_value(expect) if expect is not None else None,
        duration=duration,
        scratch=scratch,
        peers=tuple(peers),
        floors=floors,
    )
    place = _system(root) if root is None or isinstance(root, str | os.PathLike) else root
    return check(place, request, say=say, tell=say).validation


def _system(root: Place | None) -> System:
    from hosttune.machine.archive import open_system

    return open_system(_text(root))


def _text(root: Place | None) -> str | None:
    return None if root is None else os.fspath(root)


def __getattr__(name: str) -> object:
    errors = dict.fromkeys(("BadInput", "HosttuneError", "Refused"), "errors")
    documents = {kind: f"model.{kind.lower()}" for kind in ("Host", "Intent", "Plan", "Result", "Validation")}
    home = (errors | documents).get(name)
    if home is None:
        raise AttributeError(f"module 'hosttune' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"hosttune.{home}"), name)
