"""The plan document as text: what each guest gets and why, what would change on the host, and what to watch for.

The order is the order of reading: a verdict in one line, errors, guests, guests that could not be placed, actions,
other findings.
`cli` saves the plan and prints where. The text is ASCII, except for names that the machine itself gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hosttune.model.host import Host, PciDevice
from hosttune.model.listing import short_list, some
from hosttune.model.plan import Action, Cell, Device, Finding, Plan, PlannedGuest, Unplaced
from hosttune.model.prediction import Expectation
from hosttune.model.values import CpuSet, format_size, grouped, value_text
from hosttune.report.branch import count, draw_rows, say, wrap
from hosttune.report.devices import link_text
from hosttune.report.expectation_text import HEADING, WORSE_HEADING, expectation_of, expected_rows, worse_rows
from hosttune.report.values import setting_value, short_lists

if TYPE_CHECKING:
    from rich.console import Console

_LEVELS = ("error", "warn", "info")
_RUNS = 8  # a cell with more rows of pins shows only the sets


def print_plan(plan: Plan, host: Host, console: Console) -> None:
    """Print a plan made for `host`, whose links and models are shown next to the planned devices."""
    for line in wrap(verdict(plan), console.width):
        say(line, console, "strong")
    errors = tuple(finding for finding in plan.findings if finding.level == "error")
    draw_rows(finding_rows(errors), console)
    kept = short_lists(plan.housekeeping_cpus or "none")
    draw_rows([("CPUs that stay with the host (housekeeping)", kept)], console)
    for guest in plan.guests:
        _print_guest(guest, host, console)
        _print_expectation(expectation_of(plan, guest.name), console)
    for unplaced in plan.unplaced:
        _print_unplaced(unplaced, console)
    _print_actions(plan.actions, host, console)
    _print_findings(tuple(finding for finding in plan.findings if finding not in errors), console)


def verdict(plan: Plan) -> str:
    """Return the plan in one line: guests placed and not placed, actions, reboots, important findings."""
    facts = [f"{count(len(plan.guests), 'guest')} placed"]
    facts += [f"{len(plan.unplaced)} NOT placed"] if plan.unplaced else []
    needed = sum(1 for action in plan.actions if action.needed)
    reboots = sum(1 for action in plan.actions if action.effect == "reboot")
    actions = f"{count(len(plan.actions), 'action')} ({needed} needed, {reboots} with a reboot)"
    facts.append(actions if plan.actions else "nothing to change on the host")
    for level, noun in (("error", "error"), ("warn", "warning")):
        number = sum(1 for finding in plan.findings if finding.level == level)
        facts += [count(number, noun)] if number else []
    return f"plan for {plan.hostname or 'an unnamed host'}: {', '.join(facts)}"


# --- guests --------------------------------------------------------------------------------------------------


def _print_guest(guest: PlannedGuest, host: Host, console: Console) -> None:
    say("", console)
    for line in wrap(guest_title(guest), console.width):
        say(line, console, "strong")
    draw_rows(guest_rows(guest), console)
    if guest.devices:
        say("  devices", console)
        index = host.index.pci
        models = {gpu.address: gpu.model for gpu in host.gpus}
        draw_rows([device_row(device, index, models) for device in guest.devices], console, indent=4)
    _print_steps(guest, console)
    if guest.why:
        say("  why", console)
        draw_rows([("-", line) for line in guest.why], console, indent=4)


def _print_expectation(found: Expectation | None, console: Console) -> None:
    if found is None:
        return
    say(f"  {HEADING}", console)
    draw_rows(((f"{what}, {of}", figures) for what, figures, of in expected_rows(found)), console, indent=4)
    if found.worse:
        say(f"  {WORSE_HEADING}", console)
        draw_rows(worse_rows(found), console, indent=4)


def guest_rows(guest: PlannedGuest) -> list[tuple[str, ...]]:
    """Return (what, value) rows: cells with their pins, other threads, fabric partition, MIG, 64-bit window."""
    rows: list[tuple[str, ...]] = []
    for cell in guest.cells:
        rows += _cell_rows(guest, cell)
    rows.append(("emulator threads", f"host CPUs {short_lists(guest.emulator_cpus or 'none')}"))
    rows += [(f"I/O thread {n}", f"host CPUs {short_lists(cpus)}") for n, cpus in enumerate(guest.iothread_cpus, 1)]
    if guest.fabric_partition is not None:
        rows.append(("fabric", f"partition {guest.fabric_partition}"))
    whole = {device.address for device in guest.devices if device.kind == "gpu"}
    for one in guest.mig:
        inside = ", inside the guest" if one.gpu in whole else ""
        rows.append(("MIG", f"{one.profile} on {one.gpu}, memory slice {one.start}{inside}"))
    if guest.mmio64_bytes:
        rows.append(("64-bit MMIO", _window(guest)))
    return rows


def _print_steps(guest: PlannedGuest, console: Console) -> None:
    """Print the steps that a person does for the guest. Steps that were not tried are marked."""
    for when, heading in (("start", "before it starts"), ("stop", "after it has stopped")):
        steps = [step for step in guest.steps if step.when == when]
        if not steps:
            continue
        every = all(step.unproven for step in steps)
        say(f"  {heading}, by hand{', unproven: tried on no such machine' if every else ''}", console)
        texts = [f"{step.text} (unproven)" if step.unproven and not every else step.text for step in steps]
        draw_rows([(f"{n}.", text) for n, text in enumerate(texts, 1)], console, indent=4)


def guest_title(guest: PlannedGuest) -> str:
    """Return name, vCPUs with their topology, memory, pages and devices of a guest."""
    return f"guest {guest.name}: {guest_facts(guest)}"


def guest_facts(guest: PlannedGuest) -> str:
    """Return vCPUs with their topology, memory, pages and devices of a guest."""
    memory = sum(cell.memory_bytes for cell in guest.cells)
    shape = guest.topology
    facts = [count(len(guest.vcpu_pins), "vCPU")]
    if shape:
        dies = f"{shape.dies} x " if shape.dies > 1 else ""
        words = (
            f"{count(shape.sockets, 'socket')} x {dies}{count(shape.cores, 'core')} x {count(shape.threads, 'thread')}"
        )
        facts[0] += f" ({words})"
    facts.append(format_size(memory))
    facts[-1] += f" in {format_size(guest.page_bytes)} pages" if guest.page_bytes else " without huge pages"
    facts.append(count(len(guest.devices), "device"))
    facts += [f"accelerator {guest.accelerator}: slow, for trials"] if guest.accelerator != "kvm" else []
    return ", ".join(facts)


def _cell_rows(guest: PlannedGuest, cell: Cell) -> list[tuple[str, ...]]:
    """Return a cell's row, then one row for each run of pins."""
    memory = format_size(cell.memory_bytes)
    if guest.page_bytes:
        memory += f" ({cell.memory_bytes // guest.page_bytes} pages)"
    rows: list[tuple[str, ...]] = [(f"cell {cell.id}", f"host node {cell.host_nodes}, {memory}")]
    wanted = CpuSet.parse(cell.vcpus)
    pins = [(pin.vcpu, int(pin.cpus)) for pin in guest.vcpu_pins if pin.vcpu in wanted]
    threads = guest.topology.threads if guest.topology else 1
    runs = pin_runs(sorted(pins), threads)
    if len(runs) > _RUNS:
        runs = [_run_texts(_cores(sorted(pins), threads))]
    return [*rows, *((f"  vCPUs {vcpus}", f"host CPUs {cpus}") for vcpus, cpus in runs)]


