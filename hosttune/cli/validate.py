"""`validate`: is this host fit for a tenant? Evidence → checks, benchmarks → report, and the verdict as exit code."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from hosttune.cli.commands import Command, host_options
from hosttune.cli.output import emit, emit_page, tell
from hosttune.errors import BadInput, Refused

if TYPE_CHECKING:
    from hosttune.bench.course import Measured
    from hosttune.checks.expected import Expectation, Forgotten
    from hosttune.model.evidence import Evidence
    from hosttune.model.host import Host, Problem
    from hosttune.model.plan import Plan
    from hosttune.model.validation import KnownDevice, Machine, Validation
    from hosttune.system import System
    from hosttune.transaction.site import Site

FORMATS = ("text", "json", "md", "html", "junit")
# What exits 1, of (the verdict is fail or unknown, something is worse than before).
GATES = {"verdict": (True, False), "worse": (False, True), "either": (True, True)}
_MACHINE_STATE = "/var/lib/hosttune"


@click.command(cls=Command)
@host_options
@click.option("--level", type=click.IntRange(0, 3), default=0, show_default=True,
              help="0 checklist, 1 quick benchmarks, 2 full benchmarks, 3 burn-in.")  # fmt: skip
@click.option("--guest", is_flag=True, help="This machine is a guest: look at it as one.")
@click.option("--list", "listing", is_flag=True, help="Say what every check is about; check nothing.")
@click.option("--against", metavar="FILE", help="Compare with an earlier validation (JSON).")
@click.option("--gate", type=click.Choice(list(GATES)), help="What exits 1 (default: the verdict). worse: what is worse"
              " than in --against, whatever the verdict; either: both.")  # fmt: skip
@click.option("--duration", type=click.FloatRange(min=1, max=7 * 86400), metavar="SECONDS",
              help="How long level 3 burns in (default 300).")  # fmt: skip
@click.option("--scratch", metavar="PATH", help="Measure storage here; nothing else is written.")
@click.option("--peer", "peers", multiple=True, metavar="HOST", help="Measure the network to this host (repeatable).")
@click.option("--fleet", metavar="FILE", help="Your fleet's own floors (TOML), beside the shipped ones.")
@click.option("--expect", metavar="FILE", help="The devices of this host document, plan or validation must be here.")
@click.option("--forget", multiple=True, metavar="BDF", help="Expect this device no more (repeatable; with --why).")
@click.option("--why", metavar="TEXT", help="Why the devices of --forget are gone; kept with your name and the time.")
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True)
@click.pass_context
def validate(
    context: click.Context,
    /,
    root: str | None,
    document: str | None,
    level: int,
    guest: bool,
    listing: bool,
    against: str | None,
    gate: str | None,
    output: str,
    **asked: Any,
) -> None:
    """Check that a host is fit for a tenant, and measure it. Changes nothing; exits 1 on a failure or an unknown.

    \b
    hosttune validate
    hosttune validate --level 1 -o html > report.html
    hosttune validate --against before.json
    hosttune validate --forget 0000:18:00.0 --why "sent back, RMA 4711"
    """
    if listing:
        list_checks(guest, output)
        return
    check_level(level, asked, captured=root is not None or document is not None)
    if gate not in (None, "verdict") and against is None:
        raise BadInput(f"--gate {gate} without --against", where="--gate", hint="name the validation to compare with")
    before = read_validation(against) if against is not None else None
    fleet = read_fleet(asked["fleet"])
    out = check_forget(asked["forget"], asked["why"])
    named = read_expectation(asked["expect"])
    evidence, system = look(root, document, guest)
    if out:
        forget(system, evidence, named, out, asked["why"])
    evidence, known = expecting(system, evidence, named)
    measured = measure(system, evidence, level, asked, fleet) if level and system is not None else None
    live = system is not None and not system.captured
    validation = decide(evidence, level, measured, live=live, known=known)
    if measured is not None or (live and keeps_state()):
        keep(validation)
    validation = compared(validation, before)
    show(validation, evidence, before, output, fleet)
    bad = (validation.verdict not in ("pass", "warn"), bool(validation.worse))
    context.exit(int(any(found and asked_for for found, asked_for in zip(bad, GATES[gate or "verdict"], strict=True))))


def check_level(level: int, asked: Mapping[str, Any], *, captured: bool) -> None:
    """Refuse to measure what is no machine, and options that this level does nothing with. Raises Refused, BadInput."""
    if level and captured:
        raise Refused(
            f"level {level} measures a machine, and a captured host is none",
            where="--level",
            hint="run it on the host itself, or use --level 0",
        )
    if asked["duration"] is not None and level != 3:
        raise BadInput("only level 3 has a duration", where="--duration", hint="add --level 3, or leave it out")
    given = next((name for name in ("scratch", "peers", "fleet") if asked[name] and not level), None)
    if given is not None:
        option = f"--{given.removesuffix('s')}"
        raise BadInput("level 0 measures nothing", where=option, hint="add --level 1, 2 or 3, or leave it out")


def check_forget(addresses: Sequence[str], why: str | None) -> tuple[str, ...]:
    """The addresses of --forget, in the kernel's spelling. Raises BadInput."""
    from hosttune.forgotten import MOST_WHY
    from hosttune.model.values import parse_address

    if bool(addresses) != (why is not None):
        missing = "--why" if addresses else "--forget"
        raise BadInput(f"{missing} is missing", where=missing, hint="give both: --forget BDF --why TEXT")
    if why is not None and not (why.strip() and why.isprintable() and len(why) <= MOST_WHY):
        hint = f"say in one line of at most {MOST_WHY} characters why the device is gone"
        raise BadInput("no reason that can be kept", where="--why", hint=hint)
    found = tuple(parse_address(address, where="--forget") for address in addresses)
    if len(set(found)) != len(found):
        raise BadInput("a device named twice", where="--forget", hint="name each device once")
    return found


