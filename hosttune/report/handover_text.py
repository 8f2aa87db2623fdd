"""The verification of a statement, and the register of devices, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hosttune.model.handover import Statement
from hosttune.model.verification import CourseStatus, CourseStep, DeviceStatus, HandoverStatus, Verification
from hosttune.report.branch import count, draw_rows, say, wrap

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {"quarantined": "error", "released": "warn", "clean": "plain"}


def print_verification(found: Verification, console: Console) -> None:
    """Print whether a statement is valid, about what, and every reason why it is void."""
    place = (
        "the host document, not of a live host: no reason to give a device to a tenant"
        if found.about == "document"
        else "this host"
    )
    say(f"{found.verdict}, by the state of {place}", console, "strong" if found.verdict == "valid" else "error")
    told = f"host {found.host or '?'}, {count(len(found.devices), 'device')}, signer {found.signer}, "
    told += f"issued {found.issued_at}, expires {found.expires_at or 'never signed'}"
    for line in wrap(told, console.width):
        say(line, console)
    draw_rows(((one.subject, one.reason, one.text) for one in found.reasons), console)


def print_status(found: HandoverStatus, console: Console) -> None:
    """Print the register of devices, and whether starts by other programs are recorded."""
    if found.devices is None:
        say("the register of devices cannot be read here: run as root, on the host", console, "error")
    elif not found.devices:
        say("no device is or was in a hand-over here", console)
    for device in found.devices or ():
        _print_device(device, console)
    if found.course is not None:
        _print_course(found.course, console)
    _print_statements(found, console)
    recording = found.recording
    if recording is not None and recording.active:
        say("starts of guests by other programs: recorded and guarded by the hook of libvirt", console)
        return
    why = recording.why if recording else "the hook of libvirt cannot be read"
    text = f"starts of guests by other programs are not recorded: {why}. A quarantined device can be started by virsh, "
    text += "and every statement is void. Plan and apply with the setting libvirt_hook: true"
    for line in wrap(text, console.width):
        say(line, console, "warn")


def _print_statements(found: HandoverStatus, console: Console) -> None:
    if found.statements is None and found.devices is not None:
        say("a signed statement that is kept here cannot be read", console, "error")
    for one in found.statements or ():
        say(f"signed statement of {one.signer}, expires {one.expires_at}, {one.list_age()}", console)
        rows = [
            (address, one.state(address), "; ".join(dict.fromkeys(reason.text for reason in one.of(address))))
            for address in one.devices
        ]
        draw_rows(rows, console)


def _print_course(found: CourseStatus, console: Console) -> None:
    word = (
        "runs" if found.running else "ended" if found.ended else "was cut off: the same hosttune handover again ends it"
    )
    say(f"hand-over {found.number}, begun {found.began}, {word}", console, "plain" if found.ended else "warn")
    rows = [(one.address, one.step, one.outcome or "begun", one.why or _times(one)) for one in found.steps]
    draw_rows(rows, console)
    if found.statement is not None:
        say(f"statement: {found.statement}", console)


def _times(one: CourseStep) -> str:
    if one.outcome is not None:
        return ""
    since = [f"since {one.began}"] if one.began is not None else []
    times = (("about", one.estimate_seconds), ("at most", one.limit_seconds))
    told = [f"{word} {seconds:.0f} s" for word, seconds in times if seconds is not None]
    return ", ".join([*since, *told, *([f"{one.percent} % done"] if one.percent is not None else [])])


def print_handed(found: Statement, path: str, console: Console) -> None:
    """Print what a hand-over did with each device, and what to do with its statement."""
    for device in found.predicate.devices:
        say(f"{device.address}  {device.state}", console, _STYLES[device.state])
        draw_rows(((one.step, one.outcome, one.why or one.method or "") for one in device.steps), console)
    say(f"statement: {path}", console)
    if all(device.state == "clean" for device in found.predicate.devices):
        say("sign it on the controller: hosttune handover sign FILE --key KEY --expires 24h", console)


def _print_device(device: DeviceStatus, console: Console) -> None:
    one = device.record
    say(f"{one.address}  {one.state} since {one.since}: {one.why}", console, _STYLES[one.state])
    facts = [
        f"step {one.step}" if one.step else "",
        f"last guest {one.guest}" if one.guest else "",
        f"by {one.who}" if one.who else "",
        f"epoch {device.epoch}" if device.epoch is not None else f"epoch unknown ({device.epoch_unknown})",
    ]
    for line in wrap(", ".join(fact for fact in facts if fact), console.width - 2):
        say(f"  {line}", console, "dim")
