"""Virtual functions of NICs: those that a NIC has or can be given, and which guest gets which.

Pure. One that is not there yet is planned for at the address that the kernel will give it. The kernel changes their
number only by removing all of them first: so where somebody else has made some, there are no more than these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from msgspec.structs import replace as changed

from hosttune.machine.iplink import GUIDS
from hosttune.model import sysfs
from hosttune.model.host import Host
from hosttune.model.intent import GuestIntent, Intent, Network
from hosttune.model.limits import limit
from hosttune.model.pci import PciDevice, vf_address
from hosttune.model.plan import PlannedGuest
from hosttune.model.values import FrozenMap, parse_address
from hosttune.settings.drivers import SriovVfs


def vf_networks(networks: tuple[Network, ...] | None) -> list[tuple[int, Network, str]]:
    """Return the networks that ask for a virtual function: number, network, address of its NIC."""
    rows = enumerate(networks or ())
    return [
        (n, network, parse_address(network.vf_of, where="vf_of")) for n, network in rows if network.vf_of is not None
    ]


def made_here(host: Host, physical: str) -> int:
    """Return how many virtual functions of a NIC hosttune has made."""
    settings = host.in_force.settings if host.in_force else ()
    rows = (setting for setting in settings if (setting.kind, setting.target) == (SriovVfs.kind, physical))
    return next((count for setting in rows if type(count := setting.want.get("")) is int), 0)


def functions_of(host: Host, physical: str, count: int) -> tuple[str, ...]:
    """Return the addresses of a NIC's first virtual functions, by number: those it has, or can have, up to a count."""
    device = host.index.pci.get(physical)
    if device is None:
        return ()
    growing = device.sriov_vfs == 0 or bool(made_here(host, physical))
    more = range(len(device.virtfns), min(count, device.sriov_total_vfs or 0) if growing else 0)
    if device.vf_offset is None or device.vf_stride is None:
        return device.virtfns
    return (*device.virtfns, *(vf_address(physical, device.vf_offset, device.vf_stride, n) for n in more))


def with_functions(host: Host, intent: Intent) -> Host:
    """Return the host with the virtual functions that are to be made for an intent, and for guests in force."""
    asked = Counter(at for guest in intent.present for _, _, at in vf_networks(guest.networks))
    in_force = host.in_force.guests if host.in_force else ()
    asked.update(at for guest in in_force for _, _, at in vf_networks(guest.places.networks))
    new = [
        _function(host.index.pci[physical], address)
        for physical, count in sorted(asked.items())
        for address in functions_of(host, physical, count + made_here(host, physical))
        if address not in host.index.pci
    ]
    return changed(host, pci=(*host.pci, *new)) if new else host


def _function(physical: PciDevice, address: str) -> PciDevice:
    """Return a virtual function that is not there yet; its IOMMU group is known once it is.

    Its BARs count as those of its NIC, which are larger: they decide nothing beside a GPU's.
    """
    return PciDevice(
        address=address,
        vendor_id=physical.vendor_id,
        device_id=physical.vf_device_id,
        class_code=physical.class_code,
        numa_node=physical.numa_node,
        numa_source=physical.numa_source,
        local_cpus=physical.local_cpus,
        parent=physical.parent,
        bars=physical.bars,
        physfn=physical.address,
    )


def allotted(
    host: Host, intent: Intent, own: Mapping[str, PlannedGuest], taken: Collection[str]
) -> Mapping[str, tuple[str, ...]]:
    """Return the virtual functions of each guest, in the order of its networks; fewer where there are not enough.

    `own`: guests that keep those that they have had. `taken`: what others hold, or the host uses.
    """
    had = {name: [device for device in guest.devices if device.network] for name, guest in own.items()}
    gone = {device.address for devices in had.values() for device in devices} | {*taken}
    by_guest: dict[str, tuple[str, ...]] = {}
    for guest in intent.present:
        mine: list[str] = []
        for _, _, physical in vf_networks(guest.networks):
            kept = (
                device.address
                for device in had.get(guest.name, ())
                if device.network and device.network.vf_of == physical
            )
            there = (one for one in functions_of(host, physical, limit("networks")) if one in host.index.pci)
            mine += [one for one in (*kept, *(one for one in there if one not in gone)) if one not in mine][:1]
        gone.update(mine)
        by_guest[guest.name] = tuple(mine)
    return by_guest


def lacking(host: Host, guest: GuestIntent, mine: Collection[str]) -> Iterator[str]:
    """Yield why a guest cannot have all the virtual functions that it asks for; nothing if it has them."""
    asked = vf_networks(guest.networks)
    for physical in dict.fromkeys(at for _, _, at in asked) if len(mine) < len(asked) else ():
        device = host.index.pci[physical]
        there = functions_of(host, physical, limit("networks"))
        if not device.sriov_total_vfs:
            yield f"{physical} offers no virtual functions: switch SR-IOV on in its firmware and in the host's"
        elif not there:
            make = f"echo {len(asked)} > {sysfs.function(physical, 'sriov_numvfs')}, then plan again"
            yield f"which addresses virtual functions of {physical} will have cannot be read: {make}"
        else:
            more = f"; it offers {device.sriov_total_vfs}" if len(there) < device.sriov_total_vfs else ""
            yield f"no virtual function of {physical} is free: it has {len(there)}{more}"


def kept_of(network: Network) -> Mapping[str, str | int | bool]:
    """Return what its NIC keeps for the virtual function of a network, in the terms of `VirtualFunction`."""
    wanted = {
        "max_tx": network.max_rate_mbps,
        "spoofchk": network.spoof_check,
        "trust": network.trust,
        **dict.fromkeys(GUIDS, network.guid and network.guid.lower()),
    }
    return FrozenMap({name: value for name, value in wanted.items() if value is not None})