def read_expectation(path: str | None) -> Expectation | None:
    """What --expect names. Raises BadInput."""
    if path is None:
        return None
    from hosttune.checks.expected import of_document
    from hosttune.state import load

    return of_document(load(path, what="a host document, a plan or a validation"), path)


def list_checks(inside: bool, output: str) -> None:
    """Every check with its words, in the order of the report."""
    from hosttune.checks import checks

    if output not in ("text", "json"):
        raise BadInput(f"--list as {output}", where="--output", hint="give text or json")
    found = checks(inside)
    if output == "json":
        from hosttune.model.values import to_json

        names = ("id", "title", "subjects", "why", "source", "inside")
        emit(to_json([{name: getattr(check, name) for name in names} for check in found]))
        return
    from hosttune.report.check_list import print_checks

    emit_page(lambda page: print_checks(found, page))


def read_validation(path: str) -> Validation:
    """An earlier validation. Raises BadInput."""
    from hosttune.model.validation import Validation
    from hosttune.state import load

    what = "a validation (hosttune validate -o json prints one)"
    return Validation.from_json(load(path, what=what), where=path)


def read_fleet(path: str | None) -> str | None:
    """The text of a fleet's own floors, None where none are given. Raises BadInput, also for floors that cannot be."""
    if path is None:
        return None
    from hosttune.bench.baselines import with_fleet
    from hosttune.state import load_text

    text = load_text(path, what="your fleet's floors (TOML)", size="fleet's floors")
    with_fleet(text)
    return text


# --- evidence ------------------------------------------------------------------------------------------------


def look(root: str | None, document: str | None, inside: bool) -> tuple[Evidence, System | None]:
    """(the evidence, the System that it was read from; None for a document). Raises BadInput."""
    from hosttune.model.evidence import Evidence

    if root is not None and document is not None:
        raise BadInput("both --root and --host", where="command line", hint="give one of the two")
    if document is not None:
        from hosttune.model.host import Host
        from hosttune.state import load

        host = Host.from_json(load(document, what="a host document"), where=document)
        return Evidence(host=host, inside=inside), None
    from hosttune.cli.transaction import open_system

    system = open_system(root)
    return gather_with_state(system, inside), system


def gather_with_state(system: System, inside: bool) -> Evidence:
    """What the machine shows, with what hosttune remembers of it; a state that does not read is a problem."""
    import msgspec

    from hosttune.discovery.evidence import gather
    from hosttune.model.evidence import STATE
    from hosttune.model.host import Problem
    from hosttune.transaction import applied_plans, status

    site = site_to_read(system)
    doubts = []
    plans: tuple[Plan, ...] = ()
    standing = None
    try:
        plans = applied_plans(site)
        standing = status(site)[0] if site.store is not None else None
    except (BadInput, Refused) as error:
        doubts.append(Problem(what=STATE, where=error.where, why=error.what))
    history, unread = stored_history(history_folder(system, site))
    found = gather(system, inside=inside, plans=plans, standing=standing, history=history)
    return msgspec.structs.replace(found, problems=(*found.problems, *doubts, *unread))


