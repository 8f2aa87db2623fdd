"""The report of a plan: what each guest gets and why, what would change on the host, and what to watch for.

The order is the order of reading: a verdict in one line, guests that could not be placed, errors, guests, actions,
findings. `cli` saves the plan and prints where.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from hosttune.model.host import Host, PciDevice
from hosttune.model.hostfields import UNTIL_THEN
from hosttune.model.listing import short_list, some
from hosttune.model.plan import Action, Cell, Device, Plan, PlanFinding, PlannedGuest, Unplaced
from hosttune.model.prediction import Expectation, PredictedFigure, WorsePlacement
from hosttune.model.settingtext import change_text, setting_value, short_lists
from hosttune.model.text import count
from hosttune.model.validation import severity
from hosttune.model.values import CpuSet, format_size, grouped, value_text
from hosttune.report.blocks import AnyBlock, Entries, Facts, Lines, Picture, Report, Section, Table, TitledFacts
from hosttune.report.devices import link_text
from hosttune.report.outcomes import Mark

# --- what a guest can expect ---------------------------------------------------------------------------------


HEADING = "what to expect (hosttune predict has formulas and sources)"
WORSE_HEADING = "what a worse placement would lose"
_NAMES = {
    "h2d": "host to GPU", "d2h": "GPU to host", "p2p": "GPU to GPU", "all-reduce-busbw": "all-reduce",
    "memory-copy": "memory copy",
}  # fmt: skip


def expectation_of(plan: Plan, guest: str) -> Expectation | None:
    """Return what a guest of the plan can expect; None if the plan does not say."""
    return next((expectation for expectation in plan.expected if expectation.guest == guest), None)


def expected_rows(expectation: Expectation) -> list[tuple[str, str, str]]:
    """Return (what, figures, of which devices) rows: typical figure and bound, or why they are not known."""
    return [
        (_NAMES.get(figure.metric, figure.metric), _figures(figure), figure.subject) for figure in expectation.figures
    ]


def worse_rows(expectation: Expectation) -> list[tuple[str, str]]:
    """Return (placement, what it loses) rows."""
    return [(placement.placement, "; ".join(_parts(placement))) for placement in expectation.worse]


def _figures(figure: PredictedFigure) -> str:
    if figure.bound is None:
        return "unknown: " + ("; ".join(figure.because).removeprefix("not known: ") or "no source")
    bound = f"at most {figure.bound:,.4g} {figure.unit}"
    return f"typical unknown, {bound}" if figure.typical is None else f"typical {figure.typical:,.4g}, {bound}"


def _parts(placement: WorsePlacement) -> Iterator[str]:
    if placement.loses is None or placement.here is None or placement.there is None:
        yield "unknown"
    elif placement.loses <= 0:
        yield "nothing that a source tells"
    else:
        least, most = (
            ("at least ", "at most ") if placement.metric == "p2p" else ("", "")
        )  # of a pair `there` is the bound
        there, here = (f"{value:,.4g}" for value in (placement.there, placement.here))
        yield f"{least}{placement.loses:.0%}: {most}{there} {placement.unit} and not {here}"
    yield placement.why


# --- the report ----------------------------------------------------------------------------------------------


CAPTION = "Each guest has one colour and one letter: on cores, memory, devices and its card."
_MARKS = {"error": "fail", "warn": "warn", "info": "skip"}
_MONO = {"address": "mono"}
_RUNS = 8  # a cell with more rows of pins shows only the sets


def plan_report(plan: Plan, host: Host, following: str = "hosttune apply") -> Report:
    """Return the report of a plan made for `host`, whose links and models are shown next to the planned devices."""
    facts = verdict(plan)
    errors = [finding for finding in plan.findings if finding.level == "error"]
    others = [finding for finding in plan.findings if finding.level != "error"]
    actions = tuple(action_sections(plan.actions, host))
    return Report(
        kind="Plan for a GPU host",
        verdict=worst(plan),
        headline=facts,
        meaning=f"{'Not every guest is placed. ' if plan.unplaced else ''}Nothing has been changed.",
        occasion=(f"CPUs that stay with the host (housekeeping): {short_lists(plan.housekeeping_cpus or 'none')}",),
        blocks=(
            *unplaced_sections(plan.unplaced),
            finding_table("Errors", errors),
            *change_sections(plan),
            *(replace(section, forms=("html",)) for section in actions),
            Section(heading="The host and its guests", blocks=(_picture(host, plan),)),
            *(
                guest_section(guest, host, expectation_of(plan, guest.name))
                for guest in plan.guests
                if guest.change != "keep"
            ),
            *(replace(section, forms=("text", "md")) for section in actions),
            finding_table("Findings", others),
        ),
        after=_last_line(plan, following),
    )


def worst(plan: Plan) -> str:
    """Return the outcome that a plan has: of a guest without a place, else of its worst finding."""
    levels = {finding.level for finding in plan.findings}
    return "fail" if plan.unplaced or "error" in levels else "warn" if "warn" in levels else "pass"


def change_sections(plan: Plan) -> Iterator[Section]:
    """Yield what changes of the guests in force: an entry each, with the changed elements of a guest below it."""
    if plan.based_on is None:
        return
    entries = [
        TitledFacts(title=f"+ {guest_title(planned_guest)}")
        for planned_guest in plan.guests
        if planned_guest.change == "create"
    ]
    for guest in plan.guests:
        if guest.change == "update":
            later = (
                " (from its next start)" if any(guest_change.when != "now" for guest_change in guest.changes) else ""
            )
            facts = tuple(
                ("", f"{guest_change.element}: {guest_change.was} -> {guest_change.becomes}")
                for guest_change in guest.changes
            )
            entries.append(TitledFacts(title=f"~ guest {guest.name}{later}", facts=facts))
    for removal in plan.removals:
        later = f" once it has stopped: virsh shutdown {removal.name}" if removal.when == "after-stop" else ""
        entries.append(TitledFacts(title=f"- guest {removal.name}{later}"))
    kept = ", ".join(planned_guest.name for planned_guest in plan.guests if planned_guest.change == "keep")
    entries += [TitledFacts(title=f"= stays as it is: guest {kept}")] if kept else []
    for source, names in grouped(
        (unnamed.source, f"{unnamed.kind} {unnamed.name}") for unnamed in plan.unnamed
    ).items():
        goes = "--prune" if source and source.kind == "file" else "hosttune revert --guest NAME"
        taken = f" ({goes} takes it away)" if any(name.startswith("guest ") for name in names) else ""
        entries.append(TitledFacts(title=f"= in force, not in this intent, stays: {', '.join(names)}{taken}"))
    yield Section(
        heading="What changes of the guests", blocks=(Entries(parts=tuple(entries), numbered=False, whole=True),)
    )


def _last_line(plan: Plan, following: str) -> str:
    made, changed = (sum(guest.change == word for guest in plan.guests) for word in ("create", "update"))
    writing = [action for action in plan.actions if action.current != action.want]
    due = [action.change for action in writing if action.when in ("now", "reboot")]
    waiting = len(writing) - len(due)
    later = f"; {count(waiting, 'setting')} to write once guests have started or stopped" if waiting else ""
    if not (made or changed or plan.removals or due):
        return f"nothing would change{later}"
    guests = f"{count(made, 'guest')} to add, {changed} to change, {len(plan.removals)} to take away"
    settings = f"{count(due.count('set'), 'setting')} to write, {due.count('back')} to put back{later}"
    following = following if not plan.unplaced else "correct the intent"
    if plan.based_on is None and not plan.unplaced:
        following = "plan and apply on the host itself"
    if any(finding.text.endswith(UNTIL_THEN) for finding in plan.findings):
        following = "what the error says"
    if (
        plan.unplaced
        and all(left_out.stays for left_out in plan.unplaced)
        and plan.source
        and plan.source.kind == "file"
    ):
        following = f"hosttune apply --intent {shlex.quote(plan.source.name or 'FILE')} applies the rest"
    return f"{guests}; {settings}; next: {following}"


def _picture(host: Host, plan: Plan) -> Picture:
    def draw() -> str:
        from hosttune.report.svg import plan_svg

        return plan_svg(host, plan, sheets=True)

    return Picture(draw=draw, name="Picture of the host and its guests", caption=CAPTION)


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


def guest_section(guest: PlannedGuest, host: Host, expected: Expectation | None) -> Section:
    """Return what a guest gets and why, and what it can expect; None if the plan does not say."""
    models = {gpu.address: gpu.model for gpu in host.gpus}
    devices = tuple(device_row(device, host.index.pci, models) for device in guest.devices)
    figures = tuple(expected_rows(expected)) if expected else ()
    # (what, value) rows: cells with their pins, other threads, fabric partition, MIG, 64-bit window.
    rows = [row for cell in guest.cells for row in _cell_rows(guest, cell)]
    rows.append(("emulator threads", f"host CPUs {short_lists(guest.emulator_cpus or 'none')}"))
    rows += [(f"I/O thread {n}", f"host CPUs {short_lists(cpus)}") for n, cpus in enumerate(guest.iothread_cpus, 1)]
    if guest.fabric_partition is not None:
        rows.append(("fabric", f"partition {guest.fabric_partition}"))
    whole = {device.address for device in guest.devices if device.kind == "gpu"}
    for assignment in guest.mig:
        inside = ", inside the guest" if assignment.gpu in whole else ""
        rows.append(("MIG", f"{assignment.profile} on {assignment.gpu}, memory slice {assignment.start}{inside}"))
    if guest.mmio64_bytes:
        # About the firmware, it says only what the plan says.
        facts = [f"a window of {format_size(guest.mmio64_bytes)}"]
        if guest.mmio_note:
            facts.append(guest.mmio_note)
        elif guest.ovmf_window_mib is not None:
            facts.append(f"the firmware is asked for {format_size(guest.ovmf_window_mib << 20)}")
        rows.append(("64-bit MMIO", ", ".join(facts)))
    own = {"Secure Boot": guest.secure_boot, "TPM 2.0": guest.tpm, "watchdog": guest.watchdog}
    rows.append(("firmware", ", ".join(({"efi": "UEFI"}.get(guest.firmware, "BIOS"), *filter(own.get, own)))))
    rows += boot_rows(guest)
    blocks: tuple[AnyBlock, ...] = (
        Facts(parts=tuple(rows), whole=True),
        Table(heading="devices", columns=("kind", "address", "where and what"), rows=devices, styles=_MONO, whole=True),
        Table(heading=HEADING, columns=("what", "figures", "of"), rows=figures, whole=True),
        Facts(heading=WORSE_HEADING, parts=tuple(worse_rows(expected)) if expected else (), whole=True),
        *_steps(guest),
        Lines(heading="why", lines=guest.why, whole=True),
    )
    return Section(heading=guest_title(guest), blocks=blocks)


def boot_rows(guest: PlannedGuest) -> list[tuple[str, str]]:
    """Return (what, which) rows of the kernel, disks, login and networks that the plan gives a guest."""
    user = guest.user or "the user of its image"
    login = f"{user}, {count(len(guest.ssh_keys), 'SSH key')}" if guest.ssh_keys else None
    rows = [
        ("kernel", guest.boot and guest.boot.kernel),
        *(("disk", disk) for disk in guest.disks),
        ("image", guest.image),
        ("login", login),
        ("autostart", {None: None, True: "on", False: "off"}[guest.autostart]),
    ]
    rows += [("network", network.text) for network in guest.networks]
    return [(what, which) for what, which in rows if which]


def _steps(guest: PlannedGuest) -> Iterator[Lines]:
    """Yield the steps that a person does for the guest. Steps that were not tried are marked."""
    for when, heading in (("start", "before it starts"), ("stop", "after it has stopped")):
        steps = [step for step in guest.steps if step.when == when]
        every = all(step.unproven for step in steps)
        texts = (f"{step.text} (unproven)" if step.unproven and not every else step.text for step in steps)
        yield Lines(
            heading=f"{heading}, by hand{', unproven: tried on no such machine' if every else ''}",
            lines=tuple(texts),
            numbered=True,
            whole=True,
        )


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


def _cell_rows(guest: PlannedGuest, cell: Cell) -> list[tuple[str, str]]:
    """Return a cell's row, then one row for each run of pins."""
    memory = format_size(cell.memory_bytes)
    if guest.page_bytes:
        memory += f" ({cell.memory_bytes // guest.page_bytes} pages)"
    rows: list[tuple[str, str]] = [(f"cell {cell.id}", f"host node {cell.host_nodes}, {memory}")]
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


