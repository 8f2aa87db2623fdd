"""`validate`: options → one call → a report in one of seven formats, and an exit code."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from hosttune.cli.commands import Command, Seconds, Whole, host_options, progress, read_document
from hosttune.cli.output import FORMATS as REPORTS
from hosttune.cli.output import emit_report, exiting, tell
from hosttune.errors import BadInput

if TYPE_CHECKING:
    from hosttune.model.diagnosis import Diagnosis
    from hosttune.model.validation import Acceptance, Validation
    from hosttune.report.blocks import Report
    from hosttune.rules.checks.expected import ExpectedDevices
    from hosttune.validating import Validated

FORMATS = (*REPORTS, "junit", "prometheus", "certificate")
GATES = ("verdict", "worse", "either")


@click.command(cls=Command)
@host_options
@click.option("--level", type=Whole(0, 3), metavar="N", default=0, show_default=True,
              help="0 checklist, 1 quick benchmarks, 2 full benchmarks, 3 burn-in.")  # fmt: skip
@click.option("--guest", is_flag=True, help="This machine is a guest.")
@click.option("--list", "listing", is_flag=True, help="List all checks and their reasons; check nothing.")
@click.option("--against", metavar="FILE", help="Compare with an earlier validation (JSON).")
@click.option("--gate", type=click.Choice(GATES), help="Which result causes exit code 1: a bad verdict (the"
              " default), anything worse than in --against, or either of them.")  # fmt: skip
@click.option("--duration", type=Seconds(min=1, max=7 * 86400), metavar="SECONDS",
              help="How long the burn-in of level 3 takes (default 300).")  # fmt: skip
@click.option("--scratch", metavar="PATH", help="Directory in which to measure storage; nothing else is written.")
@click.option(
    "--peer", "peers", multiple=True, metavar="HOST", help="Also measure the network to this host (repeatable)."
)
@click.option("--fleet", metavar="FILE", help="Your fleet's own floors (TOML), in addition to the shipped ones.")
@click.option(
    "--expect",
    metavar="FILE",
    help="What must be here: a host document, plan, validation, or fabric.roce of an intent.",
)
@click.option("--forget", multiple=True, metavar="BDF", help="Stop expecting this device (repeatable; needs --why).")
@click.option("--accept", multiple=True, metavar="CHECK[:SUBJECT]", help="Answer for this unknown or warning, so that"
              " it does not move the verdict (repeatable; needs --why and --until).")  # fmt: skip
@click.option("--why", metavar="TEXT", help="The reason of --forget or --accept; recorded with your name and the time.")
@click.option("--until", metavar="DATE", help="The last day of --accept, as 2026-12-31.")
@click.option("--accepted", metavar="FILE", hidden=True)  # a fleet's, as JSON: hosttune_accept
@click.option("--all", "each", is_flag=True, help="Tell each result, also of several that have one reason.")
@click.option("--brief", is_flag=True, help="One table: what did not pass, and what to do.")
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True, help="What to print.")
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
    each: bool,
    **asked: Any,
) -> None:
    """Check that a host is fit for a tenant, and measure it. Changes nothing; exits 1 on a failure or an unknown.

    With -o prometheus it exits 0 whenever the metrics were written: the exit code is one of them.

    \b
    hosttune validate
    hosttune validate --level 1 -o html > report.html
    hosttune validate --level 1 -o certificate > certificate.html
    hosttune validate --against before.json
    hosttune validate --forget 0000:18:00.0 --why "sent back, RMA 4711"
    hosttune validate --accept numa-affinity --why "cloud VM without nodes" --until 2027-03-31
    """
    if listing:
        list_checks(guest, output)
        return
    from msgspec.structs import replace

    from hosttune.machine.opening import open_system
    from hosttune.report.validation import brief_report
    from hosttune.validating import ValidationRequest, check_request, exit_code
    from hosttune.validating import validate as check

    request = ValidationRequest(
        level=level, guest=guest, forget=asked["forget"], why=asked["why"], accept=asked["accept"],
        until=asked["until"], duration=asked["duration"], scratch=asked["scratch"], peers=asked["peers"],
    )  # fmt: skip
    check_request(request, captured=root is not None or document is not None)  # before any file is read
    request = replace(
        request, **files_of(against, gate, asked), accepted=accepted_of(root or document, asked["accepted"])
    )
    begun = time.time()
    checked = check(read_document(root, document) or open_system(root), request, say=progress(), tell=tell)
    code = exit_code(checked.validation, gate or "verdict", request.against)
    # The exit code is a metric; the command's own says whether they were written.
    only = {
        "prometheus": lambda: metrics_of(checked, "validate", begun, code),
        "certificate": lambda: certificate_of(checked, request.floors),
    }
    with exiting(context, 0 if output == "prometheus" else code):
        emit_report(
            checked.validation,
            output,
            brief_report if asked["brief"] else lambda _: report_of(checked, request.against, request.floors, each),
            only,
        )


def files_of(against: str | None, gate: str | None, asked: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a request that are read from files. Raises BadInput."""
    from hosttune.validating.history import read_validation

    if gate not in (None, "verdict") and against is None:
        raise BadInput(f"--gate {gate} without --against", where="--gate", hint="name the validation to compare with")
    before = read_validation(against) if against is not None else None
    return {"against": before, "floors": read_fleet(asked["fleet"]), "expect": read_expectation(asked["expect"])}


