"""The guests that a plan adopts, as steps: their definitions as libvirt has them now, with the plan's changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hosttune.domain.definitions import digest_of, managers_of
from hosttune.domain.edit import XmlText
from hosttune.domain.reader import read_domain
from hosttune.errors import Refused, Unreadable
from hosttune.hypervisor.connection import has_managed_save, read_definition
from hosttune.hypervisor.definition import AdoptedDefinition
from hosttune.journal import Record
from hosttune.machine.system import System
from hosttune.model.host import Host
from hosttune.model.limits import limit
from hosttune.model.plan import Action, AdoptedChange, AdoptedGuest, Plan
from hosttune.model.values import CpuSet, parse_cpus
from hosttune.transaction.steps import SettingStep, steps_of

_TIMES_IN_JOURNAL = 8  # three times by an apply, three by its revert, and room for a second attempt


def adoption_steps(
    system: System, plan: Plan, host: Host, applied: Mapping[tuple[str, str], Record]
) -> tuple[SettingStep, ...]:
    """Return a step for each guest that a plan adopts. Its wanted value is the present definition, changed.

    `applied`: the records in force, by kind and target. Raises Refused for a guest that is not the one that was
    planned, or whose definition must not be changed now; BadInput for a definition that cannot be read.
    """
    actions = [_action(system, adopted, host, applied) for adopted in plan.adoptions]
    size_bytes = _TIMES_IN_JOURNAL * sum(len(action.want.encode()) for action in actions)
    if size_bytes > limit("journal"):
        what = f"the definitions of these {len(actions)} guests are too large for one journal"
        raise Refused(what, where="plan: adoptions", hint="plan and apply fewer guests at a time")
    return steps_of(actions)


def _action(system: System, adopted: AdoptedGuest, host: Host, applied: Mapping[tuple[str, str], Record]) -> Action:

    kind, name = AdoptedDefinition.kind, adopted.name
    try:
        now = read_definition(system, adopted.name, secure=True)
        if now is None:
            raise _stale(adopted, ["it is not defined any more"])
        uuid = read_domain(now, where=f"guest {adopted.name}").uuid
        if uuid != adopted.uuid:
            raise _stale(adopted, [f"it has UUID {uuid} now, and {adopted.uuid} was planned: it is another guest"])
        plain = read_definition(system, name)
        saved = has_managed_save(system, name)
    except Unreadable as error:
        what = f"the definition of guest {name!r} cannot be read: {error.reason}"
        raise Refused(what, where=error.where, hint="start libvirt, and apply as root") from error
    _check_places(adopted, host)
    from hosttune.planning.adopting import change_definition  # few hosts have adopted guests

    want, changes = change_definition(now, adopted, where=f"guest {name}")
    record = applied.get((kind, name))
    ours = record is not None and not changes and AdoptedDefinition(name).agrees(now, record.after)
    if not ours:
        if plain is None or digest_of(plain) != adopted.definition_sha256:
            raise _stale(adopted, _moved(adopted.changes, changes))
        _check_changes(adopted, want, changes)
    if changes:
        _refuse_managed(name, adopted, now)
        if saved:
            what = f"guest {name!r} has a managed save, which is of its present definition"
            hint = f"start it, or virsh managedsave-remove {name}; then apply again"
            raise Refused(what, where=f"guest {name}", hint=hint)
    return Action(
        id=f"{kind}:{name}", kind=kind, target=name, current=now, want=want, effect="now", needed=True,
        reversible=True, why="; ".join(dict.fromkeys(change.why for change in adopted.changes)),
    )  # fmt: skip


def _stale(adopted: AdoptedGuest, lines: Iterable[str]) -> Refused:
    what = f"the plan is stale: guest {adopted.name!r} is not as it was planned"
    what = "\n".join((what, *(f"  {line}" for line in lines)))
    return Refused(what, where="plan: adoptions", hint=f"plan again: hosttune plan --adopt {adopted.name}")


def _moved(planned: Iterable[AdoptedChange], needed: Iterable[AdoptedChange]) -> Iterable[str]:
    """Yield what of a definition is not as it was planned, as far as the plan is about it."""
    then, now = ({change.element: change for change in changes} for changes in (planned, needed))
    seen = False
    for element in dict.fromkeys((*then, *now)):
        was = then[element].was if element in then else None
        present = now[element].was if element in now else None
        if was == present:
            continue
        seen = True
        if was is None:
            yield f"{element}: {present} now, which the plan did not have to change"
        else:
            yield f"{element}: planned from {was}, now {present or 'it needs no change'}"
    if not seen:
        yield "something that the plan does not change is different in its definition"


def _check_changes(adopted: AdoptedGuest, want: str, changes: tuple[AdoptedChange, ...]) -> None:
    """Refuse a plan whose place does not make the changes that it names. Raises Refused, BadInput."""
    facts = read_domain(want, where=f"plan: guest {adopted.name}")
    pins = {pin.vcpu: parse_cpus(pin.cpus) for pin in adopted.pins}
    whole = sorted(pins) == list(range(facts.vcpus or 0)) and {pin.id: parse_cpus(pin.cpus) for pin in facts.vcpu_pins}
    cells = {cell.id for cell in facts.cells}
    strange = cells and not {adopted_cell.id for adopted_cell in adopted.cells} <= cells
    if tuple(changes) != adopted.changes or whole != pins or strange or facts.name != adopted.name:
        what = f"the place of guest {adopted.name!r} does not make the changes that the plan names"
        raise Refused(what, where="plan: adoptions", hint=f"plan again: hosttune plan --adopt {adopted.name}")


def _check_places(adopted: AdoptedGuest, host: Host) -> None:
    """Refuse CPUs and nodes that this host does not have now. Raises Refused."""
    cpus = CpuSet(cpu for pin in adopted.pins for cpu in parse_cpus(pin.cpus)) | parse_cpus(adopted.guest.emulator_cpus)
    nodes = CpuSet(node for adopted_cell in adopted.cells for node in parse_cpus(adopted_cell.cell.host_nodes))
    lacking = [
        f"{what} {missing}"
        for what, wanted, here in (
            ("CPUs", cpus, [cpu.id for cpu in host.cpus if cpu.online is not False]),
            ("nodes", nodes, [node.id for node in host.numa_nodes]),
        )
        if (missing := wanted - CpuSet(here))
    ]
    if lacking:
        what = f"guest {adopted.name!r} is planned on {' and '.join(lacking)}, which this host does not have"
        raise Refused(what, where="plan: adoptions", hint=f"plan again: hosttune plan --adopt {adopted.name}")


def _refuse_managed(name: str, adopted: AdoptedGuest, xml: str) -> None:
    """Refuse a guest under another manager, unless the plan was saved with consent to that. Raises Refused."""
    managers = managers_of(XmlText(xml.encode()))
    if managers and not (adopted.consent and set(managers) <= set(adopted.managers)):
        what = f"{' and '.join(managers)} manages guest {name!r} and writes its definition again"
        hint = f"make the change there; to change it here nevertheless: hosttune plan --adopt {name} --yes"
        raise Refused(what, where=f"guest {name}: metadata", hint=hint)