def unplaced_sections(guests: Sequence[Unplaced]) -> Iterator[Section]:
    """Yield why each guest has no place, and what would make room for it."""
    for left_out in guests:
        why = Lines(lines=left_out.why, style="error", whole=True)
        heading = "what to do" if left_out.stays or left_out.refused else "it would fit with one of these"
        relaxed = Lines(heading=heading, lines=left_out.relaxation, whole=True)
        yield Section(heading=f"guest {left_out.guest}: NOT PLACED", blocks=(why, relaxed))


# --- actions and findings ------------------------------------------------------------------------------------


def action_sections(actions: Sequence[Action], host: Host) -> Iterator[Section]:
    """Yield what `hosttune apply` would change: actions that differ only in their target are one entry.

    Each has a sign as guests have: + where there was nothing, - for what goes back, ~ for all others.
    """
    for effect, heading in (("now", "Actions, effective at once"), ("reboot", "Actions, effective after a reboot")):
        entries = []
        for group in alike([action for action in actions if action.effect == effect]):
            change, *told = action_lines(group, host)
            sign = "-" if group[0].change == "back" else "+" if _known_absent(group[0], host) else "~"
            mark = Mark("", "needed") if group[0].needed else None
            entries.append(TitledFacts(title=f"{sign} {change}", mark=mark, facts=tuple(("", line) for line in told)))
        lead = "needed: the guest cannot work without it" if any(titled_facts.mark for titled_facts in entries) else ""
        block = Entries(parts=tuple(entries), numbered=False, whole=True)
        yield Section(heading=heading, lead=lead, blocks=(block,))