def accepted_of(elsewhere: str | None, path: str | None = None) -> tuple[Acceptance, ...]:
    """Return what the configuration file of this machine and that of a fleet (`path`) accept. Raises BadInput.

    `elsewhere`: the captured host, which gives the same result on every machine.
    """
    from hosttune.cli import config
    from hosttune.journal.state import load
    from hosttune.model.jsontext import plain_json
    from hosttune.validating.accepting import declared

    acceptances = () if elsewhere is not None else config.accepted()
    if path is None:
        return acceptances
    rows = plain_json(load(path, what="a list of acceptances"), where="hosttune_accept", hint="write a list")
    return (*acceptances, *declared(rows, "hosttune_accept"))


def read_expectation(path: str | None) -> ExpectedDevices | None:
    """Return the expectation from the file of --expect, None if not given. Raises BadInput."""
    if path is None:
        return None
    from hosttune.journal.state import load
    from hosttune.rules.checks.expected import of_document

    return of_document(load(path, what="a host document, a plan or a validation"), path)


def read_fleet(path: str | None) -> str | None:
    """Return the text of a fleet's own floors, None if not given.

    Raises BadInput, also for implausible floors, and for none: a file that was cut off would compare nothing.
    """
    if path is None:
        return None
    from hosttune.bench.baselines import with_fleet
    from hosttune.journal.state import load_text

    text = load_text(path, what="your fleet's floors (TOML)", size="fleet's floors")
    if not any(row.own for row in with_fleet(text, path).baselines):
        hint = "make it with hosttune fleet floors, after hosttune fleet validate --level 1"
        raise BadInput("no floors in it", where=path, hint=hint)
    return text


def list_checks(inside: bool, output: str) -> None:
    """Print every check with its description, in the order of the report."""
    from hosttune.report.rules import rules_report
    from hosttune.rules.checks import checks

    if output not in REPORTS:
        raise BadInput(f"--list as {output}", where="--output", hint=f"give one of {', '.join(REPORTS)}")
    listed = checks(inside)
    names = {"id": "id", "title": "title", "subjects": "about", "why": "why", "source": "source", "inside": "inside"}
    rows = [{name: getattr(check, field) for name, field in names.items()} for check in listed]
    emit_report(rows, output, lambda _: rules_report("Checks of a host", listed))


def report_of(validated: Validated, before: Validation | None, floors: str | None = None, each: bool = False) -> Report:
    """Return the report of a validation. Raises BadInput for a fleet's floors."""
    from hosttune.bench.baselines import with_fleet
    from hosttune.report.validation import validation_report
    from hosttune.rules.checks import checks

    evidence = validated.evidence
    return validation_report(
        validated.validation,
        host=evidence.host,
        plans=evidence.plans,
        before=before,
        baselines=lambda: with_fleet(floors),
        history=evidence.history,
        checks=checks(evidence.inside),
        diagnosis=(lambda: diagnosed(validated)) if validated.validation.samples else None,
        each=each,
    )


def certificate_of(validated: Validated, floors: str | None = None) -> str:
    """Return the certificate of a validation as a page. Raises BadInput for a fleet's floors."""
    from hosttune.bench.baselines import with_fleet
    from hosttune.report.certificate import certificate_report
    from hosttune.report.draw import drawn

    return drawn(certificate_report(validated.validation, validated.evidence, with_fleet(floors)), "html")


def diagnosed(validated: Validated) -> Diagnosis:
    """Return the figures of a validation against the model of its host, with the paths of low ones."""
    from msgspec.structs import replace

    from hosttune.rules.causes import diagnose
    from hosttune.rules.causes.gathering import of_validation
    from hosttune.rules.causes.paths import low_paths

    host = validated.evidence.host
    judged = diagnose(of_validation(validated.validation, host), complaining=False)
    return replace(judged, paths=low_paths(judged, host))


def metrics_of(validated: Validated, verb: str, begun: float, code: int) -> str:
    """Return the metrics of a validation that began at `begun` (seconds since 1970)."""
    from hosttune.metrics import CommandRun, Observed, exposition

    run = CommandRun(verb=verb, at=begun, exit_code=code, seconds=max(0.0, time.time() - begun))
    return exposition(Observed(run=run, evidence=validated.evidence, validation=validated.validation))
