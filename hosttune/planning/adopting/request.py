"""What an existing definition asks for, as an intent, and what of it an intent cannot express. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from hosttune.domain.guest import Guest, GuestCell
from hosttune.errors import BadInput
from hosttune.model import pciclass
from hosttune.model.host import Host
from hosttune.model.intent import CellRequest, GuestIntent
from hosttune.model.limits import check_count
from hosttune.model.values import CpuSet, format_size, parse_cpus

Pages = Literal["auto", "2MiB", "1GiB", "none"]
_PAGES: Mapping[int | None, Pages] = {4096: "none", 2 << 20: "2MiB", 1 << 30: "1GiB"}
_HINT = "hosttune adopts guests of QEMU on x86-64 hosts: give what `virsh dumpxml --inactive GUEST` prints"


def check_supported(facts: Guest, where: str) -> None:
    """Raise BadInput for the definition of another hypervisor or machine, and for one without name or memory."""
    if facts.type not in ("kvm", "qemu"):
        raise BadInput(f"a guest of hypervisor {facts.type!r}", where=where, hint=_HINT)
    if facts.arch not in (None, "x86_64"):
        raise BadInput(f"a guest of architecture {facts.arch!r}", where=where, hint=_HINT)
    if facts.name is None or not facts.memory_bytes or not facts.vcpus:
        missing = "name" if facts.name is None else "vCPU" if not facts.vcpus else "memory"
        raise BadInput(f"no {missing}", where=where, hint=_HINT)
    check_count(facts.vcpus, "vcpus", where)


def guest_intent_of(host: Host, facts: Guest, where: str) -> GuestIntent:
    """Return what the planner needs of the guest: devices, vCPUs, memory, cells and pages.

    Raises BadInput: a device does not exist on the host.
    """
    functions = pci_devices(facts)
    absent = next((address for address in functions if address not in host.index.pci), None)
    if absent is not None:
        hint = "this host has no such device: correct the <hostdev>, or plan on the guest's own host"
        raise BadInput(f"no device {absent}", where=where, hint=hint)
    gpus = tuple(address for address in functions if address in host.index.gpus)
    return GuestIntent(
        name=facts.name or "",
        gpus=gpus or None,
        nics=_of_class(host, functions, pciclass.NETWORK) or None,
        nvme=_of_class(host, functions, pciclass.NVME) or None,
        vcpus=facts.vcpus,
        memory=facts.memory_bytes or 0,
        numa=tuple(
            CellRequest(vcpus=len(CpuSet.parse(cell.vcpus)), memory=cell.memory_bytes or 0)
            for cell in in_order(facts.cells)
        )
        or ("auto" if gpus else 1),
        hugepages=_pages(host, facts),
        firmware="bios" if facts.firmware == "bios" else "efi",
        accelerator="kvm" if facts.type == "kvm" else "tcg",
    )


def pci_devices(facts: Guest) -> tuple[str, ...]:
    """Return the host addresses of the PCI functions that the guest has."""
    return tuple(dict.fromkeys(device.source for device in facts.hostdevs if device.kind == "pci" and device.source))


def _pages(host: Host, facts: Guest) -> Pages:
    """Return the page size that the definition has; without one, ordinary pages if its memory is not whole ones."""
    for size in _page_sizes(host, facts):
        return _PAGES.get(size, "auto")
    return "auto" if _whole_pages(facts) else "none"


def _page_sizes(host: Host, facts: Guest) -> set[int | None]:
    """Return the sizes of its huge pages; `<hugepages/>` alone is the host's default size, None if that is unknown."""
    default = host.memory_settings.default_hugepage_bytes if host.memory_settings else None
    return {page.size_bytes or default for page in facts.backing.pages or ()}


def _whole_pages(facts: Guest) -> bool:
    parts = [cell.memory_bytes or 0 for cell in facts.cells] or [facts.memory_bytes or 0]
    return not any(size % (2 << 20) for size in parts)


def refusals(host: Host, facts: Guest) -> Iterator[str]:
    """Yield why no plan can be made of a valid definition."""
    if any(not cell.vcpus or not cell.memory_bytes for cell in facts.cells):
        yield "a guest cell has no vCPUs or no memory of its own: hosttune places cells that have both"
    elif facts.cells and sorted(cpu for cell in facts.cells for cpu in parse_cpus(cell.vcpus)) != [*range(facts.vcpus)]:
        yield "the guest's cells do not name each of its vCPUs once: correct <numa> in <cpu>"
    elif facts.cells and sum(cell.memory_bytes or 0 for cell in facts.cells) != facts.memory_bytes:
        yield "the guest's cells do not add up to its memory: memory that is plugged in cannot be placed"
    sizes = _page_sizes(host, facts)
    if len(sizes) > 1:
        yield "the guest has huge pages of several sizes: hosttune plans one size a guest"
    elif sizes and not sizes <= set(_PAGES):
        (size,) = sizes
        text = "the host's default size, which is unknown: name it in <page>" if size is None else format_size(size)
        yield f"the guest has huge pages of {text}; hosttune plans pages of 2 MiB and 1 GiB"


def kept(host: Host, facts: Guest) -> Iterator[str]:
    """Yield what the definition has that the planner does not decide. It stays as it is."""
    for device in facts.hostdevs:
        if device.kind != "pci":
            yield f"{device.kind} device {device.source or ''}".rstrip() + ": its place is not planned"
        elif device.source and not _planned(host, device.source):
            yield f"device {device.source}: neither GPU, NIC nor NVMe drive, so it does not decide the place"
    if len(facts.cells) > 1 or pci_devices(facts):
        yield "PCI controllers and guest addresses: the guest finds its devices where it has them now"
    if facts.backing.pages is None and not _whole_pages(facts):
        yield "ordinary pages: its memory is not a whole number of huge pages of 2 MiB in every cell"
    if facts.cpu.mode not in (None, "host-passthrough"):
        yield f"CPU mode {facts.cpu.mode}"
    if facts.qemu_arguments:
        yield f"arguments to QEMU: {' '.join(facts.qemu_arguments)}"


def _planned(host: Host, address: str) -> bool:
    device = host.index.pci.get(address)
    return address in host.index.gpus or bool(device and (device.is_network or device.is_nvme))


def _of_class(host: Host, addresses: tuple[str, ...], prefix: str) -> tuple[str, ...]:
    pci = host.index.pci
    return tuple(address for address in addresses if (pci[address].class_code or "").startswith(prefix))


def in_order(cells: tuple[GuestCell, ...]) -> tuple[GuestCell, ...]:
    """Return the guest's cells by their ids."""
    return tuple(sorted(cells, key=lambda cell: cell.id))
