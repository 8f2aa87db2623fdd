"""The guests of a plan as steps: files, definition, start. Checks before each, and proof from /proc after it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from hosttune.domain.writer import domain_xml
from hosttune.errors import BadInput, Refused, Unreadable
from hosttune.guest import guest_files
from hosttune.hypervisor import no_system, process_of, ready, startable, unreachable, verify_running, xml_difference
from hosttune.hypervisor.connection import has_managed_save
from hosttune.hypervisor.definition import AdoptedDefinition
from hosttune.hypervisor.disk import CopiedDisk, image_here
from hosttune.hypervisor.removed import nvram_of
from hosttune.hypervisor.state import Autostart
from hosttune.inventory.bare import runs
from hosttune.journal import Record
from hosttune.machine.system import System
from hosttune.model.host import Host
from hosttune.model.plan import Action, Plan, PlannedGuest
from hosttune.model.values import FrozenMap
from hosttune.settings.drivers import SriovVfs
from hosttune.settings.setting import AFTER_START_STAGE, START_STAGE, MadeByAnother, WrittenTogether
from hosttune.transaction.guards import WAIT_SECONDS, Person
from hosttune.transaction.guestfiles import value_of
from hosttune.transaction.steps import (
    PENDING,
    TODO,
    UNREADABLE,
    Prepared,
    SettingStep,
    back_step,
    prepare,
    with_verdict,
)

FILES, DEFINITION, STATE = "guest-files", "guest", "guest-state"
RUNNING = "running"
_NEXT_START = "it runs, and has this from its next start: virsh shutdown {}, then hosttune apply --intent FILE --start"
INTERRUPT_SECONDS = 20.0  # how long to wait for the guest's drivers to request interrupts


def guest_actions(plan: Plan, *, start: bool) -> Iterable[Action]:
    """Return the actions for every planned guest.

    `current` is null, so it is never stale: the present definition is shown as a difference instead.
    """
    for guest in plan.guests:
        name = guest.name
        if guest.image is not None:
            yield _action(CopiedDisk.kind, guest.disk or "", guest.image, "its disk, copied from its image")
        files = value_of(guest_files(plan, name))
        yield _action(FILES, name, files, "what the guest sets inside: copied into it, or read from the seed image")
        yield _action(DEFINITION, name, _definition(plan, name), "the guest as planned")
        if guest.autostart is not None:
            yield _action(Autostart.kind, name, guest.autostart, "the guest as planned")
        if start or not (guest.boots_from or guest.may_boot_from):
            yield _action(STATE, name, RUNNING, "--start" if start else "the guest as planned")


def _definition(plan: Plan, name: str) -> str:
    """Return the guest's XML.

    Raises BadInput if the plan cannot be expressed in XML: a plan file may come from anywhere.
    """
    try:
        return domain_xml(plan, name)
    except (RuntimeError, ValueError) as error:
        raise BadInput(str(error), where=f"plan: guest {name}", hint="plan again") from error


def _action(kind: str, target: str, want: Any, why: str) -> Action:
    return Action(
        id=f"{kind}:{target}", kind=kind, target=target, current=None, want=want, effect="now",
        needed=kind != FILES, reversible=True, why=why,
    )  # fmt: skip


def removal_steps(plan: Plan, known: Iterable[Record]) -> tuple[SettingStep, ...]:
    """Return the ways back of the guests that a plan takes away: their definitions and files."""
    names = {removal.name for removal in plan.removals}
    records = [
        record
        for record in known
        if record.target in names and record.kind in (FILES, DEFINITION, Autostart.kind, AdoptedDefinition.kind)
    ]
    return tuple(back_step(record, "the guest is taken away") for record in records)


def kept_steps(plan: Plan, known: Iterable[Record]) -> Iterator[SettingStep]:
    """Yield the steps that give up what was wanted of a guest and that the plan leaves as it is."""
    names = {guest.name for guest in plan.guests if guest.autostart is None}
    for record in known:
        if record.kind == Autostart.kind and record.target in names:
            yield back_step(record, "autostart: keep", gives_up=True)


def refuse_images(system: System, prepared: Iterable[Prepared]) -> None:
    """Raise BadInput for an image of which a disk is to be a copy and that is none."""
    for change in prepared:
        if isinstance(change.step.setting, CopiedDisk) and change.verdict == TODO:
            image_here(system, change.step.want)


def refuse_variables(system: System, prepared: Iterable[Prepared], host: Host) -> None:
    """Raise Refused if an earlier guest left UEFI variables, which a new guest of its name would use.

    Those of a guest in force that was undefined by hand are its own.
    """
    own = {guest.name for guest in host.in_force.guests} if host.in_force else set()
    for step in (change.step for change in prepared if change.verdict == TODO and change.live is None):
        name = step.setting.target
        if step.setting.kind == DEFINITION and step.want is not None and name not in own:
            path = nvram_of(step.want, name)
            if path is not None and system.exists(path):
                what = f"UEFI variables of an earlier guest {name!r} would be those of the new one"
                raise Refused(what, where=path, hint=f"move them away first: mv {path} {path}.old")


def guest_verdicts(system: System, prepared: Sequence[Prepared], plan: Plan, host: Host) -> tuple[Prepared, ...]:
    """Return the steps. A guest that must not be defined on this host waits, with the reasons, as does its start."""
    redefined = {
        change.step.setting.target
        for change in prepared
        if change.step.setting.kind == DEFINITION and change.verdict == TODO and change.live is not None
    }
    making = {
        change.step.setting.target
        for change in prepared
        if change.verdict == TODO and isinstance(change.step.setting, SriovVfs)
    }
    disks = {guest.name: why for guest in plan.guests if (why := no_system(system, guest))}
    waiting = {
        guest.name: "; ".join(reasons)
        for guest in plan.guests
        if (reasons := (*ready(host, guest, making), *(_saved(system, guest.name) if guest.name in redefined else ())))
    }
    running = {guest.name for guest in host.guests or () if runs(guest)} & redefined - waiting.keys()
    return tuple(
        with_verdict(
            change, TODO, "; ".join(filter(None, (change.why, _NEXT_START.format(change.step.setting.target))))
        )
        if change.verdict == TODO and change.step.setting.kind == DEFINITION and change.step.setting.target in running
        else with_verdict(change, PENDING, f"not started: {disks[change.step.setting.target]}")
        if change.verdict == TODO and change.step.setting.kind == STATE and change.step.setting.target in disks
        else with_verdict(change, PENDING, waiting[change.step.setting.target])
        if change.verdict in (TODO, UNREADABLE)
        and change.step.setting.kind in (DEFINITION, STATE)
        and change.step.setting.target in waiting
        else change
        for change in prepared
    )


def _saved(system: System, name: str) -> Iterator[str]:
    """Yield why a guest must not be redefined: libvirt would start it from its saved state, with the old definition."""
    try:
        if has_managed_save(system, name):
            yield (
                "it has a managed save, which is of its present definition: start it, or virsh managedsave-remove"
                f" {name}; then apply again"
            )
    except Unreadable as error:
        yield f"whether it has a managed save cannot be read: {error.reason}"


def apart(system: System, steps: Iterable[SettingStep]) -> Iterator[SettingStep]:
    """Yield the steps. Of settings that are written together, those that cannot be set yet become steps of their own.

    A guest that has ended must not keep the others from being changed.
    """
    for step in steps:
        waiting: Mapping[str, str] = {}
        if isinstance(step.setting, WrittenTogether):
            with contextlib.suppress(Unreadable):  # the step itself reports it
                waiting = step.setting.waiting(system)
        names = set(step.parts.values())
        for some in (names - waiting.keys(), *({name} for name in sorted(names & waiting.keys()))):
            if some:
                yield step if some == names else _only(step, some)


def _only(step: SettingStep, names: Collection[str]) -> SettingStep:
    setting = step.setting
    assert isinstance(setting, WrittenTogether)
    actions = tuple(action for action in step.actions if step.parts[action.id] in names)
    return replace(
        step,
        setting=type(setting).restored(setting.target_of(names)),
        want=FrozenMap({name: part for name, part in setting.parts(step.want).items() if name in names}),
        actions=actions,
        parts=FrozenMap({action.id: step.parts[action.id] for action in actions}),
    )


class Starting(msgspec.Struct, frozen=True):
    """What a start needs to check when its turn comes: the host as it is at that moment.

    `person`: asks a person for what else it waits for; None: nobody is there.
    """

    system: System
    plan: Plan
    discover: Callable[[], Host]
    person: Person | None = None
    found: dict[str, str] = msgspec.field(default_factory=dict)

    def look_again(self, change: Prepared) -> Prepared:
        """Check a step at its turn. A start that is not possible waits, with the reasons; interrupts are waited for.

        What waited for its device is read anew.
        """
        stage = change.step.setting.stage
        if stage == START_STAGE:
            guest = self.plan.guest(change.step.setting.target)
            from hosttune.planning.fabric.guest import not_startable  # `status` does not need the planner

            host = self.discover()
            asked = not_startable(host, guest) or ""
            others = {*startable(host, guest), *unreachable(self.system, guest)} - {asked}
            if self.person is not None and asked and not others:
                self.person(f"guest {guest.name} is started once this is so: {asked}", WAIT_SECONDS)
                self.system.forget()
                host = self.discover()
            reasons = (*startable(host, guest), *unreachable(self.system, guest))
            return with_verdict(change, PENDING, f"not started: {'; '.join(reasons)}") if reasons else change
        if stage == AFTER_START_STAGE:
            # Wait until a driver in the guest has requested vfio interrupts. Waits only once, not for each device.
            seconds = 0.0 if self.system.captured or self.found else INTERRUPT_SECONDS
            deadline = time.monotonic() + seconds
            while change.step.setting.waits_for(self.system) is not None and time.monotonic() < deadline:
                time.sleep(1.0)
            self.found["waited"] = "yes"
        if stage == AFTER_START_STAGE or change.verdict == PENDING or isinstance(change.step.setting, MadeByAnother):
            return prepare(self.system, [change.step])[0]
        if change.step.setting.kind == DEFINITION and not change.step.back:
            # the IOMMU groups of the virtual functions that this transaction has made
            guest = self.plan.guest(change.step.setting.target)
            reasons = ready(self.discover(), guest) if any(device.network for device in guest.devices) else ()
            return with_verdict(change, PENDING, "; ".join(reasons)) if reasons else change
        return change


def running_notes(system: System, plan: Plan, started: Iterable[str]) -> Iterable[str]:
    """Compare started guests with their plan, using /proc and not the XML.

    A guest without differences gets one line.
    """
    if system.captured:
        return
    guests: Mapping[str, PlannedGuest] = {guest.name: guest for guest in plan.guests}
    for name in started:
        process = process_of(system, name)
        if process is None:
            yield f"guest {name}: its process is not found, so its pins and pages are unknown"
            continue
        differences = verify_running(system, guests[name], process)
        yield from (f"guest {name}: {text}" for text in differences)
        if not differences:
            yield f"guest {name} runs: pins, pages and devices in /proc are as planned"


def definition_change(change: Prepared) -> str | None:
    """Return the XML difference of a redefinition, without secrets; None for any other step."""
    setting = change.step.setting
    if setting.kind not in (DEFINITION, AdoptedDefinition.kind) or change.verdict != TODO:
        return None
    if change.live is None or change.step.written is None:
        return None
    return xml_difference(setting.shown(change.live), setting.shown(change.step.written))
