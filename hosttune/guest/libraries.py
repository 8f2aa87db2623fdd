"""What the plan settles for the collectives library of a guest: its settings file, and the NICs that it may use. Pure.

NCCL reads ~/.nccl.conf and then /etc/nccl.conf, RCCL its own files, and neither replaces what is set (NVIDIA/nccl,
src/misc/param.cc; RCCL environment variables). The names of RDMA devices are the guest's own: its kernel and udev
choose them. So the plan has PCI addresses, and `hosttune-guest-apply` writes the names that they have at each boot.
"""

from __future__ import annotations

from hosttune.gpu import inside
from hosttune.gpu.inside import Inside
from hosttune.guest.nccl import is_gpu, is_nic, topology
from hosttune.guest.places import PassedDevice, ids_of
from hosttune.model.guestplan import ExpectedLibrary
from hosttune.model.networkintent import Roce
from hosttune.model.plan import PlannedGuest

TOPOLOGY = "/etc/hosttune-guest/virtualTopology.xml"  # where the bundle installs it


def library(guest: PlannedGuest, roce: Roce | None = None) -> ExpectedLibrary | None:
    """Return the file and its NICs. None if no library of the guest's GPUs has such a file, or two makers' have.

    A network of the guest's own is one for the library's sockets where it is the only one and on a bridge: a network of
    libvirt may be behind address translation, which other hosts do not get through. `roce`: what the intent declares.
    """
    if topology(guest) is None:
        return None
    makers: list[Inside] = [inside(ids_of(device).partition(":")[0]) for device in guest.devices if is_gpu(device)]
    files = {maker.library_file for maker in makers if maker.library_file is not None}
    if len(files) != 1:
        return None
    own = [device for device in guest.devices if is_nic(device)]
    named = roce.addresses if roce is not None else ()
    declared = roce is not None and bool(own) and (named is None or {one.address for one in own} <= set(named))
    return ExpectedLibrary(
        path=files.pop(),
        topology=TOPOLOGY,
        nics=tuple(device.guest_address for device in own),
        own_network=len(guest.networks) == 1 and guest.networks[0].bridge is not None,
        traffic_class=roce.traffic_class if roce is not None and declared else None,
    )


def nics_of(found: ExpectedLibrary | None, devices: tuple[PassedDevice, ...]) -> tuple[PassedDevice, ...]:
    """Return the places of the library's NICs, in the plan's order."""
    wanted = frozenset(found.nics) if found is not None else frozenset[str]()
    return tuple(place for place in devices if place.address in wanted)
