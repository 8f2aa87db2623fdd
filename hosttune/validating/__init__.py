"""Validation: from what a machine shows, through checks and benchmarks, to a Validation that is compared with an
earlier one and kept.

Changes no setting, but for partitions during a measurement (`fabric`). `history` knows what is in the state directory;
the checks and the evaluation of figures are pure.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

import msgspec

from hosttune import __version__
from hosttune.bench.compare import loaded_clocks
from hosttune.discovery.configuration import configuration_of
from hosttune.discovery.ports import read_ports
from hosttune.errors import BadInput, Refused
from hosttune.gpu import read_gpus
from hosttune.machine.reader import Reader
from hosttune.machine.system import System
from hosttune.model.clock import now_text
from hosttune.model.counters import counted
from hosttune.model.evidence import Evidence
from hosttune.model.host import Host
from hosttune.model.validation import Acceptance, KnownDevice, Machine, MeasuredGpu, Validation, verdict_of
from hosttune.rules.checks import judge
from hosttune.rules.checks.expected import ExpectedDevices
from hosttune.rules.checks.looks import looked
from hosttune.validating import accepting, history
from hosttune.validating.fabric import connected

if TYPE_CHECKING:
    from hosttune.bench.measuring import MeasuredRuns

Tell = Callable[[str], None]


class ValidationRequest(msgspec.Struct, frozen=True):
    """The options of a validation. Errors name the command's options, such as `--duration`.

    `level`: 0 checklist, 1 quick benchmarks (about a minute), 2 full benchmarks, 3 burn-in of `duration` seconds (None:
    300). `guest`: the machine is a guest. `against`: what to compare with. `expect`: devices that must be here.
    `forget`: addresses of devices that are no longer expected, with the reason `why`. `accept`: CHECK[:SUBJECT] of
    results that the caller answers for, with the reason `why`, through the day `until`; `accepted`: what a
    configuration accepts; `accepting` False: nothing counts as accepted, because a hand-over decides.
    From level 1 on: `scratch`, a
    path to measure storage in; `peers`, hosts to measure the network to; `floors`, the text of a fleet's own floors
    (TOML). `keep` False: nothing is written, not even the devices that a later validation expects, and
    nothing is waited for (metrics, the agent).
    """

    level: int = 0
    guest: bool = False
    against: Validation | None = None
    expect: ExpectedDevices | None = None
    forget: tuple[str, ...] = ()
    why: str | None = None
    accept: tuple[str, ...] = ()
    until: str | None = None
    accepted: tuple[Acceptance, ...] = ()
    accepting: bool = True
    duration: float | None = None
    scratch: str | None = None
    peers: tuple[str, ...] = ()
    floors: str | None = None
    keep: bool = True


class Validated(msgspec.Struct, frozen=True):
    """A validation, and the evidence from which it was made."""

    validation: Validation
    evidence: Evidence


def validate(
    place: System | Host, request: ValidationRequest, *, say: Tell = lambda text: None, tell: Tell = lambda text: None
) -> Validated:
    """Validate a machine, or a host document, for which only the checks of a document can be made.

    `say` gets each step, `tell` other messages for the user. A validation of this machine is kept
    (`history.keep`) if it has measurements or the user may write the machine's state.

    Raises BadInput for invalid options and files that cannot be read, Refused for a level above 0 on a captured host or
    with a GPU that is in use.
    """
    system = place if isinstance(place, System) else None
    check_request(request, captured=system is None or system.captured)
    new = accepting.asked(request.accept, request.why, request.until)
    out = history.check_forget(request.forget, None if new and not request.forget else request.why)
    if system is not None:
        say("reading the host")
    evidence = (
        Evidence(host=place, inside=request.guest)
        if isinstance(place, Host)
        else history.gather(place, inside=request.guest, wait=request.keep)
    )
    if out:
        history.forget(system, evidence, request.expect, out, request.why or "")
        tell(f"no longer expected: {', '.join(out)}")
    evidence, known = history.with_expected(system, evidence, request.expect)
    measured = None
    if request.level and system is not None:
        begun = time.monotonic()
        with connected(system, evidence.host, tell) if request.accepting else nullcontext(evidence.host) as host:
            measured = _measure(system, host, evidence.history, request, say)
        evidence = look_again(system, evidence, time.monotonic() - begun)
    live = system is not None and not system.captured
    validation = decide(evidence, request.level, measured, live=live, known=known)
    if request.keep and system is not None and (system.scratch or (live and history.keeps_state())):
        try:
            history.keep_looks(system, evidence, validation)
        except (BadInput, Refused) as error:
            tell(f"what was seen of the GPUs is not kept for when guests have them: {error.what}")
    if request.accepting:
        validation = _accepted(system, validation, evidence.host, request.accepted, new, tell)
    if request.keep and (measured is not None or (live and history.keeps_state())):
        try:
            history.keep(validation)
        except BadInput as error:
            tell(f"not kept for later comparison: {error.what}")
    return Validated(_compared(validation, request.against), evidence)


def _accepted(
    system: System | None,
    validation: Validation,
    host: Host,
    declared: tuple[Acceptance, ...],
    new: tuple[Acceptance, ...],
    tell: Tell,
) -> Validation:
    """Return the validation with what is accepted: by a configuration, before, and now, which is kept."""
    before: tuple[Acceptance, ...] = ()
    folder = None
    try:
        before, folder = history.kept_acceptances(system)
    except BadInput as error:
        if new:
            raise
        tell(f"nothing that was accepted before counts: {error.where}: {error.what}; {error.hint}")
    new = tuple(
        msgspec.structs.replace(acceptance, device=host.index.identity(acceptance.subject)) for acceptance in new
    )
    accepting.keep(folder, "--accept", new, validation.results, host)
    return accepting.applied(validation, (*declared, *before, *new), host)


def check_request(request: ValidationRequest, *, captured: bool) -> None:
    """Refuse to measure a captured host, and options without effect at this level. Raises Refused, BadInput."""
    if request.level and captured:
        raise Refused(
            f"level {request.level} runs benchmarks, and a captured host cannot be measured",
            where="--level",
            hint="run it on the host itself, or use --level 0",
        )
    if request.duration is not None and request.level != 3:
        raise BadInput("--duration is only for level 3", where="--duration", hint="add --level 3, or leave it out")
    measuring = {"--scratch": request.scratch, "--peer": request.peers, "--fleet": request.floors}
    given = next((option for option, value in measuring.items() if value and not request.level), None)
    if given is not None:
        raise BadInput("level 0 runs no benchmarks", where=given, hint="add --level 1, 2 or 3, or leave it out")


def exit_code(validation: Validation, gate: str = "verdict", before: Validation | None = None) -> int:
    """Return exit code 1 if what `gate` names is true, else 0.

    `verdict`: a fail or unknown. `worse`: something is worse than `before`. `either`: one of them, but not for what was
    unknown before already.
    """
    worse = bool(validation.worse)
    if gate == "worse":
        return int(worse)
    results = validation.results
    if gate == "either" and before is not None:
        stood = {(result.check, result.subject) for result in before.results if result.outcome == "unknown"}
        results = tuple(
            result for result in results if result.outcome != "unknown" or (result.check, result.subject) not in stood
        )
    bad = validation.verdict not in ("pass", "warn") and verdict_of(results) not in ("pass", "warn")
    return int(bad or (gate == "either" and worse))


def _measure(
    system: System, host: Host, history: tuple[Validation, ...], request: ValidationRequest, say: Tell
) -> MeasuredRuns:
    from hosttune.bench.measuring import measure
    from hosttune.predicting.references import model_of

    return measure(
        system,
        host,
        request.level,
        seconds=request.duration,
        scratch_path=request.scratch,
        peers=request.peers,
        say=say,
        history=history,
        fleet=request.floors,
        model_of=model_of,
    )


def look_again(system: System, evidence: Evidence, seconds: float) -> Evidence:
    """Return the evidence with the ports and GPUs read again, so many seconds after the first look."""
    reader = Reader(system)
    ports, gpus = read_ports(reader, evidence.host), read_gpus(reader, evidence.host.pci)
    return msgspec.structs.replace(evidence, ports_later=ports, gpus_later=gpus, seconds_later=seconds)


def decide(
    evidence: Evidence,
    level: int,
    measured: MeasuredRuns | None,
    *,
    live: bool,
    known: tuple[KnownDevice, ...] | None = None,
) -> Validation:
    """Run the checks, add what was measured from level 1 on, and return the verdict.

    `known`: the devices that a later validation expects.
    """
    if measured is not None:  # facts read under load replace those read at rest
        clocks = loaded_clocks(measured.samples)
        evidence = msgspec.structs.replace(evidence, loaded_links=dict(measured.links), loaded_clocks=clocks)
    results = (*judge(evidence), *(measured.results if measured else ()))
    host = evidence.host
    gpus = tuple(
        MeasuredGpu(address=gpu.address, model=gpu.model or f"{gpu.vendor} GPU", id=host.index.ids(gpu.address))
        for gpu in host.index.accelerators
    )
    product = host.platform.product if host.platform is not None else None
    return Validation(
        host=evidence.host.hostname,
        level=level,
        verdict=verdict_of(results),
        results=results,
        samples=measured.samples if measured else (),
        facts=dict(measured.facts) if measured else None,
        at=now_text() if live else None,
        version=__version__,
        machine=Machine(digest=host.digest, product=product, gpus=gpus, devices=known),
        configuration=configuration_of(evidence),
        counted=counted(evidence),
        looked=looked(evidence),
    )


def _compared(validation: Validation, before: Validation | None) -> Validation:
    """Return the validation with what is worse than before, if there is an earlier one."""
    if before is None:
        return validation
    from hosttune.bench.compare import regressions

    return msgspec.structs.replace(validation, worse=regressions(before, validation))