def alike(actions: Sequence[Action]) -> list[list[Action]]:
    """Group actions that differ only in their target, in the order of the first of each group."""
    groups: dict[tuple[str, ...], list[Action]] = {}
    for action in actions:
        flags = (str(action.needed), str(action.reversible), action.change, action.when, str(action.drift))
        values = (_value(action.current), _value(action.want), *flags)
        groups.setdefault((action.kind, *values, action.why.replace(action.target, "it")), []).append(action)
    return list(groups.values())


def action_lines(alike: list[Action], host: Host) -> tuple[str, ...]:
    """Return what changes, on which targets if there are several, and why."""
    first = alike[0]
    now = _known_absent(first, host) or _value(setting_value(first.kind, first.current))
    then = "removed" if first.want is None else _value(setting_value(first.kind, first.want))
    change = change_text(now, then) + ("" if first.reversible else " (cannot be undone)")
    change += " (drifted)" if first.drift else " (back)" if first.change == "back" else ""
    change += {"after-stop": " once its guest has stopped", "next-start": " when its guest starts"}.get(first.when, "")
    if len(alike) == 1:
        return f"{first.kind} {short_lists(first.target)}: {change}", first.why
    targets = ", ".join(short_lists(action.target) for action in alike)
    return f"{first.kind} of {len(alike)} targets, each: {change}", targets, first.why.replace(first.target, "it")


def _known_absent(action: Action, host: Host) -> str | None:
    """Return what an action's missing present value means if that is certain; None if it is unknown.

    It is certain if the whole command line, or the list of mounts, was read and the value is not in it, or if the
    function is proven to have no driver. A link that a capture has lost, or that was not recorded, proves nothing.
    """
    if action.current is not None:
        return None
    if action.kind == "kernel-argument" and host.kernel_args is not None:
        return "not set"
    if action.kind in ("mount", "apparmor-rule"):
        return "none"
    if action.kind == "driver" and any(function.address == action.target and function.unbound for function in host.pci):
        return "no driver"
    return None


def _value(value: Any) -> str:
    return short_lists(value_text(value, nothing="unknown"))


def finding_table(heading: str, findings: Sequence[PlanFinding]) -> Table:
    """Return findings with their places, the most important level first; equal texts are one row."""
    worst_first = sorted(findings, key=lambda finding: severity(finding.level))
    places = grouped(((finding.level, finding.text), finding.where) for finding in worst_first)
    rows = tuple((Mark(_MARKS[level], level), f"{text} ({some(where)})") for (level, text), where in places.items())
    return Table(heading=heading, columns=("level", "finding"), rows=rows, whole=True)