def pin_runs(pins: Sequence[tuple[int, int]], threads: int) -> list[tuple[str, str]]:
    """Return (vCPU, CPU) pins in vCPU order as runs of (vCPUs, CPUs) texts.

    A run continues while every core's CPUs are the previous core's plus one: vCPUs 0-5 on cores 4, 5 and 6 with
    siblings 100, 101 and 102 are one run "0-5" -> "4-6 with siblings 100-102".
    """
    runs: list[list[Sequence[tuple[int, int]]]] = []
    for core in _cores(pins, threads):
        if runs and _follows(runs[-1][-1], core):
            runs[-1].append(core)
        else:
            runs.append([core])
    return [_run_texts(run) for run in runs]


def _cores(pins: Sequence[tuple[int, int]], threads: int) -> list[Sequence[tuple[int, int]]]:
    return [pins[i : i + threads] for i in range(0, len(pins), threads)]


def _follows(last: Sequence[tuple[int, int]], core: Sequence[tuple[int, int]]) -> bool:
    return len(core) == len(last) and all(
        now[0] == before[0] + len(last) and now[1] == before[1] + 1 for before, now in zip(last, core, strict=True)
    )


def _run_texts(run: Sequence[Sequence[tuple[int, int]]]) -> tuple[str, str]:
    """Return the vCPUs of cores, and their CPUs by thread: the first CPU of every core, then its siblings."""
    vcpus = CpuSet(vcpu for core in run for vcpu, _ in core)
    columns = [short_list(core[n][1] for core in run if n < len(core)) for n in range(len(run[0]))]
    siblings = f" with siblings {' and '.join(columns[1:])}" if len(columns) > 1 else ""
    return str(vcpus), columns[0] + siblings