# --- what is expected to be here -----------------------------------------------------------------------------


def expecting(
    system: System | None, evidence: Evidence, named: Expectation | None
) -> tuple[Evidence, tuple[KnownDevice, ...]]:
    """(the evidence with what is expected as sources of devices, the devices that a kept validation names)."""
    import msgspec

    from hosttune.checks.expected import known_here, standing, with_expectations
    from hosttune.forgotten import read_forgotten
    from hosttune.model.evidence import STATE
    from hosttune.model.host import Problem

    forgotten: tuple[Forgotten, ...] = ()
    folder = None if system is None else history_folder(system, site_to_read(system))
    try:
        forgotten = read_forgotten(folder) if folder is not None else ()
    except BadInput as error:
        doubt = Problem(what=STATE, where=error.where, why=error.what)
        evidence = msgspec.structs.replace(evidence, problems=(*evidence.problems, doubt))
    evidence = with_expectations(evidence, standing(evidence), forgotten)
    known = known_here(evidence.host)
    return with_expectations(evidence, (named,) if named else (), forgotten), known


def forget(
    system: System | None, evidence: Evidence, named: Expectation | None, addresses: Sequence[str], why: str
) -> None:
    """Take devices out of what is expected here, for good. Raises Refused for a capture, BadInput for what is none."""
    from hosttune import forgotten
    from hosttune.checks.expected import standing

    folder = None if system is None else history_folder(system, site_to_read(system))
    if folder is None:
        where = "--host" if system is None else system.origin
        raise Refused("a captured host keeps no record", where=where, hint="run it on the host itself")
    expected = {one.address for found in (*standing(evidence), *((named,) if named else ())) for one in found.devices}
    strange = [address for address in addresses if address not in expected]
    if strange:
        hint = "no plan in force, kept validation or --expect names it: see device-present in hosttune validate"
        raise BadInput(f"{strange[0]} is not expected here", where="--forget", hint=hint)
    forgotten.forget(folder, addresses, why)
    tell(f"expected no more: {', '.join(addresses)}")


def history_folder(system: System, site: Site) -> str | None:
    """Where validations are kept: of a machine in the state directory of whoever asks, of a scratch root inside it."""
    from hosttune.state import state_directory

    if not system.captured:
        return state_directory()
    return site.store.folder if site.store is not None else None


def stored_history(folder: str | None) -> tuple[tuple[Validation, ...], tuple[Problem, ...]]:
    """(earlier validations of this host, oldest first; those that do not read, as problems)."""
    from hosttune.model.host import Problem
    from hosttune.state import stored_validations

    found: list[Validation] = []
    unread = []
    for path in stored_validations(folder) if folder is not None else ():
        try:
            found.append(read_validation(path))
        except BadInput as error:
            unread.append(Problem(what="unreadable", where=path, why=error.what))
    found.sort(key=lambda validation: validation.at or "")
    return tuple(found), tuple(unread)


def site_to_read(system: System) -> Site:
    """The site whose state is read: the machine's also where another user asks, for applying is always root's."""
    import dataclasses

    from hosttune.journal import Store
    from hosttune.transaction.site import site_of

    site = site_of(system)
    if system.captured or keeps_state():
        return site
    return dataclasses.replace(site, store=Store(_MACHINE_STATE))


# --- verdict and report --------------------------------------------------------------------------------------


def measure(
    system: System, evidence: Evidence, level: int, asked: Mapping[str, Any], fleet: str | None = None
) -> Measured:
    """The benchmarks of a level. Raises Refused for a GPU that somebody holds, BadInput for an option that is none."""
    from hosttune.bench import measure as run
    from hosttune.cli.transaction import progress

    return run(
        system,
        evidence.host,
        level,
        seconds=asked["duration"],
        scratch_path=asked["scratch"],
        peers=asked["peers"],
        say=progress(),
        history=evidence.history,
        fleet=fleet,
    )


