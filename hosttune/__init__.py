"""hosttune: discover, plan, tune and validate KVM hosts for GPU guests.

    import hosttune

    host = hosttune.discover("host.tar.gz")  # or discover(): this machine
    intent = hosttune.Intent.from_yaml(text)
    plan = hosttune.plan(host, intent)
    print(hosttune.domain_xml(plan, "guest"))
    hosttune.apply(plan)  # as root, on the host itself
    print(hosttune.validate().verdict)
    hosttune.revert()

Every value is immutable. A `Place` is a text or a `pathlib.Path`. Where a function takes a document, it takes the
document itself, its plain values (a dict, as of `json.loads`) or the path of its file: JSON, an intent and measured
figures also YAML. The path of a host may also be that of a capture. Sizes are in bytes, CPU lists texts such as
"0-3,8", PCI addresses texts such as "0000:41:00.0", None is unknown. An error is a `HosttuneError` with `what`, `where`
and `hint`: BadInput for what cannot be read or makes no sense, Refused for what a guard refuses.

Importing the package imports nothing else: each function imports what it needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from hosttune.errors import BadInput, HosttuneError, Refused
    from hosttune.handover.running import Handed
    from hosttune.machine.system import System
    from hosttune.model.diagnosis import Diagnosis, Doubt
    from hosttune.model.fleet import FleetReport
    from hosttune.model.history import History
    from hosttune.model.host import Host
    from hosttune.model.intent import Intent
    from hosttune.model.lint import LintFinding
    from hosttune.model.measured import Measured
    from hosttune.model.plan import Plan
    from hosttune.model.prediction import Prediction
    from hosttune.model.result import Result
    from hosttune.model.validation import Validation
    from hosttune.model.values import Value

    D = TypeVar("D", bound=Value)

__version__ = "0.1.0"

Place: TypeAlias = str | os.PathLike[str]
"""A file or a directory, as a text or a `pathlib.Path`."""

Given: TypeAlias = Mapping[str, Any] | Place
"""A document's plain values, or the path of its file."""

Confirm: TypeAlias = Callable[[Sequence[str]], bool]
Say: TypeAlias = Callable[[str], None]

