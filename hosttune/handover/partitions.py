"""The fabric partition of a GPU between two tenants: inactive after the reset, active for the test, inactive again.

It is the setting of apply (`hypervisor.partition`), with its order, its refusals and its read-back. It is set in the
shared model alone (FABRIC_MODE=1), where the list can be read on this host, and only if all GPUs of the partition are
in the hand-over and were reset. Anything else is printed and waited for; what the list does not show then is unproven.
What apply has in force of a GPU (partition, MIG, vGPUs) is set again at the end, with the settings of apply.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from hosttune.errors import HosttuneError
from hosttune.gpu.fmpm import INACTIVE, active_as, target_of
from hosttune.gpu.settings import GpuComputeMode, GpuMigMode, GpuPersistence, GpuPowerLimit
from hosttune.gpu.vgpu_set import MediatedDevice, MigInstanceSetting, VgpuFunctions
from hosttune.handover import record
from hosttune.handover.cleaning import reason
from hosttune.handover.targets import Target
from hosttune.hypervisor.partition import FabricPartitionState
from hosttune.inventory.partitions import SHARED, HostFabric, exactly, read_fabric
from hosttune.journal import Store
from hosttune.machine.child import in_child
from hosttune.model.handover import HandoverStep, StepName, StepOutcome
from hosttune.model.host import Host
from hosttune.model.values import value_text
from hosttune.settings.drivers import VFIO, virtual_functions
from hosttune.settings.setting import Setting, driver_of
from hosttune.settings.virtual import VgpuTypeSetting
from hosttune.transaction.guards import WAIT_SECONDS, Person
from hosttune.transaction.site import Site
from hosttune.transaction.steps import setting_of_record

SET_SECONDS = FabricPartitionState.limit_seconds or 0.0


class PartitionOutcome(msgspec.Struct, frozen=True):
    """What became of the partitions of a GPU. `proven`: none of them is active. `failed`: one that stays active."""

    evidence: Mapping[str, Any] | None
    proven: bool
    failed: bool = False
    why: str | None = None

    def step(self, name: StepName) -> HandoverStep:
        """Return the step that could not go on for it."""
        outcome: StepOutcome = "failed" if self.failed else "unknown"
        return HandoverStep(step=name, outcome=outcome, evidence={"fabric": self.evidence}, why=self.why)

    def told(self, step: HandoverStep, **opened: Mapping[str, Any] | None) -> HandoverStep:
        """Return a step with what became of the partitions; one that is done is not, if that is not proven.

        `opened`: what was activated afterwards, by what it was for.
        """
        if self.evidence is None:
            return step
        fabric = {**self.evidence, **{what: one for what, one in opened.items() if one is not None}}
        told = msgspec.structs.replace(step, evidence={**(step.evidence or {}), "fabric": fabric})
        if self.proven or step.outcome != "done":
            return told
        return msgspec.structs.replace(told, outcome="failed" if self.failed else "unknown", why=self.why)


# What a reset of a GPU, or its change of driver, undoes, as apply sets it.
_UNDONE_BY_RESET = frozenset(
    one.kind
    for one in (
        GpuPersistence, GpuPowerLimit, GpuComputeMode, GpuMigMode,
        VgpuFunctions, MigInstanceSetting, VgpuTypeSetting, MediatedDevice,
    )
)  # fmt: skip
_NOTHING = PartitionOutcome(None, proven=True)


class Partitions:
    """The fabric of a host during a hand-over of `targets`. `discover` returns the host as it is now."""

    def __init__(
        self,
        site: Site,
        store: Store,
        discover: Callable[[], Host],
        targets: Sequence[Target],
        confirm: Person | None,
    ) -> None:
        self._site, self._store = site, store
        self._discover, self._targets, self._confirm = discover, targets, confirm

    def close(self, target: Target) -> PartitionOutcome:
        """Deactivate every active partition that has a GPU. Without a fabric nothing is done. Raises HosttuneError."""
        if target.kind != "gpu":
            return _NOTHING
        host = self._discover()
        fabric = read_fabric(host)
        if target.address not in fabric.members:
            return _NOTHING
        if fabric.passthrough:
            return PartitionOutcome({"mode": fabric.mode, "active": None}, proven=True)  # mode 0 has no partitions
        unknown = _unknown(host, fabric, target.address)
        if unknown:
            return self._asked(target, fabric, unknown)
        active = _of(fabric, target.address)
        strange = [text for number in active if (text := self._strange(fabric, number))]
        evidence: dict[str, Any] = {
            "mode": fabric.mode,
            "module_id": fabric.modules[target.address],
            "was_active": list(active),
        }
        if strange:
            return PartitionOutcome(
                {**evidence, "active": list(active)}, proven=False, failed=True, why="; ".join(strange)
            )
        if active and fabric.mode != SHARED:
            return self._asked(target, fabric, f"it is active, and in FABRIC_MODE {fabric.mode} no source says how")
        at = {module: address for address, module in fabric.modules.items()}
        settings = [FabricPartitionState(target_of(n, (at[module] for module in fabric.active[n]))) for n in active]
        why = "; ".join(text for setting in settings if (text := self._set(setting, INACTIVE)))
        evidence |= {"active": list(active) if why else [], "commands": [f"fmpm -d {number}" for number in active]}
        return PartitionOutcome(evidence, proven=not why, failed=bool(why), why=why or None)

    def open(self, target: Target) -> Mapping[str, Any] | None:
        """Activate the partition of exactly the guest's GPUs, once the host's driver has all of them; return evidence.

        None: there is nothing to activate. What fails is in the evidence: the search and the test then fail by it.
        """
        if target.kind != "gpu":
            return None
        host = self._discover()
        fabric = read_fabric(host)
        if target.address not in fabric.members or fabric.mode != SHARED or _unknown(host, fabric, target.address):
            return None
        gpus = [own for own in self._targets if own.kind == "gpu" and own.guest == target.guest]
        if any(own.driver is None or driver_of(self._site.system, own.address) != own.driver for own in gpus):
            return None  # the last one of them does it
        partition = exactly(fabric, [own.address for own in gpus])
        if partition is None:
            return {"activated": None, "why": "no partition has exactly these GPUs: CUDA cannot use them"}
        why = self._set(FabricPartitionState(target_of(partition.id, partition.gpus)), active_as(partition.modules))
        return {"activated": None if why else partition.id, "command": f"fmpm -a {partition.id}", "why": why}

    def as_in_force(self, target: Target, returned: Collection[str]) -> Mapping[str, Any] | None:
        """Set again what apply has in force of a GPU and its reset undid; return evidence.

        The GPU was proven and returned; for its partition all GPUs of it. None: nothing was set. What fails makes the
        statement void.
        """
        system, gpu = self._site.system, target.address
        done, why = list[str](), list[str]()
        for standing in self._site.standings(self._site.transactions()).in_force:
            (kind, name), setting, want = standing.key, setting_of_record(standing.record), standing.record.new
            if isinstance(setting, FabricPartitionState):
                theirs = want != INACTIVE and gpu in setting.gpus and {*setting.gpus} <= {*returned}
            else:
                own = {gpu, *virtual_functions(system, gpu)} if gpu in returned and kind in _UNDONE_BY_RESET else ()
                theirs = not {*name.split()}.isdisjoint(own) and driver_of(system, gpu) not in (None, VFIO)
            if theirs:
                failed = self._set(setting, want)
                why += [failed] if failed else []
                done += [] if failed else [f"{kind} {name}"]
        return {"set": done, "why": "; ".join(why) or None} if done or why else None

    def _set(self, setting: Setting, value: Any) -> str | None:
        """Set a partition, or another setting of a GPU; return why it is not as wanted."""
        system, name = self._site.system, f"{setting.kind} {setting.target}"
        if isinstance(setting, FabricPartitionState):
            name = f"partition {setting.number}"
        try:
            with record.state_lock(self._store):
                in_child(lambda: setting.write(system, value), setting.limit_seconds or SET_SECONDS, name)
            system.forget()
            now = setting.read(system)
        except HosttuneError as error:
            return f"{name}: {reason(error)}"
        return None if setting.agrees(now, value) else f"{name} is {value_text(now, nothing='not there')}, not {value}"

    def _strange(self, fabric: HostFabric, number: int) -> str | None:
        """Return why a partition must not be deactivated: GPUs of it are not part of this hand-over."""
        mine = {fabric.modules.get(target.address) for target in self._targets}
        others = sorted(fabric.active[number] - mine)
        if not others:
            return None
        listed = ", ".join(map(str, others))
        return (
            f"partition {number} joins it with module ids {listed}, which are not part of this hand-over or were not"
            f" reset: hand over all GPUs of the partition together, or stop their guests and run fmpm -d {number}"
        )

    def _asked(self, target: Target, fabric: HostFabric, why: str) -> PartitionOutcome:
        """Let a person deactivate the partition, and look whether it is; otherwise it is unproven."""
        active = _of(fabric, target.address)
        which = " and ".join(f"partition {number}" for number in active) or "the partition that it is in"
        command = " and ".join(f"fmpm -d {number}" for number in active) or "fmpm -l, then fmpm -d ID"
        text = f"{target.address}: {why}: deactivate {which} ({command}), where the Fabric Manager runs"
        confirmed = self._confirm(text, WAIT_SECONDS) if self._confirm is not None else False
        host = self._discover()
        now = read_fabric(host)
        unknown = _unknown(host, now, target.address)
        still = _of(now, target.address)
        evidence = {"mode": now.mode, "asked": text, "confirmed": confirmed, "active": None if unknown else list(still)}
        if not unknown and not still:
            return PartitionOutcome(evidence, proven=True)
        word = "a person confirmed it, and it cannot be read" if confirmed else "nobody confirmed it"
        return PartitionOutcome(evidence, proven=False, why=f"{text}; {word if unknown else 'it is still active'}")


def active_partitions(host: Host, address: str) -> tuple[int, ...]:
    """Return the partitions of a GPU that the list shows as active; none if that is unknown."""
    return _of(read_fabric(host), address)


def _of(fabric: HostFabric, address: str) -> tuple[int, ...]:
    """Return the active partitions that have a GPU."""
    module = fabric.modules.get(address)
    return tuple(sorted(number for number, modules in fabric.active.items() if module in modules))


def _unknown(host: Host, fabric: HostFabric, address: str) -> str | None:
    """Return why the active partitions of a GPU are unknown; None if they are known."""
    listed = host.fabric.partitions if host.fabric is not None else None
    if not listed:
        return "which partitions are active cannot be read here (fmpm -l)"
    if any(partition.active is None for partition in listed):
        return "which partitions are active is not told"
    if fabric.modules.get(address) is None:
        return "its module id is unknown, and so is its partition"
    return None
