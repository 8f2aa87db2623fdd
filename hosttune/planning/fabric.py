"""The NVSwitch fabric: which sets of GPUs one guest can have, which partition that is, and what there is to do for it.

Pure. A guest's whole GPUs must be exactly one partition of the Fabric Manager: GPUs of two partitions reach nobody,
and a part of one would share its links with another tenant. Partitions name GPUs by module id, which is no order of
PCI addresses. Sources: NVIDIA, Fabric Manager for NVIDIA NVSwitch systems, user guide ("Shared NVSwitch virtualization
model", "Full passthrough virtualization model", "vGPU multitenancy", "GPU partitions"); docs/fabric.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from hosttune.gpu.boards import Board, board_of, fabric_gpus
from hosttune.model.gpu import FabricPartition
from hosttune.model.host import Host
from hosttune.model.plan import PlannedGuest
from hosttune.model.values import address_key

PASSTHROUGH, SHARED, VGPU = 0, 1, 2  # FABRIC_MODE
GpuSet = tuple[str, ...]


@dataclass(frozen=True)
class Partition:
    """A partition whose GPUs are all known by address. `nvlinks` is how many each of them has in it."""

    id: int
    gpus: frozenset[str]
    modules: frozenset[int]
    active: bool | None = None
    nvlinks: int | None = None


@dataclass(frozen=True)
class Fabric:
    """The fabric of a host. Without one, `members` is empty and nothing applies.

    `members` are its GPUs, `modules` their module ids where known, `switches` the NVSwitches that are PCI functions.
    `partitions` None: unknown, and `why` says why; `assumed` says what they rest on where nobody listed them.
    `active`: module ids of every active partition by its id, also of those whose GPUs are not all known here.
    `tenants`: the existing guests that hold GPUs of it, by GPU. `board_gpus`: how many a whole board has.
    """

    members: GpuSet = ()
    switches: tuple[str, ...] = ()
    mode: int | None = None
    partitions: tuple[Partition, ...] | None = None
    why: str | None = None
    assumed: str | None = None
    board_gpus: int = 8
    modules: Mapping[str, int] = field(default_factory=dict)
    active: Mapping[int, frozenset[int]] = field(default_factory=dict)
    tenants: Mapping[str, str] = field(default_factory=dict)

    @property
    def passthrough(self) -> bool:
        """Whether it is known to be in full passthrough mode, where there are no partitions."""
        return bool(self.members) and self.mode == PASSTHROUGH

    @property
    def known(self) -> bool:
        """Whether it is known which sets of GPUs a guest can have."""
        return bool(self.members) and (self.passthrough or self.partitions is not None)

    def whole(self, gpus: Iterable[str]) -> bool:
        """Whether these are all GPUs of whole boards, with switches that can go along."""
        return self.passthrough and bool(self.switches) and _is_board(self) and set(gpus) >= set(self.members)

    def given(self, addresses: Iterable[str], guest: str) -> Fabric:
        """The same fabric when a guest has these devices."""
        mine = [address for address in addresses if address in self.members]
        return replace(self, tenants={**self.tenants, **dict.fromkeys(mine, guest)}) if mine else self

    def companions(self, chosen: Iterable[str]) -> tuple[str, ...]:
        """The NVSwitches that go along with these devices: all of them with all GPUs, in full passthrough."""
        return self.switches if self.whole(chosen) else ()


def _is_board(fabric: Fabric) -> bool:
    return len(fabric.members) % fabric.board_gpus == 0


# --- reading a host --------------------------------------------------------------------------------------------


def read_fabric(host: Host) -> Fabric:
    """The fabric of a host document. Nothing in it is taken from the order of addresses."""
    gpus = fabric_gpus(host)
    if not gpus:
        return Fabric()
    members = tuple(sorted((gpu.address for gpu in gpus), key=address_key))
    holders = {address: guest.name for guest in host.guests or () for address in guest.devices}
    switches = tuple(sorted((switch.address for switch in host.nvswitches), key=address_key))
    board, modules = board_of(host), _modules({gpu.address: gpu.module_id for gpu in gpus})
    mode, service = _mode(host, switches, holders, frozenset(members))
    listed = host.fabric.partitions if host.fabric else None
    assumed = None
    if listed is None and mode in (SHARED, VGPU) and board and board.partitions and _fits(board, modules, members):
        listed = board.partitions
        assumed = f"the Fabric Manager could not be asked: partitions as {board.generation.title()} boards have them"
    found = None if listed is None else _resolved(listed, modules)
    return Fabric(
        members=members,
        switches=switches,
        mode=mode,
        partitions=found or None,
        why=None if found or mode == PASSTHROUGH else _unknown(mode, listed, members, modules),
        assumed="; ".join(part for part in (service, assumed) if part) or None,
        board_gpus=board.gpus if board else 8,
        modules=modules,
        active={part.id: frozenset(part.module_ids) for part in listed or () if part.active},
        tenants={address: holders[address] for address in members if address in holders},
    )


def _modules(told: Mapping[str, int | None]) -> dict[str, int]:
    """Module ids that name one GPU only."""
    uses = Counter(told.values())
    return {address: module for address, module in told.items() if module is not None and uses[module] == 1}


def _mode(
    host: Host, switches: tuple[str, ...], holders: Mapping[str, str], members: frozenset[str]
) -> tuple[int | None, str | None]:
    """(the mode, what it rests on where the Fabric Manager's own configuration does not say it).

    One guest that has all NVSwitches and no GPU is the service VM of the shared model: the daemon that counts runs in
    there, whatever this host's configuration says.
    """
    told = host.fabric.mode if host.fabric else None
    owners = {holders.get(switch) for switch in switches}
    owner = next(iter(owners)) if len(owners) == 1 else None
    if owner is None or any(holders.get(gpu) == owner for gpu in members):
        listed = host.fabric is not None and bool(host.fabric.partitions)
        return told if told or not listed else SHARED, None  # in mode 0 there is no list: it is another daemon's
    return SHARED, f"guest {owner} has the NVSwitches and no GPU: taken for the service VM of a shared fabric"


def _fits(board: Board, modules: Mapping[str, int], members: GpuSet) -> bool:
    """Whether the GPUs are those of one such board, by their module ids."""
    places = {module for partition in board.partitions or () for module in partition.module_ids}
    return len(members) <= board.gpus and set(modules.values()) <= places


def _resolved(listed: tuple[FabricPartition, ...], modules: Mapping[str, int]) -> tuple[Partition, ...]:
    """The partitions whose GPUs all are known: a list can name modules that are broken, or that nobody could read."""
    at = {module: address for address, module in modules.items()}
    return tuple(
        Partition(
            part.id,
            frozenset(at[module] for module in part.module_ids),
            frozenset(part.module_ids),
            part.active,
            part.nvlinks,
        )
        for part in listed
        if part.module_ids and all(module in at for module in part.module_ids)
    )


def _unknown(
    mode: int | None, listed: tuple[FabricPartition, ...] | None, members: GpuSet, modules: Mapping[str, int]
) -> str:
    missing = [address for address in members if address not in modules]
    if missing:
        return f"the module ids of {', '.join(missing)} are unknown: only the nvidia driver tells them"
    if listed is not None:
        return "no partition that the Fabric Manager lists is of these GPUs"
    if mode is None:
        return "neither the Fabric Manager's configuration nor its list of partitions could be read"
    return "the Fabric Manager's list of partitions could not be read, and this board's is not known"


# --- what a guest can have ---------------------------------------------------------------------------------------


def partition_of(fabric: Fabric, gpus: Iterable[str]) -> int | None:
    """The partition of exactly the fabric's GPUs among these; None where none is, is known or can be activated."""
    found = _exactly(fabric, gpus)
    return found.id if found and blocked(fabric, found) is None else None


def _exactly(fabric: Fabric, gpus: Iterable[str]) -> Partition | None:
    mine = frozenset(gpus) & frozenset(fabric.members)
    if fabric.passthrough or not mine:
        return None
    alike = [partition for partition in fabric.partitions or () if partition.gpus == mine]
    return min(alike, key=lambda p: (blocked(fabric, p) is not None, not p.active, p.id), default=None)


def blocked(fabric: Fabric, partition: Partition) -> str | None:
    """Why a partition cannot be activated: another active one shares a GPU with it. (FM_ST_IN_USE of the SDK.)"""
    for other, modules in fabric.active.items():
        if other != partition.id and modules & partition.modules:
            return (
                f"partition {partition.id} shares GPUs with partition {other}, which is active"
                f" (fmpm -d {other} once no guest uses it)"
            )
    return None


def sets_of(fabric: Fabric, count: int) -> tuple[GpuSet, ...]:
    """The sets of so many GPUs of the fabric that one guest can have, as far as the fabric goes; lowest id first."""
    if fabric.passthrough:
        if fabric.tenants:
            return ()
        if count == 1:
            return tuple((address,) for address in fabric.members)
        return (fabric.members,) if count == len(fabric.members) and fabric.whole(fabric.members) else ()
    return tuple(
        tuple(sorted(partition.gpus, key=address_key))
        for partition in fabric.partitions or ()
        if len(partition.gpus) == count and blocked(fabric, partition) is None
    )


def bound_to_sets(fabric: Fabric, gpus: Iterable[str]) -> frozenset[str]:
    """Those of these GPUs that can be given in the fabric's sets alone. None of them where the module id of one is
    unknown: what is not known unplaces no guest.
    """
    mine = frozenset(gpus) & frozenset(fabric.members)
    return mine if fabric.passthrough or mine <= fabric.modules.keys() else frozenset()


def refusal(fabric: Fabric, gpus: Iterable[str], *, mig: bool = False) -> str | None:
    """Why these GPUs cannot go to one guest; None where they can, or nobody knows.

    One that slices them with MIG needs no partition. But MIG is its own choice, so with every route open (mode 0) it
    still has to be the only tenant.
    """
    mine = tuple(sorted(set(gpus) & set(fabric.members), key=address_key))
    if not mine or not fabric.known or (mig and not (fabric.passthrough and fabric.tenants)):
        return None
    if fabric.passthrough:
        return _refused_passthrough(fabric, mine)
    if any(address not in fabric.modules for address in mine):
        return None
    found = _exactly(fabric, mine)
    if found is None:
        return (
            f"{_named(fabric, mine)} are no partition of this host's NVSwitch fabric;"
            f" {_nearest(fabric, frozenset(mine))}"
        )
    return blocked(fabric, found)


def _refused_passthrough(fabric: Fabric, mine: GpuSet) -> str | None:
    mode = "the Fabric Manager is in mode 0 (bare metal or full passthrough)"
    if fabric.tenants:
        names = ", ".join(dict.fromkeys(fabric.tenants.values()))
        return f"{mode}, where guests are not kept apart, and {names} has GPUs of it: several guests need FABRIC_MODE=1"
    if len(mine) == 1 or fabric.whole(mine):
        return None
    if len(mine) == len(fabric.members):
        missing = "its NVSwitches are no PCI functions that could go along" if _is_board(fabric) else "GPUs are missing"
        return f"{mode}: all GPUs go with all NVSwitches, and {missing}"
    return f"{mode}: a guest gets 1 GPU, or all {len(fabric.members)} with the NVSwitches; FABRIC_MODE=1 has partitions"


def none_of(fabric: Fabric, count: int) -> tuple[str, ...]:
    """Why the fabric has no set of so many GPUs to give."""
    if fabric.passthrough:
        why = _refused_passthrough(fabric, fabric.members[:count]) if count <= len(fabric.members) else None
        return (why,) if why else ()
    sizes = Counter(len(partition.gpus) for partition in fabric.partitions or ())
    if count not in sizes:
        return (f"this host's NVSwitch fabric has partitions of {_words(sorted(sizes))} GPUs, none of {count}",)
    reasons = [blocked(fabric, p) for p in fabric.partitions or () if len(p.gpus) == count]
    return tuple(why for why in reasons if why)


def placeable(fabric: Fabric, taken: Iterable[str]) -> Mapping[int, int]:
    """How many partitions of each size could still be given when these GPUs are taken, by size."""
    gone = {*taken, *fabric.tenants}
    free = [p for p in fabric.partitions or () if not p.gpus & gone and blocked(fabric, p) is None]
    return dict(sorted(Counter(len(partition.gpus) for partition in free).items()))


def lost(fabric: Fabric, gpus: Iterable[str]) -> tuple[int, ...]:
    """How many partitions can no longer be given once these GPUs are taken, by size, the largest first.

    Empty where it is not known which partitions there are.
    """
    if not fabric.partitions:
        return ()
    before, after = placeable(fabric, ()), placeable(fabric, gpus)
    return tuple(before[size] - after.get(size, 0) for size in sorted(before, reverse=True))


def _nearest(fabric: Fabric, mine: frozenset[str]) -> str:
    """The partitions that there are, and those that differ least from a set that is none."""
    alike = [p for p in fabric.partitions or () if len(p.gpus) == len(mine)] or list(fabric.partitions or ())
    least = min((len(p.gpus ^ mine) for p in alike), default=0)
    near = [p for p in alike if len(p.gpus ^ mine) == least][:3]
    listed = ", ".join(f"{p.id} ({_places(fabric, p.gpus)})" for p in fabric.partitions or ())
    closest = "; ".join(f"partition {p.id}: {', '.join(sorted(p.gpus, key=address_key))}" for p in near)
    return f"partitions by module id: {listed}; nearest: {closest}"


def _named(fabric: Fabric, gpus: GpuSet) -> str:
    return "GPUs " + ", ".join(f"{address} (module {fabric.modules[address]})" for address in gpus)


def _places(fabric: Fabric, gpus: Iterable[str]) -> str:
    return "+".join(str(module) for module in sorted(fabric.modules[address] for address in gpus))


def _words(numbers: list[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last


# --- what there is to say ----------------------------------------------------------------------------------------


def fabric_of(fabric: Fabric, guest: PlannedGuest) -> GpuSet:
    """The guest's whole GPUs that are on the fabric."""
    return tuple(d.address for d in guest.devices if d.kind == "gpu" and d.address in fabric.members)


def not_startable(host: Host, guest: PlannedGuest) -> str | None:
    """Why a planned guest must not be started on a host as its fabric is now; None where that says nothing against.

    An inactive partition is a reason: CUDA in the guest would fail with error 802 until it is activated.
    """
    fabric = read_fabric(host)
    gpus = fabric_of(fabric, guest)
    if not gpus:
        return None
    others = {address: name for address, name in fabric.tenants.items() if name != guest.name}
    if fabric.passthrough and guest.fabric_partition is None:
        if others:
            return "the Fabric Manager is in mode 0, where guests are not kept apart, and another guest has GPUs of it"
        switches = {device.address for device in guest.devices if device.kind == "nvswitch"}
        alone = len(gpus) == 1 or guest.mig or (fabric.whole(gpus) and switches >= set(fabric.switches))
        return (
            None if alone else "the Fabric Manager is in mode 0, and it has neither one GPU nor all with the NVSwitches"
        )
    if _needs_none(fabric, guest):
        return None
    if guest.fabric_partition is None:
        return "its GPUs are on an NVSwitch fabric and which partition holds them is unknown"
    if not fabric.known or any(address not in fabric.modules for address in gpus):
        return None
    found = _exactly(fabric, gpus)
    if found is None or found.id != guest.fabric_partition:
        return f"partition {guest.fabric_partition} of the NVSwitch fabric does not hold exactly its GPUs now"
    return (
        f"partition {found.id} of the NVSwitch fabric is not active: fmpm -a {found.id}"
        if found.active is False
        else None
    )


Say = Callable[[str, str, str], None]  # level, text, where
_WHERE = "Fabric Manager"


def fabric_findings(fabric: Fabric, guests: Iterable[PlannedGuest], say: Say) -> None:
    """What an operator should know of the planned guests' GPUs on the fabric."""
    mine = [guest for guest in guests if fabric_of(fabric, guest) and not _needs_none(fabric, guest)]
    if mine and fabric.assumed:
        say("warn", f"{fabric.assumed}; compare with fmpm -l before a guest starts", _WHERE)
    for guest in mine:
        if fabric.passthrough:
            _say_passthrough(fabric, guest, say)
        elif partition_of(fabric, fabric_of(fabric, guest)) is None:
            say(
                "error",
                f"guest {guest.name} gets GPUs of an NVSwitch fabric whose partitions are unknown: it is not started"
                f" until one partition holds exactly these GPUs{_because(fabric, guest)}",
                _WHERE,
            )
        elif fabric.mode == VGPU:
            say(
                "error",
                f"guest {guest.name} gets whole GPUs, and the Fabric Manager is in mode 2 (vGPU), which activates"
                " partitions with virtual functions only: whole GPUs need FABRIC_MODE=1",
                _WHERE,
            )


def guest_partition(fabric: Fabric, guest: PlannedGuest) -> int | None:
    """The partition that a planned guest has to have active; None where it needs none, or that is not known."""
    return None if _needs_none(fabric, guest) else partition_of(fabric, fabric_of(fabric, guest))


def _needs_none(fabric: Fabric, guest: PlannedGuest) -> bool:
    """A guest that has MIG on its GPUs (user guide, "Interoperability with MIG"), where no route leads to them."""
    return bool(guest.mig) and fabric.known and not fabric.passthrough


def _because(fabric: Fabric, guest: PlannedGuest) -> str:
    missing = [address for address in fabric_of(fabric, guest) if address not in fabric.modules]
    if fabric.partitions is not None and missing:
        return f" (the module ids of {', '.join(missing)} are unknown: only the nvidia driver tells them)"
    found = _exactly(fabric, fabric_of(fabric, guest))
    why = fabric.why or (found and blocked(fabric, found))
    return f" ({why})" if why else ""


def _say_passthrough(fabric: Fabric, guest: PlannedGuest, say: Say) -> None:
    gpus = fabric_of(fabric, guest)
    if fabric.whole(gpus):
        say(
            "info",
            f"guest {guest.name} gets the whole NVSwitch fabric: the Fabric Manager runs inside it, of its driver's own"
            " version; stop the host's first, it needs the NVSwitches",
            _WHERE,
        )
        return
    say(
        "error",
        f"guest {guest.name} gets a GPU of an NVSwitch fabric in mode 0 (no partition): its NVLinks stay open to the"
        " other GPUs unless they are disabled, which only the guest itself can do here (NVreg_NvLinkDisable=1, no"
        " isolation): give no other tenant a GPU of this host, or use FABRIC_MODE=1",
        _WHERE,
    )
