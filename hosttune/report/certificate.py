"""The certificate of a validation, for the tenant: which host and devices, what was looked at and when, the figures,
what somebody answers for, the statement of the hand-over, and until when it holds. It prints on at most three pages.

Only a verdict that may be signed makes one. Otherwise the same page says first that it is none, and why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hosttune.bench.baselines import Standard
from hosttune.bench.measures import Measure, measures, scales
from hosttune.model.evidence import Evidence
from hosttune.model.handover import digest_of
from hosttune.model.listing import some
from hosttune.model.text import number
from hosttune.model.validation import ACCEPTED, Validation
from hosttune.model.values import grouped, to_json
from hosttune.report.blocks import AnyBlock, Facts, Lines, Report, Section, Table
from hosttune.report.outcomes import Mark, groups, meaning, occasion, tally, unseen
from hosttune.report.validation import machine_text, results_table

_MONO = dict.fromkeys(("address", "UUID"), "mono")
_FIRMWARE = ("vbios", "nic-firmware", "drive-firmware")
_MANY = 6  # subjects named in a cell
_NOT_HANDED = (
    "No signed statement is kept on this host: nothing says that its devices were reset and erased after the last"
    " tenant (hosttune handover)."
)


def certificate_report(validation: Validation, evidence: Evidence, standard: Standard) -> Report:
    """Return the certificate of a validation that was made from `evidence`. `standard`: the floors of its figures."""
    verdict, word, kind = validation.verdict, "CERTIFICATE", "Certificate of a GPU host"
    means = f"{meaning(validation)} It holds {holds_until(validation, evidence)}."
    if verdict not in ("pass", "warn") or unseen(validation):
        verdict = "fail" if verdict == "fail" else "unknown"
        word, kind, means = "NO CERTIFICATE", "Not a certificate", f"{meaning(validation)} This page certifies nothing."
    elif validation.at is None:
        verdict, word, kind = "unknown", "SPECIMEN", "Specimen of a certificate"
        means = "Made from a capture or a document: when anybody looked at the host is unknown. It certifies nothing."
    digest = f"sha256 {digest_of(validation)} of its canonical JSON; the document is in this file (id validation)"
    machine = validation.machine.digest if validation.machine else None
    facts = (
        ("host", machine_text(evidence.host)),
        ("machine", machine or "no digest: the machine's id is not known"),
        (
            "looked at",
            ", ".join((validation.at or "at an unknown time", *occasion(validation)[:: 2 if validation.at else 1])),
        ),
        *([("GPUs", validation.looked)] if validation.looked else []),
        ("results", tally(validation.results)),
        *(dict(validation.facts or {}).items()),
        ("full validation", digest),
    )
    return Report(
        kind=kind,
        command="hosttune validate -o certificate",
        name=validation.host or "unnamed host",
        verdict=verdict,
        word=word,
        headline=tally(validation.results),
        meaning=means,
        blocks=(
            results_table(
                validation.results,
                f"Why this is {'no certificate' if word != 'SPECIMEN' else 'a specimen'}",
                "fail",
                "unknown",
            ),
            Facts(heading="What was looked at", parts=facts),
            _devices(validation, evidence),
            _figures(validation, evidence, standard),
            results_table(validation.results, "Warnings", "warn"),
            _accepted(validation),
            Section(heading="Hand-over", blocks=tuple(_handed(evidence))),
        ),
        data=(("validation", to_json(validation)),),
    )


def holds_until(validation: Validation, evidence: Evidence) -> str:
    """Return until when a certificate holds, in words: dates, then what ends it on any day."""
    valid = (statement for statement in evidence.statements or () if statement.verdict == "valid")
    ends = [(statement.expires_at, "the statement of the hand-over") for statement in valid if statement.expires_at]
    accepted = (result.accepted for result in validation.results if result.standing == ACCEPTED and result.accepted)
    ends += [(acceptance.until, f"{acceptance.check} is accepted") for acceptance in accepted]
    date, why = min(ends, default=("", ""))
    changes = "a device, its firmware or driver, a setting or a guest changes, or the host boots"
    return f"until {date} ({why}), and no longer than until {changes}" if date else f"until {changes}"


def _devices(validation: Validation, evidence: Evidence) -> Table:
    host = evidence.host
    values = {
        (fact.name, address): fact.value
        for fact in validation.configuration or ()
        for address in fact.subjects
        if fact.value is not None
    }
    serials: Mapping[str, str] = (host.handover and host.handover.serials) or {}

    def row(kind: str, address: str, model: str | None) -> tuple[str, ...]:
        look = (evidence.looks or {}).get(address)
        before = {"uuid": look.uuid, "serial": look.serial} if look else {}
        known = {**before, "serial": serials.get(address) or before.get("serial"), **host.index.identity(address)}
        function = host.index.pci.get(address)
        firmware = next((values[name, address] for name in _FIRMWARE if (name, address) in values), None)
        driver = " ".join(filter(None, ((function and function.driver) or "none", values.get(("gpu-driver", address)))))
        serial = known["serial"] or known.get("dsn")
        words = f"{kind} {model or (function and function.device_name) or ''}".strip()
        return words, address, serial or "unknown", known.get("uuid") or "", firmware or "unknown", driver

    devices = [("GPU", gpu.address, gpu.model) for gpu in host.index.accelerators]
    devices += [("NVSwitch", switch.address, None) for switch in host.nvswitches]
    devices += [("NIC", nic.address, None) for nic in host.nics if nic.physfn is None]
    devices += [("NVMe", drive.address, None) for drive in host.nvme]
    columns = ("device", "address", "serial number", "UUID", "firmware", "driver")
    return Table(heading="Devices", columns=columns, rows=tuple(row(*device) for device in devices), styles=_MONO)


def _figures(validation: Validation, evidence: Evidence, standard: Standard) -> Section:
    figures = measures(validation.samples, scales(validation.samples, evidence.host, standard, evidence.history))
    rows = tuple(
        _figure(metric, members)
        for metric, members in grouped((measure.metric, measure) for measure in figures).items()
    )
    columns = ("figure", "measured", "worst", "of", "floor", "where the floor is from")
    table = Table(columns=columns, rows=rows, styles={"figure": "mono", "worst": "num", "floor": "num"})
    return Section(
        heading="Figures against floors",
        lead="The worst median of each figure." if rows else "",
        blocks=(
            table
            if rows
            else Lines(
                lines=("Nothing was measured: hosttune validate --level 1 (or 2, 3) -o certificate measures.",),
                style="dim",
            ),
        ),
    )


def _figure(metric: str, members: list[Measure]) -> tuple[Mark | str, ...]:
    """Return the row of a metric: the measure that is nearest to the wrong side of its floor."""

    def margin(measure: Measure) -> float:
        floor = (measure.scale and measure.scale.floor) or 1.0
        return -(measure.median or 0.0) / floor if measure.lower_is_better else (measure.median or 0.0) / floor

    worst = min(members, key=lambda measure: (measure.median is not None, not measure.below_floor, margin(measure)))
    scale, least = worst.scale, "at most" if worst.lower_is_better else "at least"
    if worst.median is None:
        figure: Mark | str = Mark("unknown", "no figure")
    else:
        text = f"{number(worst.median)} {worst.unit}"
        outcome = {None: "skip", True: "fail", False: "pass"}[worst.below_floor]
        figure = Mark(outcome, text)
    floor = f"{least} {number(scale.floor)}" if scale and scale.floor is not None else "none"
    return (
        metric,
        f"{len(members)} ×",
        figure,
        worst.subject.replace("->", " → "),
        floor,
        (scale and scale.source) or "",
    )


def _accepted(validation: Validation) -> Section:
    rows = tuple(
        (group.check, some(group.subjects, _MANY), group.actual or "", group.accepted.text)
        for group in groups(validation.results)
        if group.accepted and group.outcome == ACCEPTED
    )
    table = Table(columns=("check", "of", "what was seen", "accepted"), rows=rows)
    nothing = Lines(lines=("Nothing: each result counts.",), style="dim")
    return Section(heading="Accepted", blocks=(table if rows else nothing,))


def _handed(evidence: Evidence) -> Iterator[AnyBlock]:
    for statement in evidence.statements or ():
        why = "; ".join(dict.fromkeys(reason.text for reason in statement.reasons))
        yield Facts(
            heading=f"Statement of {statement.signer}",
            parts=(
                ("state", f"{statement.verdict} now" + (f": {why}" if why else "")),
                ("signer", statement.signer),
                ("issued", statement.issued_at),
                ("expires", statement.expires_at or "never signed"),
                ("devices", ", ".join(statement.devices)),
                ("revoked keys", statement.list_age()),
            ),
        )
    if not evidence.statements:
        yield Lines(lines=(_NOT_HANDED,), style="dim")
