"""The fabric partition of a GPU between two tenants: inactive after the reset, active for the test, inactive again.

What is carried out has a source: a partition is deactivated once its guest has ended and its GPUs are reset, and
activated before CUDA is used (Fabric Manager user guide, "Shared NVSwitch virtualization model"; docs/fabric.md), with
`fmpm -d ID` and `fmpm -a ID` (NVIDIA/Fabric-Manager-Client, README.md); that it happened is read from `fmpm -l`. This
is done in the shared model alone (FABRIC_MODE=1), where the list can be read on this host, and only to a partition
whose GPUs all belong to the hand-over. Anything else is printed and waited for; what the list does not show then is
unproven.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from hosttune.errors import CommandFailed
from hosttune.gpu.fmpm import client
from hosttune.gpu.nvswitches import MANAGER_CONFIG
from hosttune.handover.targets import Target
from hosttune.inventory.partitions import SHARED, HostFabric, exactly, read_fabric
from hosttune.machine.system import System
from hosttune.model.handover import HandoverStep, StepName, StepOutcome
from hosttune.model.host import Host
from hosttune.settings.setting import driver_of

WAIT_SECONDS = 600.0  # for a person
_COMMAND_SECONDS, _LOOK_SECONDS = 60.0, 1.0
# Shows a person what to do, and waits at most so many seconds for the answer. False: nobody can be asked, or no.
Confirm = Callable[[str, float], bool]


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

    def told(self, found: HandoverStep, opened: Mapping[str, Any] | None = None) -> HandoverStep:
        """Return a step with what became of the partitions; one that is done is not, if that is not proven."""
        if self.evidence is None:
            return found
        fabric = {**self.evidence, **({} if opened is None else {"for_the_test": opened})}
        told = msgspec.structs.replace(found, evidence={**(found.evidence or {}), "fabric": fabric})
        if self.proven or found.outcome != "done":
            return told
        return msgspec.structs.replace(told, outcome="failed" if self.failed else "unknown", why=self.why)


_NOTHING = PartitionOutcome(None, proven=True)


class Partitions:
    """The fabric of a host during a hand-over of `targets`. `discover` returns the host as it is now.

    `settle_seconds`: how long the list may show the old state after a command.
    """

    def __init__(
        self,
        system: System,
        discover: Callable[[], Host],
        targets: Sequence[Target],
        confirm: Confirm | None,
        settle_seconds: float = 10.0,
    ) -> None:
        self._system, self._discover, self._targets, self._confirm = system, discover, targets, confirm
        self._settle_seconds = settle_seconds

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
        said = [text for number in active if (text := self._command("-d", number))]
        gone = self._settled(lambda now: not _of(now, target.address)) if active else True
        evidence |= {"active": list(active), "commands": [f"fmpm -d {number}" for number in active]}
        if gone:
            return PartitionOutcome({**evidence, "active": []}, proven=True)
        why = f"partition {', '.join(map(str, active))} is still active after fmpm -d, or that cannot be read"
        return PartitionOutcome(evidence, proven=False, failed=True, why="; ".join([why, *said]))

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
        gpus = [one for one in self._targets if one.kind == "gpu" and one.guest == target.guest]
        if any(one.driver is None or driver_of(self._system, one.address) != one.driver for one in gpus):
            return None  # the last one of them does it
        partition = exactly(fabric, [one.address for one in gpus])
        if partition is None:
            return {"activated": None, "why": "no partition has exactly these GPUs: CUDA cannot use them"}
        said = None if partition.active else self._command("-a", partition.id)
        done = self._settled(lambda now: partition.id in now.active)
        return {"activated": partition.id if done else None, "command": f"fmpm -a {partition.id}", "why": said}

    def _strange(self, fabric: HostFabric, number: int) -> str | None:
        """Return why a partition must not be deactivated: GPUs of it are not part of this hand-over."""
        mine = {fabric.modules.get(target.address) for target in self._targets}
        others = sorted(fabric.active[number] - mine)
        if not others:
            return None
        listed = ", ".join(map(str, others))
        return (
            f"partition {number} joins it with module ids {listed}, which are not part of this hand-over: hand over all"
            f" GPUs of the partition together, or stop their guests and run fmpm -d {number}"
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

    def _command(self, word: str, number: int) -> str | None:
        """Give fmpm a command; return what it said against it."""
        argv = (*client(self._system.read(MANAGER_CONFIG)), word, str(number))
        try:
            self._system.change(argv, timeout=_COMMAND_SECONDS)
        except CommandFailed as error:
            return f"{' '.join(argv)}: {error.reason}"
        finally:
            self._system.forget()
        return None

    def _settled(self, there: Callable[[HostFabric], bool]) -> bool:
        """Return whether the list shows something, at the latest after some seconds."""
        deadline = time.monotonic() + self._settle_seconds
        while True:
            host = self._discover()
            if host.fabric is not None and host.fabric.partitions is not None and there(read_fabric(host)):
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_SECONDS)


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
