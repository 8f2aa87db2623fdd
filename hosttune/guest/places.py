"""Where the guest finds each passed device: below which ports, and at which bus address according to the plan.

The bus number in the XML is libvirt's controller index; the guest's firmware may choose other numbers (formatdomain,
"Device addresses"). The XML does fix the position of a root port on a root bus, and of each switch port below it. So
the guest looks below these ports, and checks the device's ids before it changes anything.
"""

from __future__ import annotations

import re

from hosttune.errors import BadInput
from hosttune.gpu import inside
from hosttune.gpu.inside import Inside
from hosttune.gpu.mig_tables import is_profile_name
from hosttune.model.plan import Device, PciController, PlannedGuest
from hosttune.model.values import Value, parse_address

# The kinds whose link and device control the guest may set: endpoints. A virtual function has no link of its own and
# shares device control with its physical function (PCIe 5.0, 9.3.5); a mediated device is not a PCIe device at all.
_ENDPOINTS = ("gpu", "nic", "nvme")
_SWITCH_PORTS = ("pcie-switch-upstream-port", "pcie-switch-downstream-port")
_IDS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{4}")
_LAST_START = 15  # far above the eight memory slices that GPUs have


class PassedDevice(Value, frozen=True, kw_only=True):
    """A passed device as its guest sees it.

    - `address`: the plan's guest address.
    - `port`: the sysfs path of the root port above it, followed by device and function numbers of the switch ports
      below that port ("pci0000:04/0000:04:00.0/00.0/01.0"); "-" if the plan has no such port.
    - `function`: its device and function number there ("00.0").
    - `ids`: vendor and device id; "-" if unknown.
    - `tool`: the tool for its maker's driver settings; "-" if none is known.
    - `endpoint`: its PCIe control bits may be set.
    - `gpu`: it is a whole GPU.
    - `mig`: the MIG instances to create on it, "PROFILE@START,…"; "" for none.
    """

    address: str
    port: str
    function: str
    ids: str
    tool: str
    endpoint: bool
    gpu: bool
    maker: Inside
    mig: str = ""


def places(guest: PlannedGuest) -> tuple[PassedDevice, ...]:
    """Return the passed devices in the plan's order.

    Raises BadInput for a malformed address, or for two devices at one address.
    """
    devices: dict[str, PassedDevice] = {}
    for n, device in enumerate(guest.devices):
        where = f"plan: guests[{guest.name!r}].devices[{n}].guest_address"
        address = parse_address(device.guest_address, where=where)
        if address in devices:
            raise BadInput(f"{address} is there twice", where=where, hint="each device has an address of its own")
        ids = ids_of(device)
        maker = inside(ids.partition(":")[0])
        own = (assignment for assignment in guest.mig if device.kind == "gpu" and assignment.gpu == device.address)
        devices[address] = PassedDevice(
            address=address,
            port=_port(guest, address),
            function=address.rpartition(":")[2],
            ids=ids,
            # The host's driver sets the power limit and persistence of a vGPU or MIG vGPU.
            tool=maker.tool or "-" if device.kind == "gpu" else "-",
            endpoint=device.kind in _ENDPOINTS,
            gpu=device.kind == "gpu",
            maker=maker,
            mig=",".join(f"{assignment.profile}@{assignment.start}" for assignment in own),
        )
    for n, assignment in enumerate(guest.mig):
        where = f"plan: guests[{guest.name!r}].mig[{n}]"
        if not is_profile_name(assignment.profile):
            raise BadInput(f"{assignment.profile!r} is not a MIG profile", where=f"{where}.profile", hint="plan again")
        if not 0 <= assignment.start <= _LAST_START:
            raise BadInput(f"{assignment.start} is not a memory slice", where=f"{where}.start", hint="plan again")
    return tuple(devices.values())


def ids_of(device: Device) -> str:
    """Return vendor and device id from a plan's `identity` ("ADDRESS 10de:2335 …"); "-" if they are unknown."""
    return next((part for part in device.identity.split()[1:2] if _IDS.fullmatch(part)), "-")


def _port(guest: PlannedGuest, address: str) -> str:
    """Return the sysfs path of the root port above the device and of the switch ports between; "-" if there is none."""
    by_index = {controller.index: controller for controller in guest.controllers}
    hops: list[str] = []
    port = by_index.get(int(address.split(":")[1], 16))
    while port is not None and port.model in _SWITCH_PORTS and len(hops) < len(by_index):
        hops.insert(0, f"{port.slot or 0:02x}.{port.function}")
        if not _on_bus(port):
            return "-"
        port = by_index.get(port.bus) if port.bus is not None else None
    above = by_index.get(port.bus) if port and port.bus is not None else None
    if port is None or above is None or port.slot is None or port.model != "pcie-root-port" or not _on_bus(port):
        return "-"
    bus = 0 if above.model == "pcie-root" else above.bus_nr if above.model == "pcie-expander-bus" else None
    if bus is None or not 0 <= bus <= 0xFF:
        return "-"
    return "/".join((f"pci0000:{bus:02x}", f"0000:{bus:02x}:{port.slot:02x}.{port.function}", *hops))


def _on_bus(port: PciController) -> bool:
    return 0 <= (port.slot or 0) <= 0x1F and 0 <= port.function <= 7
