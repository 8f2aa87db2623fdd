"""The verification of a statement, and the register of devices: their reports."""

from __future__ import annotations

from hosttune.model.handover import Statement
from hosttune.model.text import count
from hosttune.model.verification import CourseStatus, CourseStep, DeviceStatus, HandoverStatus, Verification
from hosttune.report.blocks import Entries, Lines, Report, Section, Table, TitledFacts

_STEPS = ("step", "outcome", "why")


def verification_report(verification: Verification) -> Report:
    """Return whether a statement is valid, about what, and every reason why it is void."""
    document = "the host document, not of a live host: no reason to give a device to a tenant"
    told = (
        f"host {verification.host or '?'}, {count(len(verification.devices), 'device')}, signer {verification.signer}, "
    )
    told += f"issued {verification.issued_at}, expires {verification.expires_at or 'never signed'}"
    rows = tuple((reason.subject, reason.reason, reason.text) for reason in verification.reasons)
    return Report(
        kind="Verification of a statement",
        verdict="" if verification.verdict == "valid" else "fail",
        headline=f"{verification.verdict}, by the state of "
        + (document if verification.about == "document" else "this host"),
        occasion=(told,),
        blocks=(Table(heading="reasons", columns=("subject", "reason", "what"), rows=rows, whole=True),),
    )


def status_report(handover_status: HandoverStatus) -> Report:
    """Return the register of devices, and whether starts by other programs are recorded."""
    headline = f"devices in the register: {len(handover_status.devices or ())}"
    if handover_status.devices is None:
        headline = "the register of devices cannot be read here: run as root, on the host"
    elif not handover_status.devices:
        headline = "no device is or was in a hand-over here"
    recording = handover_status.recording
    recorded = "starts of guests by other programs: recorded and guarded by the hook of libvirt"
    why = recording.why if recording else "the hook of libvirt cannot be read"
    unrecorded = f"starts of guests by other programs are not recorded: {why}. virsh can start a guest with a"
    unrecorded += " quarantined device, and every statement is void. Plan and apply with the setting libvirt_hook: true"
    active = recording is not None and recording.active
    lost = handover_status.statements is None and handover_status.devices is not None
    return Report(
        kind="Devices between two tenants",
        verdict="fail" if handover_status.devices is None else "",
        headline=headline,
        blocks=(
            Entries(
                heading="devices",
                parts=tuple(_device(status) for status in handover_status.devices or ()),
                numbered=False,
                whole=True,
            ),
            *([_course(handover_status.course)] if handover_status.course is not None else []),
            Lines(
                heading="statements",
                lines=("a signed statement that is kept here cannot be read",) if lost else (),
                style="error",
            ),
            *(
                Table(
                    heading=f"signed statement of {verification.signer}, expires {verification.expires_at}, "
                    f"{verification.list_age()}",
                    columns=("device", "state", "why"),
                    rows=tuple(
                        (
                            address,
                            verification.state(address),
                            "; ".join(dict.fromkeys(reason.text for reason in verification.of(address))),
                        )
                        for address in verification.devices
                    ),
                    whole=True,
                )
                for verification in handover_status.statements or ()
            ),
            Lines(heading="starts", lines=(recorded if active else unrecorded,), style="plain" if active else "warn"),
        ),
    )


def _course(status: CourseStatus) -> Section:
    cut = "was cut off: the same hosttune handover again ends it"
    word = "runs" if status.running else "ended" if status.ended else cut
    rows = tuple(
        (course_step.address, course_step.step, course_step.outcome or "begun", course_step.why or _times(course_step))
        for course_step in status.steps
    )
    return Section(
        heading=f"hand-over {status.number}, begun {status.began}, {word}",
        blocks=(
            Table(columns=("device", *_STEPS), rows=rows, whole=True),
            Lines(lines=(f"statement: {status.statement}",) if status.statement is not None else ()),
        ),
    )


def _times(step: CourseStep) -> str:
    if step.outcome is not None:
        return ""
    since = [f"since {step.began}"] if step.began is not None else []
    times = (("about", step.estimate_seconds), ("at most", step.limit_seconds))
    told = [f"{word} {seconds:.0f} s" for word, seconds in times if seconds is not None]
    return ", ".join([*since, *told, *([f"{step.percent} % done"] if step.percent is not None else [])])


def handed_report(statement: Statement, path: str) -> Report:
    """Return what a hand-over did with each device, and what to do with its statement."""
    devices = statement.predicate.devices
    clean = all(device.state == "clean" for device in devices)
    return Report(
        kind="Devices handed over",
        verdict="" if clean else "fail",
        headline=f"statement: {path}",
        blocks=(
            *(
                Table(
                    heading=f"{device.address}  {device.state}",
                    columns=_STEPS,
                    rows=tuple(
                        (handover_step.step, handover_step.outcome, handover_step.why or handover_step.method or "")
                        for handover_step in device.steps
                    ),
                    whole=True,
                )
                for device in devices
            ),
            Lines(
                heading="next",
                lines=("sign it on the controller: hosttune handover sign FILE --key KEY --expires 24h",)
                if clean
                else (),
            ),
        ),
    )


def _device(device: DeviceStatus) -> TitledFacts:
    device_record = device.record
    facts = [
        f"step {device_record.step}" if device_record.step else "",
        f"last guest {device_record.guest}" if device_record.guest else "",
        f"by {device_record.who}" if device_record.who else "",
        f"epoch {device.epoch}" if device.epoch is not None else f"epoch unknown ({device.epoch_unknown})",
    ]
    title = f"{device_record.address}  {device_record.state} since {device_record.since}: {device_record.why}"
    return TitledFacts(title=title, facts=(("", ", ".join(fact for fact in facts if fact)),))


def intended_report(lines: tuple[str, ...]) -> Report:
    """Return what a hand-over would do, a line a device."""
    shown = Lines(heading="devices", lines=lines, whole=True)
    return Report(
        kind="A hand-over, not begun", headline=f"{count(len(lines), 'device')}: nothing was changed", blocks=(shown,)
    )
