"""The NVSwitch fabric: which sets of GPUs one guest can have, and which partition each of them is.

Pure. A guest's whole GPUs must be exactly one partition of the Fabric Manager: NVLink does not connect GPUs of two
partitions, and a part of one partition would share its links with another tenant. Partitions name GPUs by module id;
module ids are not in the order of PCI addresses. Sources: NVIDIA, Fabric Manager for NVIDIA NVSwitch systems, user
guide ("Shared NVSwitch virtualization model", "Full passthrough virtualization model", "vGPU multitenancy", "GPU
partitions"); docs/fabric.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property

import msgspec
from msgspec.structs import replace

from hosttune.gpu.boards import NVLINK5, Board, board_of, fabric_gpus
from hosttune.gpu.bridges import fabric_bridges
from hosttune.model.host import FabricPartition, Host
from hosttune.model.values import address_key

PASSTHROUGH, SHARED, VGPU = 0, 1, 2  # values of FABRIC_MODE
GpuSet = tuple[str, ...]


class Partition(msgspec.Struct, frozen=True):
    """A partition whose GPUs are all known by address. `nvlinks`: the number of NVLinks of each GPU in it."""

    id: int
    gpus: frozenset[str]
    modules: frozenset[int]
    active: bool | None = None
    nvlinks: int | None = None


class HostFabric(msgspec.Struct, frozen=True, dict=True):
    """The fabric of a host. On a host without a fabric, `members` is empty and no rule applies.

    `members`: its GPUs; `modules`: their module ids, if known; `switches`: the NVSwitches that are PCI functions; on
    NVLink5 boards, where none is (`nvlink5`), the functions that carry them, if all are known.
    `partitions`: None = unknown, empty = no listed partition holds these GPUs; `why` has the reason for both.
    `assumed`: what the partitions are based on if no list was read, or if mode and list contradict each other.
    `claimed`: the module id of a GPU if another GPU reports the same one. `active`: module ids of every active
    partition by its id, also of partitions whose GPUs are not all known here. `tenants`: the existing guest that holds
    a GPU, by GPU. `board_gpus`: the number of GPUs on a complete board.
    """

    members: GpuSet = ()
    switches: tuple[str, ...] = ()
    nvlink5: bool = False
    mode: int | None = None
    partitions: tuple[Partition, ...] | None = None
    why: str | None = None
    assumed: str | None = None
    board_gpus: int = 8
    modules: Mapping[str, int] = msgspec.field(default_factory=dict)
    claimed: Mapping[str, int] = msgspec.field(default_factory=dict)
    active: Mapping[int, frozenset[int]] = msgspec.field(default_factory=dict)
    tenants: Mapping[str, str] = msgspec.field(default_factory=dict)

    @property
    def passthrough(self) -> bool:
        """Whether the fabric is known to be in full passthrough mode, in which there are no partitions."""
        return bool(self.members) and self.mode == PASSTHROUGH

    @property
    def known(self) -> bool:
        """Whether it is known which sets of GPUs a guest can have."""
        return bool(self.members) and (self.passthrough or self.partitions is not None)

    @cached_property
    def placeable(self) -> Mapping[int, list[frozenset[str]]]:
        """The GPUs of each partition that can be given now, by their number, largest first."""
        free = [p.gpus for p in self.partitions or () if p.gpus.isdisjoint(self.tenants) and not blocked(self, p)]
        sizes = sorted({len(gpus) for gpus in free}, reverse=True)
        return {size: [gpus for gpus in free if len(gpus) == size] for size in sizes}

    def whole(self, gpus: Iterable[str]) -> bool:
        """Return whether these are all GPUs of complete boards whose NVSwitches can be given to the same guest."""
        return self.passthrough and bool(self.switches) and _is_board(self) and set(gpus) >= set(self.members)

    def given(self, addresses: Iterable[str], guest: str) -> HostFabric:
        """Return the fabric as it is after a guest got these devices."""
        own = [address for address in addresses if address in self.members]
        return replace(self, tenants={**self.tenants, **dict.fromkeys(own, guest)}) if own else self

    def companions(self, chosen: Iterable[str]) -> tuple[str, ...]:
        """Return the NVSwitches, or what carries them, that a guest with these devices must get too.

        In full passthrough mode, all go with all GPUs (NVIDIA, Optimizing VM configuration for AI inference: Blackwell
        Ultra HGX, "Known limitations": the guest owns the GPUs and bridge functions); otherwise none.
        """
        return self.switches if self.whole(chosen) else ()


def _is_board(fabric: HostFabric) -> bool:
    return len(fabric.members) % fabric.board_gpus == 0


# --- reading a host --------------------------------------------------------------------------------------------


def read_fabric(host: Host) -> HostFabric:
    """Return the fabric of a host document. It does not depend on the order of addresses."""
    gpus = fabric_gpus(host)
    if not gpus:
        return HostFabric()
    members = tuple(sorted((gpu.address for gpu in gpus), key=address_key))
    holders = host.index.holders
    carriers = [switch.address for switch in host.nvswitches] or fabric_bridges(host.pci, host.nics)
    switches = tuple(sorted(carriers, key=address_key))
    board, (modules, claimed) = board_of(host), _modules({gpu.address: gpu.module_id for gpu in gpus})
    mode, service = _mode(host, switches, holders, frozenset(members))
    listed = host.fabric.partitions if host.fabric else None
    assumed = None
    if listed is None and mode in (SHARED, VGPU) and board and board.partitions and _fits(board, modules, members):
        listed = board.partitions
        assumed = f"the Fabric Manager could not be asked: partitions as {board.generation.title()} boards have them"
    partitions = _resolved(listed or (), modules)
    # a list of partitions of other GPUs counts as a list, too
    are_known = bool(partitions or (listed and modules.keys() >= set(members)))
    return HostFabric(
        members=members,
        switches=switches,
        nvlink5=any(host.index.device_id(address) in NVLINK5 for address in members),
        mode=mode,
        partitions=partitions if are_known else None,
        why=None if partitions or mode == PASSTHROUGH else _unknown(mode, listed, members, modules, claimed),
        assumed="; ".join(part for part in (service, assumed) if part) or None,
        board_gpus=board.gpus if board else 8,
        modules=modules,
        claimed=claimed,
        active={part.id: frozenset(part.module_ids) for part in listed or () if part.active},
        tenants={address: holders[address] for address in members if address in holders},
    )


def _modules(module_of: Mapping[str, int | None]) -> tuple[dict[str, int], dict[str, int]]:
    """Return (module ids that only one GPU reports, module ids that several GPUs report), each by GPU address."""
    uses = Counter(module_of.values())
    known = {address: module for address, module in module_of.items() if module is not None}
    return (
        {address: module for address, module in known.items() if uses[module] == 1},
        {address: module for address, module in known.items() if uses[module] > 1},
    )


def _mode(
    host: Host, switches: tuple[str, ...], holders: Mapping[str, str], members: frozenset[str]
) -> tuple[int | None, str | None]:
    """Return (the mode, what it is based on if not on the Fabric Manager's own configuration).

    A guest that has all NVSwitches and no GPU is assumed to be the service VM of the shared model. Then the Fabric
    Manager runs inside it, and this host's configuration does not apply.
    """
    reported = host.fabric.mode if host.fabric else None
    owners = {holders.get(switch) for switch in switches}
    owner = next(iter(owners)) if len(owners) == 1 else None
    if owner is None or any(holders.get(gpu) == owner for gpu in members):
        listed = host.fabric is not None and bool(host.fabric.partitions)
        return (reported, None) if reported or not listed else (SHARED, _contradiction(reported))
    return SHARED, f"guest {owner} has the NVSwitches and no GPU: assumed to be the service VM of a shared fabric"


def _contradiction(mode: int | None) -> str:
    """Return the text for a list of partitions that was read although the configured mode has none.

    The list is used, because only a Fabric Manager in mode 1 or 2 has one.
    """
    if mode is None:
        return "the mode is unknown, and there is a list of partitions: assumed to be mode 1 (shared NVSwitch)"
    return (
        "FABRIC_MODE=0 is configured here, where there are no partitions, and yet a list of partitions was read: the"
        " two contradict each other. The list is used, as that of a Fabric Manager elsewhere in mode 1 (shared"
        " NVSwitch); if there is none, guests are not isolated"
    )


def _fits(board: Board, modules: Mapping[str, int], members: GpuSet) -> bool:
    """Return whether the GPUs can be those of one such board, by their number and module ids."""
    places = {module for partition in board.partitions or () for module in partition.module_ids}
    return len(members) <= board.gpus and set(modules.values()) <= places


def _resolved(listed: tuple[FabricPartition, ...], modules: Mapping[str, int]) -> tuple[Partition, ...]:
    """Return the partitions whose GPUs are all known: a list can name modules that are broken or could not be read."""
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
    mode: int | None,
    listed: tuple[FabricPartition, ...] | None,
    members: GpuSet,
    modules: Mapping[str, int],
    claimed: Mapping[str, int],
) -> str:
    """Return why no partition of these GPUs is known, or what is wrong with the listed ones."""
    if missing := unnamed(members, modules, claimed):
        return missing
    if listed:
        named = sorted({module for part in listed for module in part.module_ids})
        in_partitions = f"module ids {_numbers(named)}" if named else "no module id"
        of_gpus = _numbers(sorted(modules.values()))
        what = "the Fabric Manager lists no partition of this host's GPUs alone"
        return f"{what}: its partitions name {in_partitions}, and the GPUs have {of_gpus}"
    if listed is not None:
        return "the Fabric Manager lists no partition at all"
    if mode is None:
        return "neither the Fabric Manager's configuration nor its list of partitions could be read"
    return "the Fabric Manager's list of partitions could not be read, and this board's is not known"


def unnamed(gpus: Iterable[str], modules: Mapping[str, int], claimed: Mapping[str, int]) -> str | None:
    """Return why the module ids of some of these GPUs are unknown; None if all are known.

    `modules` and `claimed` as in `Fabric`.
    """
    wanted = tuple(gpus)
    missing = [address for address in wanted if address not in modules and address not in claimed]
    reasons = (
        [f"the module ids of {', '.join(missing)} are unknown: only the driver nvidia reports them (its Module Id)"]
        if missing
        else []
    )
    for module in sorted({claimed[address] for address in wanted if address in claimed}):
        rivals = [address for address, other in claimed.items() if other == module]
        reasons.append(f"{' and '.join(rivals)} all claim module id {module}, which is a place for one")
    return "; ".join(reasons) or None


def _numbers(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


# --- what a guest can have ---------------------------------------------------------------------------------------


def partition_of(fabric: HostFabric, gpus: Iterable[str]) -> int | None:
    """Return the partition of exactly the fabric's GPUs among these.

    None: there is none, it is unknown, or it cannot be activated.
    """
    partition = exactly(fabric, gpus)
    return partition.id if partition and blocked(fabric, partition) is None else None


def exactly(fabric: HostFabric, gpus: Iterable[str]) -> Partition | None:
    """Return the partition that holds exactly the fabric's GPUs among these.

    Of several such partitions, one that can be activated is preferred.
    """
    on_fabric = frozenset(gpus) & frozenset(fabric.members)
    if fabric.passthrough or not on_fabric:
        return None
    alike = [partition for partition in fabric.partitions or () if partition.gpus == on_fabric]
    return min(alike, key=lambda p: (blocked(fabric, p) is not None, not p.active, p.id), default=None)


def blocked(fabric: HostFabric, partition: Partition) -> str | None:
    """Return why a partition cannot be activated: an active one shares a GPU with it (FM_ST_IN_USE of the SDK)."""
    for other, modules in fabric.active.items():
        if other != partition.id and modules & partition.modules:
            return (
                f"partition {partition.id} shares GPUs with partition {other}, which is active"
                f" (fmpm -d {other} once no guest uses it)"
            )
    return None


def sets_of(fabric: HostFabric, count: int) -> tuple[GpuSet, ...]:
    """Return the sets of `count` GPUs that the fabric lets one guest have; the lowest partition id first."""
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


def bound_to_sets(fabric: HostFabric, gpus: Iterable[str]) -> frozenset[str]:
    """Return those of these GPUs that can only be given in sets of the fabric.

    Empty if the module id of one of them is unknown: an unknown value is no reason to refuse a guest.
    """
    on_fabric = frozenset(gpus) & frozenset(fabric.members)
    return on_fabric if fabric.passthrough or on_fabric <= fabric.modules.keys() else frozenset()


def refusal(fabric: HostFabric, gpus: Iterable[str], *, mig: bool = False) -> str | None:
    """Return why these GPUs cannot go to one guest; None if they can, or if it is unknown.

    A guest that divides them with MIG needs no partition. But the guest itself controls MIG. So if every route is open
    (mode 0), it still must be the only tenant.
    """
    on_fabric = tuple(sorted(set(gpus) & set(fabric.members), key=address_key))
    if not on_fabric or not fabric.known or (mig and not (fabric.passthrough and fabric.tenants)):
        return None
    if fabric.passthrough:
        return _refused_passthrough(fabric, on_fabric)
    if any(address not in fabric.modules for address in on_fabric):
        return None
    if fabric.partitions == ():
        return fabric.why
    partition = exactly(fabric, on_fabric)
    if partition is None:
        return (
            f"{_gpu_list(fabric, on_fabric)} are not a partition of this host's NVSwitch fabric;"
            f" {_nearest(fabric, frozenset(on_fabric))}"
        )
    return blocked(fabric, partition)


def _refused_passthrough(fabric: HostFabric, wanted: GpuSet) -> str | None:
    mode = "the Fabric Manager is in mode 0 (bare metal or full passthrough)"
    if fabric.tenants:
        names = ", ".join(dict.fromkeys(fabric.tenants.values()))
        return f"{mode}, which does not isolate guests, and {names} has GPUs of it: several guests need FABRIC_MODE=1"
    if len(wanted) == 1 or fabric.whole(wanted):
        return None
    if len(wanted) == len(fabric.members):
        missing = "which functions carry its NVSwitches is unknown" if fabric.nvlink5 else "there are none"
        missing = missing if _is_board(fabric) else "GPUs are missing"
        return f"{mode}: all GPUs go with all NVSwitches, and {missing}"
    return f"{mode}: a guest gets 1 GPU, or all {len(fabric.members)} with the NVSwitches; FABRIC_MODE=1 has partitions"


def none_of(fabric: HostFabric, count: int) -> tuple[str, ...]:
    """Return why the fabric has no set of `count` GPUs to give."""
    if fabric.passthrough:
        why = _refused_passthrough(fabric, fabric.members[:count]) if count <= len(fabric.members) else None
        return (why,) if why else ()
    sizes = Counter(len(partition.gpus) for partition in fabric.partitions or ())
    if not sizes:
        return (fabric.why,) if fabric.why else ()
    if count not in sizes:
        return (f"this host's NVSwitch fabric has partitions of {_number_list(sorted(sizes))} GPUs, none of {count}",)
    reasons = [blocked(fabric, p) for p in fabric.partitions or () if len(p.gpus) == count]
    return tuple(why for why in reasons if why)


def lost(fabric: HostFabric, gpus: Iterable[str]) -> tuple[int, ...]:
    """Return how many partitions of each size can no longer be given once these GPUs are taken, largest size first.

    Empty if the partitions are unknown.
    """
    taken = frozenset(gpus)
    return tuple(sum(not taken.isdisjoint(part) for part in parts) for parts in fabric.placeable.values())


def _nearest(fabric: HostFabric, wanted: frozenset[str]) -> str:
    """Return the text that lists all partitions, and those that differ least from a set that is not a partition."""
    alike = [p for p in fabric.partitions or () if len(p.gpus) == len(wanted)] or list(fabric.partitions or ())
    least = min((len(p.gpus ^ wanted) for p in alike), default=0)
    near = [p for p in alike if len(p.gpus ^ wanted) == least][:3]
    listed = ", ".join(f"{p.id} ({_places(fabric, p.gpus)})" for p in fabric.partitions or ())
    closest = "; ".join(f"partition {p.id}: {', '.join(sorted(p.gpus, key=address_key))}" for p in near)
    return f"partitions by module id: {listed}; nearest: {closest}"


def _gpu_list(fabric: HostFabric, gpus: GpuSet) -> str:
    return "GPUs " + ", ".join(f"{address} (module {fabric.modules[address]})" for address in gpus)


def _places(fabric: HostFabric, gpus: Iterable[str]) -> str:
    return "+".join(str(module) for module in sorted(fabric.modules[address] for address in gpus))


def _number_list(numbers: list[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last
