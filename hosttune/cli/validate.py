"""`validate`: is this host fit for a tenant? Evidence → checks, benchmarks → report, and the verdict as exit code."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from hosttune.cli.commands import Command, host_options
from hosttune.cli.output import emit, emit_page
from hosttune.errors import BadInput, Refused

if TYPE_CHECKING:
    from hosttune.model.evidence import Evidence
    from hosttune.model.validation import Validation
    from hosttune.system import System
    from hosttune.transaction.site import Site

FORMATS = ("text", "json", "md", "html", "junit")
_MACHINE_STATE = "/var/lib/hosttune"


@click.command(cls=Command)
@host_options
@click.option("--level", type=click.IntRange(0, 3), default=0, show_default=True,
              help="0 checklist, 1 quick benchmarks, 2 full benchmarks, 3 burn-in.")  # fmt: skip
@click.option("--guest", is_flag=True, help="This machine is a guest: look at it as one.")
@click.option("--list", "listing", is_flag=True, help="Say what every check is about; check nothing.")
@click.option("--against", metavar="FILE", help="Compare with an earlier validation (JSON).")
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
    output: str,
) -> None:
    """Check that a host is fit for a tenant, and measure it. Changes nothing; exits 1 on a failure or an unknown.

    \b
    hosttune validate
    hosttune validate --level 1 -o html > report.html
    hosttune validate --against before.json
    """
    if listing:
        list_checks(guest, output)
        return
    if level and (root is not None or document is not None):
        raise Refused(
            f"level {level} measures a machine, and a captured host is none",
            where="--level",
            hint="run it on the host itself, or use --level 0",
        )
    before = read_validation(against) if against is not None else None
    evidence, live = look(root, document, guest)
    validation = decide(evidence, level, live)
    show(validation, evidence, before, output)
    context.exit(0 if validation.verdict in ("pass", "warn") else 1)


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

    return Validation.from_json(load(path, what="a validation (hosttune validate -o json prints one)"), where=path)


# --- evidence ------------------------------------------------------------------------------------------------


def look(root: str | None, document: str | None, inside: bool) -> tuple[Evidence, bool]:
    """(the evidence, whether it is of this machine as it runs). Raises BadInput."""
    from hosttune.model.evidence import Evidence

    if root is not None and document is not None:
        raise BadInput("both --root and --host", where="command line", hint="give one of the two")
    if document is not None:
        from hosttune.model.host import Host
        from hosttune.state import load

        host = Host.from_json(load(document, what="a host document"), where=document)
        return Evidence(host=host, inside=inside), False
    from hosttune.cli.transaction import open_system

    system = open_system(root)
    return gather_with_state(system, inside), not system.captured


def gather_with_state(system: System, inside: bool) -> Evidence:
    """What the machine shows, with what hosttune remembers of it; a state that does not read is a problem."""
    import msgspec

    from hosttune.discovery.evidence import gather
    from hosttune.model.evidence import STATE
    from hosttune.model.host import Problem
    from hosttune.transaction import applied_plans, status

    site = site_to_read(system)
    try:
        plans = applied_plans(site)
        standing = status(site)[0] if site.store is not None else None
    except (BadInput, Refused) as error:
        found = gather(system, inside=inside)
        doubt = Problem(what=STATE, where=error.where, why=error.what)
        return msgspec.structs.replace(found, problems=(*found.problems, doubt))
    return gather(system, inside=inside, plans=plans, standing=standing)


def site_to_read(system: System) -> Site:
    """The site whose state is read: the machine's also where another user asks, for applying is always root's."""
    import dataclasses

    from hosttune.journal import Store
    from hosttune.transaction.site import site_of

    site = site_of(system)
    if system.captured or os.geteuid() == 0 or os.environ.get("HOSTTUNE_STATE"):
        return site
    return dataclasses.replace(site, store=Store(_MACHINE_STATE))


# --- verdict and report --------------------------------------------------------------------------------------


def decide(evidence: Evidence, level: int, live: bool) -> Validation:
    """The checklist, and from level 1 on what was measured, with their verdict."""
    from datetime import UTC, datetime

    from hosttune import __version__
    from hosttune.checks import judge
    from hosttune.model.validation import Validation, verdict_of

    if level:
        raise Refused(f"level {level} has no benchmarks yet", where="--level", hint="use --level 0")
    results = tuple(judge(evidence))
    return Validation(
        host=evidence.host.hostname,
        level=level,
        verdict=verdict_of(results),
        results=results,
        at=datetime.now(UTC).isoformat(timespec="seconds") if live else None,
        version=__version__,
    )


def show(validation: Validation, evidence: Evidence, before: Validation | None, output: str) -> None:
    """Print the validation in a format; `before` is what it is compared with."""
    if output == "json":
        emit(validation.to_json())
        return
    if before is not None:
        raise BadInput("no comparison yet", where="--against", hint="leave it out")
    if output == "md":
        from hosttune.report.validation_md import markdown

        emit(markdown(validation))
    elif output == "junit":
        from hosttune.report.validation_junit import junit

        emit(junit(validation))
    elif output == "html":
        raise BadInput("no html report yet", where="--output", hint="give text, json, md or junit")
    else:
        from hosttune.report.validation_text import print_validation

        emit_page(lambda page: print_validation(validation, page))