def decide(
    evidence: Evidence,
    level: int,
    measured: Measured | None,
    *,
    live: bool,
    known: tuple[KnownDevice, ...] | None = None,
) -> Validation:
    """The checklist, and from level 1 on what was measured, with their verdict. `known`: what a later one expects."""
    from datetime import UTC, datetime

    import msgspec

    from hosttune import __version__
    from hosttune.checks import judge
    from hosttune.model.validation import Validation, verdict_of

    if measured is not None:  # what is read under load decides over what was read at rest
        evidence = msgspec.structs.replace(evidence, loaded_links=dict(measured.links))
    results = (*judge(evidence), *(measured.results if measured else ()))
    return Validation(
        host=evidence.host.hostname,
        level=level,
        verdict=verdict_of(results),
        results=results,
        samples=measured.samples if measured else (),
        facts=dict(measured.facts) if measured else None,
        at=datetime.now(UTC).isoformat(timespec="seconds") if live else None,
        version=__version__,
        machine=machine_of(evidence.host, known),
    )


def machine_of(host: Host, known: tuple[KnownDevice, ...] | None = None) -> Machine:
    """What of the host says with whom its figures can be compared."""
    from hosttune.model.validation import Gpu, Machine

    ids = {one.address: f"{one.vendor_id}:{one.device_id}" for one in host.pci if one.vendor_id and one.device_id}
    gpus = tuple(
        Gpu(address=gpu.address, model=gpu.model or f"{gpu.vendor} GPU", id=ids.get(gpu.address))
        for gpu in host.gpus
        if gpu.vendor not in (None, "other")
    )
    product = host.platform.product if host.platform is not None else None
    return Machine(digest=host.digest, product=product, gpus=gpus, devices=known)


def compared(validation: Validation, before: Validation | None) -> Validation:
    """The validation with what is worse than before, where there is a before."""
    if before is None:
        return validation
    import msgspec

    from hosttune.bench.regression import regressions

    return msgspec.structs.replace(validation, worse=regressions(before, validation))


def keep(validation: Validation) -> None:
    """Keep a validation for later ones; where that fails, it is told.

    One that measured stays as one of many, to stand beside. Of one that did not, the last alone, for its devices.
    """
    import msgspec

    from hosttune.state import DEVICES, VALIDATIONS, mode_of, save, state_directory

    stamp = (validation.at or "").partition("+")[0].replace(":", "").replace("-", "")
    name = f"{stamp}-level{validation.level}.json" if validation.level else DEVICES
    path = os.path.join(state_directory(), VALIDATIONS, name)
    validation = validation if validation.level else msgspec.structs.replace(validation, results=())
    try:
        save(path, validation.to_json(), make_folder=True, mode=mode_of(f"{VALIDATIONS}/NAME"))
    except BadInput as error:
        tell(f"not kept for later comparison: {error.what}")


def keeps_state() -> bool:
    """Whether whoever asks keeps the machine's state: root, or who has named a place for it."""
    return os.geteuid() == 0 or bool(os.environ.get("HOSTTUNE_STATE"))


def show(
    validation: Validation, evidence: Evidence, before: Validation | None, output: str, fleet: str | None = None
) -> None:
    """Print the validation in a format; `before` is what it is compared with, `fleet` the text of a fleet's floors."""
    if output == "json":
        emit(validation.to_json())
    elif output == "md":
        from hosttune.report.validation_md import markdown

        emit(markdown(validation, before=before))
    elif output == "junit":
        from hosttune.report.validation_junit import junit

        emit(junit(validation))
    elif output == "html":
        emit(page_of(validation, evidence, before, fleet))
    else:
        from hosttune.report.validation_text import print_validation

        emit_page(lambda page: print_validation(validation, page, before=before))


def page_of(validation: Validation, evidence: Evidence, before: Validation | None, fleet: str | None = None) -> str:
    """The report as one HTML page, with the figures of a fleet's file beside the shipped ones. Raises BadInput."""
    from hosttune.bench.baselines import with_fleet
    from hosttune.checks import checks
    from hosttune.report.svg import host_svg
    from hosttune.report.validation_html import html

    return html(
        validation,
        host=evidence.host,
        plans=evidence.plans,
        before=before,
        svg=host_svg(evidence.host, results=validation.results),
        baselines=with_fleet(fleet),
        history=evidence.history,
        checks=checks(evidence.inside),
    )