__all__ = [
    "BadInput",
    "Diagnosis",
    "FleetReport",
    "History",
    "Host",
    "HosttuneError",
    "Intent",
    "Measured",
    "Plan",
    "Prediction",
    "Refused",
    "Result",
    "Validation",
    "__version__",
    "apply",
    "capture",
    "diagnose",
    "discover",
    "domain_xml",
    "hand_over",
    "history",
    "lint",
    "plan",
    "predict",
    "recover",
    "revert",
    "run_fleet",
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


def capture(path: Place, root: Place | None = None, *, say: Say = lambda text: None) -> Host:
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


def plan(host: Host | Given, intent: Intent | Given) -> Plan:
    """Decide which CPUs, memory and devices each guest gets, and which settings the host needs for them.

    Pure: reads and changes nothing, and the same host and intent always give the same plan.

    Parameters:
        host: of `discover`, or its document, or the path of a capture.
        intent: what is wanted. Memory is in bytes or a text with KiB, MiB, GiB, TiB.

    Returns:
        The plan. A guest that does not fit is in `unplaced`, with the reasons; that is not an error. `expected` has
        what guests with GPUs can reach, where a source tells it.

    Raises:
        BadInput: the intent contradicts itself, or names a device that the host does not have.

    Example:
        >>> intent = {"version": 1, "guests": [{"name": "train", "gpus": ["0000:41:00.0"]}]}
        >>> plan = hosttune.plan(host, intent)
        >>> plan.guests[0].name, len(plan.guests[0].vcpu_pins), plan.unplaced
        ('train', 22, ())
    """
    from hosttune.model.intent import Intent
    from hosttune.planning import plan as decide
    from hosttune.predicting.expecting import with_expectations

    known = _host(host)
    return with_expectations(decide(known, _document(Intent, intent)), known)


def domain_xml(plan: Plan | Given, name: str) -> str:
    """The libvirt domain XML of one planned guest.

    Parameters:
        plan: of `plan`.
        name: of a guest in `plan.guests`.

    Raises:
        BadInput: the plan has no such guest.

    Example:
        >>> print(hosttune.domain_xml(plan, "train").splitlines()[0])
        <domain type='kvm'>
    """
    from hosttune.domain.writer import domain_xml as write
    from hosttune.model.plan import Plan

    return write(_document(Plan, plan), name)


def apply(
    plan: Plan | Intent | Given | None = None,
    root: Place | None = None,
    *,
    dry_run: bool = False,
    guests: bool = True,
    start: bool = False,
    disrupt: Collection[str] = (),
    confirm: Confirm = lambda lines: True,
    say: Say = lambda text: None,
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
    from hosttune.model.documents import PLANNED
    from hosttune.transaction import calls
    from hosttune.transaction.applying import ApplyOptions
    from hosttune.transaction.site import open_site

    return calls.apply(
        open_site(_text(root)),
        lambda: _document(PLANNED, plan) if plan is not None else None,
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
        state, only root can read what root has applied, and a journal may be damaged); else 0.

    Raises:
        BadInput: what is at this place is no capture.

    Example:
        >>> hosttune.status("scratch").drift
        ()
    """
    from hosttune.handover import kept
    from hosttune.transaction.site import open_site

    return kept.status(open_site(_text(root)))


def revert(
    root: Place | None = None,
    *,
    guests: Sequence[str] = (),
    force: bool = False,
    dry_run: bool = False,
    confirm: Confirm = lambda lines: True,
    say: Say = lambda text: None,
) -> Result:
    """Put everything back to what it was before hosttune changed it: all that is in force, in one transaction.

    Parameters:
        root: a scratch root; None: this machine.
        guests: take only these guests away, with what they alone needed; empty: all that is in force.
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
    from hosttune.transaction.applying import ApplyOptions
    from hosttune.transaction.site import open_site

    here = open_site(_text(root))
    if guests:
        agreed = lambda todo: confirm(calls.change_lines(todo))  # noqa: E731
        return calls.take_away(here, guests, ApplyOptions(), confirm=agreed, say=say, dry_run=dry_run)
    return calls.revert(here, say, force=force, dry_run=dry_run, confirm=confirm)


def recover(
    root: Place | None = None,
    *,
    force: bool = False,
    disrupt: Collection[str] = (),
    say: Say = lambda text: None,
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


def history(root: Place | None = None, number: int | None = None) -> History:
    """Every transaction: when, by whom, what was asked for, what was changed and how it ended. Changes nothing.

    Parameters:
        root: a scratch root; None: this machine.
        number: only this transaction, with its entries.

    Raises:
        BadInput: there is no such transaction.
        HosttuneError: the journals cannot be read.

    Example:
        >>> [entry.verb for entry in hosttune.history("scratch").transactions]
        ['apply', 'revert']
    """
    from hosttune.transaction.history import history as past
    from hosttune.transaction.site import open_site

    return past(open_site(_text(root))[0], number)


def validate(
    root: Host | Given | None = None,
    *,
    level: int = 0,
    guest: bool = False,
    against: Validation | Given | None = None,
    expect: Host | Plan | Validation | Intent | Given | None = None,
    duration: float | None = None,
    scratch: str | None = None,
    peers: Collection[str] = (),
    floors: str | None = None,
    say: Say = lambda text: None,
) -> Validation:
    """Check that a host is fit for a tenant, and measure it. Changes no setting.

    While it measures, GPUs of an NVSwitch fabric that wait for a partition have one.

    A validation of this machine is kept in the state directory, where root asks or it has measured: a later one expects
    the same devices and compares its figures.

    Parameters:
        root: a captured host; or a host document, of which less can be known; None: this machine.
        level: 0 checks; 1 also quick benchmarks (about a minute); 2 full benchmarks; 3 a burn-in. Above 0 GPUs are
            loaded, on this machine only.
        guest: this machine is a guest.
        against: an earlier validation; what is worse than in it is in `worse`.
        expect: devices of this host, plan or validation must be here; what an intent declares of RoCE ports must hold.
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
    from hosttune.model.documents import KINDS
    from hosttune.model.validation import Validation
    from hosttune.rules.checks.expected import of_value
    from hosttune.validating import ValidationRequest
    from hosttune.validating import validate as check

    request = ValidationRequest(
        level=level, guest=guest, duration=duration, scratch=scratch, peers=tuple(peers), floors=floors,
        against=_document(Validation, against) if against is not None else None,
        expect=of_value(_document(KINDS, expect)) if expect is not None else None,
    )  # fmt: skip
    place = _system(root) if root is None or isinstance(root, str | os.PathLike) else _host(root)
    return check(place, request, say=say, tell=say).validation


def hand_over(
    devices: Collection[str] = (),
    root: Place | None = None,
    *,
    guest: str | None = None,
    erase: Collection[str] = (),
    level: int = 1,
    to_vfio: bool = False,
    out: Place | None = None,
    confirm: Confirm = lambda lines: True,
    say: Say = lambda text: None,
) -> Handed:
    """Take devices from the last tenant to the next: quarantine, reset, erase, test, return. Needs root.

    Steps that a person does, and tests inside a guest, are left to the command.

    Parameters:
        devices: PCI addresses.
        root: a scratch root; None: this machine.
        guest: the devices of this stopped guest.
        erase: serial numbers of the drives that may be erased, each alone or as ADDRESS=SERIAL.
        level: of the validation, 1 or 2.
        to_vfio: return the devices to vfio-pci, whichever driver they were on.
        out: where to write the statement, besides the copy in the state directory.
        confirm: gets a line for each device before anything is changed; False ends the call.
        say: gets a line for each step.

    Returns:
        The `statement`, its `path`, and whether it is `clean`; `refused`: what must not be erased, and why.

    Raises:
        BadInput: an address, guest or serial number is unknown.
        Refused: with nothing written: not root, a captured host, a running guest, another hosttune at work.
        Declined: `confirm` returned False.

    Example:
        >>> hosttune.hand_over(["0000:ff:00.0"], "scratch")
        Traceback (most recent call last):
        ...
        hosttune.errors.BadInput: no device 0000:ff:00.0 (--device): hosttune discover lists the devices of this host
    """
    from hosttune.handover.running import HandoverOptions
    from hosttune.handover.running import hand_over as run
    from hosttune.handover.targets import Asked
    from hosttune.model.values import parse_address
    from hosttune.transaction.site import open_site
    from hosttune.validating import ValidationRequest
    from hosttune.validating import validate as check

    here = open_site(_text(root))
    addresses = tuple(parse_address(device, where="devices") for device in devices)
    asked = Asked(devices=addresses, guest=guest, erase=tuple(erase), level=level, to_vfio=to_vfio)

    def validated(level: int) -> Validation:
        return check(here[0].system, ValidationRequest(level=level, accepting=False)).validation

    return run(here, asked, HandoverOptions(_text(out), None, validated), confirm, say)


def lint(definitions: Collection[Place], host: Host | Given | None = None) -> tuple[LintFinding, ...]:
    """What is wrong with libvirt domain XML on its host. Changes nothing.

    Parameters:
        definitions: XML, each as a text or the path of its file; they are judged together.
        host: where the guests run; None: this machine.

    Raises:
        BadInput: a file cannot be read.

    Example:
        >>> [finding.level for finding in hosttune.lint([hosttune.domain_xml(plan, "train")], host)]
        ['info', 'info', 'info']
    """
    from hosttune.journal.state import load
    from hosttune.rules.lint import LintedDefinition
    from hosttune.rules.lint import lint as find

    linted = [
        LintedDefinition(f"definition {n}", text.encode())
        if text.lstrip().startswith("<")
        else LintedDefinition(text, load(text, what="a libvirt domain XML", size="domain XML"))
        for n, text in enumerate([os.fspath(given) for given in definitions], 1)
    ]
    return tuple(find(_host(host), linted))


def predict(
    host: Host | Given | None = None, plan: Plan | Given | None = None, *, hosts: int = 1
) -> tuple[Prediction, ...]:
    """What a host or the guests of a plan can reach: a bound and a typical value of each figure. Measures nothing.

    Parameters:
        host: None: this machine.
        plan: predict for each of its guests; None: for the host.
        hosts: how many hosts of this kind work together.

    Returns:
        One prediction for the host, or one for each guest in the order of the plan.

    Raises:
        BadInput: a document cannot be read.

    Example:
        >>> figures = hosttune.predict(host, plan)[0].figures
        >>> next((figure.bound, figure.unit) for figure in figures if figure.metric == "h2d")
        (63.02, 'GB/s')
    """
    from hosttune.model.plan import Plan
    from hosttune.predicting import Scope
    from hosttune.predicting import predict as expect
    from hosttune.predicting.expecting import scope_of

    known = _host(host)
    if plan is None:
        return (expect(known, Scope(known.hostname or "unnamed host", None, hosts)),)
    return tuple(expect(known, scope_of(guest, hosts)) for guest in _document(Plan, plan).guests)


def diagnose(
    measured: Measured | Given | None = None,
    validation: Validation | Given | None = None,
    logs: Collection[Place] = (),
    host: Host | Given | None = None,
    *,
    say: Say = lambda text: None,
) -> Diagnosis:
    """Why a measured figure falls short, and what to do. Changes nothing.

    Parameters:
        measured: figures and observations.
        validation: the figures of a validation; it is better understood with its `host`.
        logs: files with the output of tools, as it is.
        host: the host of the validation; None: not known.
        say: gets a line for each log: which tool wrote it.

    Returns:
        Each figure with its verdict, and the causes, best first.

    Raises:
        BadInput: a source cannot be read, or there is none.

    Example:
        >>> hosttune.diagnose("examples/diagnosis/nccl-949.yaml").causes[0].cause
        'acs-redirect'
    """
    import msgspec

    from hosttune.errors import BadInput
    from hosttune.journal.state import load
    from hosttune.model.measured import Measured
    from hosttune.model.validation import Validation
    from hosttune.rules.causes import diagnose as judged
    from hosttune.rules.causes.gathering import of_validation
    from hosttune.rules.causes.merging import merge
    from hosttune.rules.causes.paths import low_paths

    known = _host(host) if host is not None else None
    sources: list[tuple[str, Measured]] = []
    problems: list[Doubt] = []
    if measured is not None:
        sources.append((_name(measured, "measured"), _document(Measured, measured)))
    if validation is not None:
        figures = of_validation(_document(Validation, validation), known)
        sources.append((_name(validation, "validation"), figures))
    if logs:
        from hosttune.rules.causes.labels import decoded  # here: their patterns would cost a validation a third more
        from hosttune.rules.causes.logs import read_log

    for log in [os.fspath(given) for given in logs]:
        figures, tool, doubts = read_log(decoded(load(log, what="the output of a tool", size="log")), log)
        say(f"{log}: output of {tool}")
        sources.append((log, figures))
        problems += doubts
    if not sources:
        raise BadInput("nothing to diagnose", where="diagnose", hint="give measured figures, a validation or logs")
    merged, doubts = merge(sources)
    diagnosis = judged(
        merged,
        complaining=validation is None,
        hostless=validation is not None and known is None,
        written=measured is not None,
    )
    paths = low_paths(diagnosis, known) if known is not None else ()
    return msgspec.structs.replace(diagnosis, problems=(*doubts, *diagnosis.problems, *problems), paths=paths)


def run_fleet(
    verb: str,
    inventories: Collection[Place],
    *,
    limit: str | None = None,
    intent: Place | None = None,
    level: int | None = None,
    results: Place | None = None,
    check: bool = False,
    extra: Collection[str] = (),
    confirm: Confirm = lambda lines: True,
    say: Say = lambda text: None,
) -> FleetReport:
    """Run a verb on many hosts, through Ansible. Waves and their gate are those of the command.

    Parameters:
        verb: discover, plan, apply, validate, handover or revert.
        inventories: Ansible's: files, directories, or "HOST,".
        limit: only these hosts and groups, as Ansible's --limit.
        intent: path of one intent for all hosts; None: as the inventory says.
        level: of the validation.
        results: folder of the answers; None: the command's.
        check: change nothing.
        extra: variables for the playbooks, KEY=VALUE or @FILE.
        confirm: gets a line for each wave before hosts are changed; False ends the call.
        say: gets a line for each host that has answered.

    Returns:
        One line for each host, with its verdict and the reason. `exit_code` is that of the command.

    Raises:
        BadInput: the inventory or an option is wrong.
        Refused: another run writes into the folder.
        Declined: `confirm` returned False.

    Example:
        >>> hosttune.run_fleet("validate", ["missing.yml"])
        Traceback (most recent call last):
        ...
        hosttune.errors.BadInput: no such inventory: missing.yml (-i): give a file, a directory, or HOST,
    """
    from hosttune.fleet.reporting import report_of_run
    from hosttune.fleet.run import DEFAULT_RESULTS, FleetRequest
    from hosttune.fleet.run import run_fleet as run

    request = FleetRequest(
        verb=verb, inventories=tuple(os.fspath(given) for given in inventories), limit=limit, intent=_text(intent),
        level=level, results=_text(results) or DEFAULT_RESULTS, check=check, extra=tuple(extra),
    )  # fmt: skip
    return report_of_run(run(request, say, confirm))


def _host(given: Host | Given | None) -> Host:
    """Return a host: that of its document, of a capture, or this machine."""
    from hosttune.model.host import Host

    if given is None or (isinstance(given, str | os.PathLike) and not os.fspath(given).endswith(".json")):
        return discover(given)
    return _document(Host, given)


def _document(kind: type[D] | tuple[type[D], ...], given: D | Given) -> D:
    """Return a document of one of these kinds: itself, of its plain values, or of its file. Raises BadInput."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if isinstance(given, kinds):
        return given
    import msgspec

    from hosttune.errors import BadInput
    from hosttune.journal.state import load
    from hosttune.model.documents import read_any
    from hosttune.model.measured import Measured

    names = " or ".join(kind.__name__.lower() for kind in kinds)
    what = "measured figures (YAML or JSON)" if kinds == (Measured,) else f"a document of this kind: {names}"
    where, hint = _name(given, names), f"give {what}"
    if isinstance(given, str | os.PathLike):
        text = load(where, what=what)
    elif isinstance(given, Mapping):
        try:
            text = msgspec.json.encode(given)
        except (TypeError, msgspec.MsgspecError) as error:
            raise BadInput(f"not plain values: {error}", where=where, hint=hint) from error
    else:
        raise BadInput(f"{type(given).__name__} is not a document", where=where, hint=hint)
    document = Measured.from_yaml(text, where=where) if kinds == (Measured,) else read_any(text, where, hint)
    if not isinstance(document, kinds):
        raise BadInput(f"this is a document of another kind: {type(document).__name__}", where=where, hint=hint)
    return document


def _name(given: object, otherwise: str) -> str:
    return os.fspath(given) if isinstance(given, str | os.PathLike) else otherwise


def _system(root: Place | None) -> System:
    from hosttune.machine.opening import open_system

    return open_system(_text(root))


def _text(root: Place | None) -> str | None:
    return None if root is None else os.fspath(root)


def __getattr__(name: str) -> object:
    errors = dict.fromkeys(("BadInput", "HosttuneError", "Refused"), "errors")
    kinds = ("Diagnosis", "History", "Host", "Intent", "Measured", "Plan", "Prediction", "Result", "Validation")
    documents = {kind: f"model.{kind.lower()}" for kind in kinds} | {"FleetReport": "model.fleet"}
    home = (errors | documents).get(name)
    if home is None:
        raise AttributeError(f"module 'hosttune' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"hosttune.{home}"), name)