def _window(guest: PlannedGuest) -> str:
    """Return the 64-bit window and what opens it. About the firmware, it says only what the plan says."""
    facts = [f"a window of {format_size(guest.mmio64_bytes)}"]
    if guest.mmio_note:
        facts.append(guest.mmio_note)
    elif guest.ovmf_window_mib is not None:
        facts.append(f"the firmware is asked for {format_size(guest.ovmf_window_mib << 20)}")
    return ", ".join(facts)


def device_row(device: Device, index: Mapping[str, PciDevice], models: dict[str, str | None]) -> tuple[str, str, str]:
    """Return a device's kind, its address, and where and what it is. `models` has the GPUs' models by address."""
    seen = index.get(device.address)
    cell = "no cell" if device.guest_cell is None else f"cell {device.guest_cell}"
    node = "node unknown" if device.host_node is None else f"node {device.host_node}"
    facts = [device.name or models.get(device.address) or (seen and seen.device_name) or ""]
    facts.append(link_text(seen.link) if seen else "")
    facts.append("driver rebound by libvirt" if device.managed else "")
    where = f"{node} -> {cell}, guest address {device.guest_address or 'chosen at its start'}"
    return device.kind, device.address, ", ".join((where, *(fact for fact in facts if fact)))


def _print_unplaced(unplaced: Unplaced, console: Console) -> None:
    say("", console)
    say(f"guest {unplaced.guest}: NOT PLACED", console, "error")
    draw_rows([("-", line) for line in unplaced.why], console)
    if unplaced.relaxation:
        say("  it would fit with one of these", console)
        draw_rows([("-", line) for line in unplaced.relaxation], console)


# --- actions and findings ------------------------------------------------------------------------------------


def _print_actions(actions: tuple[Action, ...], host: Host, console: Console) -> None:
    for effect, heading in (("now", "actions, effective at once"), ("reboot", "actions, effective after a reboot")):
        chosen = [action for action in actions if action.effect == effect]
        if not chosen:
            continue
        say("", console)
        say(heading, console, "strong")
        for group in alike(chosen):
            marks = ("*" if group[0].needed else "-", " ", " ")
            draw_rows(zip(marks, action_lines(group, host), strict=False), console)
    if any(action.needed for action in actions):
        say("  * needed: the guest cannot work without it", console, "dim")


def alike(actions: Sequence[Action]) -> list[list[Action]]:
    """Group actions that differ only in their target, in the order of the first of each group."""
    groups: dict[tuple[str, ...], list[Action]] = {}
    for action in actions:
        values = (_value(action.current), _value(action.want), str(action.needed), str(action.reversible))
        groups.setdefault((action.kind, *values, action.why.replace(action.target, "it")), []).append(action)
    return list(groups.values())


def action_lines(alike: list[Action], host: Host) -> tuple[str, ...]:
    """Return what changes, on which targets if there are several, and why."""
    first = alike[0]
    none = _known_absent(first, host) if first.current is None else None
    now = none or _value(setting_value(first.kind, first.current))
    then = "removed" if first.want is None else _value(setting_value(first.kind, first.want))
    change = f"{now} -> {then}" + ("" if first.reversible else " (cannot be undone)")
    if len(alike) == 1:
        return f"{first.kind} {short_lists(first.target)}: {change}", first.why
    targets = ", ".join(short_lists(action.target) for action in alike)
    return f"{first.kind} of {len(alike)} targets, each: {change}", targets, first.why.replace(first.target, "it")


def _known_absent(action: Action, host: Host) -> str | None:
    """Return what an action's missing present value means if that is certain; None if it is unknown.

    It is certain if the whole command line, or the list of mounts, was read and the value is not in it, or if the
    function is proven to have no driver. A link that a capture has lost, or that was not recorded, proves nothing.
    """
    if action.kind == "kernel-argument" and host.kernel_args is not None:
        return "not set"
    if action.kind in ("mount", "apparmor-rule"):
        return "none"
    if action.kind == "driver" and any(one.address == action.target and one.unbound for one in host.pci):
        return "no driver"
    return None


def _value(value: Any) -> str:
    return short_lists(value_text(value, nothing="unknown"))


def _print_findings(findings: tuple[Finding, ...], console: Console) -> None:
    if not findings:
        return
    say("", console)
    say("findings", console, "strong")
    draw_rows(finding_rows(findings), console)


def finding_rows(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    """Return (level, text with its places), the most important level first; equal texts are one row."""
    places = grouped(
        ((_LEVELS.index(one.level), one.text), one.where)
        for one in sorted(findings, key=lambda one: _LEVELS.index(one.level))
    )
    return [(_LEVELS[level], f"{text} ({some(where)})") for (level, text), where in places.items()]
