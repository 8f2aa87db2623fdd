"""A plan or a dry run of one host in short lines without the host's name: alike hosts have equal lines."""

from __future__ import annotations

from collections.abc import Sequence

from hosttune.model.plan import Plan, PlannedGuest
from hosttune.model.result import Result
from hosttune.model.settingtext import setting_text, setting_value, short_lists, short_value
from hosttune.model.text import count
from hosttune.model.values import format_size

_ERROR = "error: "


def change_lines(result: Result) -> tuple[str, ...]:
    """Return each change of a dry run, its outcome where it is not planned, and each note. Values are cut short."""
    lines = []
    for entry in result.entries:
        if entry.outcome == "already":
            continue
        kind = entry.action.partition(":")[0]
        before, want = (short_value(setting_value(kind, value)) for value in (entry.before, entry.want))
        before = before if entry.before is not None or entry.before_known else "unknown"
        outcome = "" if entry.outcome == "planned" else f"{entry.outcome}: "
        lines.append(f"{outcome}{setting_text(entry.action)}: {before} -> {want}")
    # That nothing was written is said once for all hosts.
    notes = [short_lists(note.split("\n")[0]) for note in result.notes if not note.startswith("dry run: ")]
    reboot = ["a reboot is required"] if result.reboot_required else []
    return (*dict.fromkeys([*lines, *notes, *reboot]),)


def plan_lines(plan: Plan) -> tuple[str, ...]:
    """Return each guest with its size, places and devices, each guest without a place, actions and findings."""
    needed = sum(action.needed for action in plan.actions)
    reboots = sum(action.effect == "reboot" for action in plan.actions)
    lines = [_guest(guest) for guest in plan.guests]
    lines += [f"guest {left_out.guest}: NOT PLACED: {'; '.join(left_out.why[:1])}" for left_out in plan.unplaced]
    lines.append(f"{count(len(plan.actions), 'action')} ({needed} needed, {reboots} with a reboot)")
    lines += [f"{finding.level}: {finding.text}" for finding in plan.findings if finding.level != "info"]
    return tuple(lines)


def has_errors(lines: Sequence[str]) -> bool:
    """Whether the lines of a plan have a finding of the level error."""
    return any(line.startswith(_ERROR) for line in lines)


def _guest(guest: PlannedGuest) -> str:
    memory = format_size(sum(cell.memory_bytes for cell in guest.cells))
    pages = f" in {format_size(guest.page_bytes)} pages" if guest.page_bytes else ""
    nodes = ",".join(dict.fromkeys(cell.host_nodes for cell in guest.cells if cell.host_nodes))
    given = ", ".join(f"{device.kind} {device.address}" for device in guest.devices)
    place = f"; node {nodes}" if nodes else ""
    return f"guest {guest.name}: {count(len(guest.vcpu_pins), 'vCPU')}, {memory}{pages}{place}" + (
        f"; {given}" if given else ""
    )
