"""The 64-bit MMIO window that a guest's BARs need, and what makes it that large.

Pure. The size follows from the devices' real BARs and is checked against the address width. The window that OVMF opens
by itself is in OvmfPkg's PlatformInitLib/MemDetect.c. If it is uncertain, the size is written as a minimum
(X-PciMmio64Mb). This costs nothing, because the firmware uses its own window if that is larger.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from hosttune.domain.elements import ASSUMED_LIBVIRT, ASSUMED_QEMU, Version
from hosttune.inventory.devices import Catalogue
from hosttune.inventory.width import FIRMWARE_BITS, AddressBits
from hosttune.model.host import Host
from hosttune.model.values import format_size, grouped, slot_of

MIB = 1 << 20
GIB = 1 << 30
OVMF_MAX_WINDOW_MIB = 0x1000000  # larger X-PciMmio64Mb values are ignored (edk2 MemDetect.c)
CLASSIC_WINDOW = 32 * GIB  # PcdPciMmio64Size, if firmware does not size its window by the width
DEFAULT_HOLE = 32 * GIB  # q35's pci-hole64-size
BITS_WITHOUT_1G_PAGES = 40
SEABIOS_BITS = 46  # SeaBIOS 1.16.3 uses no more
LOW_MEMORY = 0xB0000000  # from here on q35 has memory above 4 GiB (QEMU hw/i386/pc_q35.c)
BELOW_4G = 4 * GIB  # memory that moves above 4 GiB to make room for 32-bit devices
AMD_HT_START = 1012 * GIB  # on AMD, newer q35 machines move memory behind this hole, to 1 TiB
AMD_HT_END = 1024 * GIB
RULE = "2 x the next power of two"  # room for every BAR at a multiple of its size


class Firmware(msgspec.Struct, frozen=True):
    """What decides the window that a guest's firmware opens by itself; None = unknown.

    `vendor` and `one_gib_pages` are those of the guest's CPU. `sizes_by_width`: QEMU and libvirt are new enough for an
    edk2 (2022.11) that sizes the window by the address width. `misaligns`: SeaBIOS may be 1.16.3, as with this QEMU.
    """

    kind: str
    vendor: str | None
    one_gib_pages: bool | None
    sizes_by_width: bool | None
    misaligns: bool

    @property
    def amd(self) -> bool:
        """Whether QEMU keeps the guest's memory out of AMD's HyperTransport hole."""
        return self.vendor == "AuthenticAMD"


def firmware_of(host: Host, kind: str, accelerator: str) -> Firmware:
    """Return the firmware of a guest on this host."""
    stack = host.virtualization
    qemu = stack.qemu_version if stack else None
    ages = (_at_least(stack.libvirt_version if stack else None, ASSUMED_LIBVIRT), _at_least(qemu, ASSUMED_QEMU))
    misaligns = kind != "efi" and _at_least(qemu, (8, 2)) is not False and not _at_least(qemu, (10, 1))
    modern = False if False in ages else None if None in ages else True
    if accelerator == "tcg":  # QEMU's emulated maximum CPU is an AMD one with 1 GiB pages
        return Firmware(kind, "AuthenticAMD", True, modern, misaligns)
    cpu = host.cpu_model
    pages = None if cpu is None or cpu.flags is None else "pdpe1gb" in cpu.flags
    return Firmware(kind, cpu.vendor if cpu else None, pages, modern, misaligns)


def _at_least(version: str | None, least: Version) -> bool | None:
    numbers = re.match(r"[0-9]+(\.[0-9]+)*", version or "")
    return tuple(map(int, numbers[0].split("."))) >= least if numbers else None


class Window(msgspec.Struct, frozen=True):
    """The 64-bit MMIO window. `mmio64_bytes` None: not computed. `floor_mib`: X-PciMmio64Mb, None if not needed.

    `refusal`: why the guest's address width is too small, with the numbers; `doubt`: what is unknown, or may fail;
    `note`: a short text on where the window comes from; `why`: the same with its arithmetic.
    """

    mmio64_bytes: int | None = None
    floor_mib: int | None = None
    refusal: str | None = None
    doubt: str | None = None
    note: str | None = None
    why: str | None = None


class BarSum(msgspec.Struct, frozen=True):
    """Bytes of 64-bit prefetchable BARs, the devices whose BARs are unknown, and whether a GPU is among those."""

    total: int
    unknown: tuple[str, ...]
    vital: bool


def add_bars(catalogue: Catalogue, devices: Sequence[str]) -> BarSum:
    """Return the sum of the BARs that belong in the window.

    A GPU without any memory BAR has unknown BARs (none was assigned).
    """
    total = 0
    unknown: list[str] = []
    for address in devices:
        device = catalogue.pci.get(address)
        bars = device.bars if device else None
        if bars is None or (address in catalogue.gpus and not bars):
            unknown.append(address)
            continue
        counted = [bar for bar in bars if bar.prefetchable is not False]
        if any(bar.is_64bit is None for bar in counted):
            unknown.append(address)
        total += sum(bar.size_bytes for bar in counted if bar.is_64bit)
    return BarSum(total, tuple(unknown), any(address in catalogue.gpus for address in unknown))


def size_window(
    catalogue: Catalogue, devices: Sequence[str], memory_bytes: int, width: AddressBits, firmware: Firmware
) -> Window:
    """Return the window: 2 x the next power of two of all 64-bit prefetchable BARs.

    Memory and window must both be addressable. If BARs of a GPU are unknown, there is no size, only a doubt. If BARs of
    another device are unknown, the size is the minimum for the rest, with a doubt.
    """
    bars = add_bars(catalogue, devices)
    doubts = []
    if bars.unknown:
        names = ", ".join(bars.unknown)
        if bars.vital or not bars.total:
            return Window(doubt=f"the BARs of {names} are unknown: no MMIO window was computed")
        doubts.append(f"the BARs of {names} are unknown: the 64-bit window is the least that the others need")
    if not bars.total:
        return Window(mmio64_bytes=0)
    need = _needed(bars.total)
    if width.usable is None:
        doubts.append("the host's address width is unknown: whether the 64-bit window fits was not checked")
    if misaligned := misalignment(catalogue, devices, memory_bytes, width, firmware):
        doubts.append(misaligned)
    refusal = _refusal(bars.total, need, memory_bytes, width, firmware)
    floor, note, why = _source(need, memory_bytes, width, firmware)
    least = "; the least that the known BARs need" if bars.unknown else ""
    return Window(
        mmio64_bytes=need,
        floor_mib=floor,
        refusal=refusal,
        doubt="; ".join(doubts) or None,
        note=f"{note}{least}",
        why=f"64-bit window {format_size(need)} for BARs of {_sum(bars.total)}: {RULE}; {why}",
    )


def _needed(total: int) -> int:
    return 2 * MIB * (1 << max(0, (-(-total // MIB)) - 1).bit_length())


def misalignment(
    catalogue: Catalogue, devices: Sequence[str], memory_bytes: int, width: AddressBits, firmware: Firmware
) -> str | None:
    """Return which devices behind ports get no address that Linux takes, if SeaBIOS is 1.16.3; None if all do.

    With memory above 4 GiB it aligns the window of each port to a 2048th of the address space, not to the port's BARs,
    and the largest window comes first. Source: SeaBIOS e5f2e4c6, "pciinit: don't misalign large BARs" (in 1.17).
    """
    if not firmware.misaligns or memory_bytes < LOW_MEMORY or not _believed(width.bits, firmware):
        return None
    align = 1 << min(width.bits or 0, SEABIOS_BITS) - 11
    windows = []
    for slot, functions in grouped((slot_of(one), one) for one in devices if one in catalogue.pci).items():
        known = (bar for address in functions for bar in catalogue.pci[address].bars or ())
        bars = [bar.size_bytes for bar in known if bar.is_64bit and bar.prefetchable]
        windows.append((-(-sum(bars) // align) * align, max(bars, default=1), slot))
    wrong, start = [], 0
    for size, largest, slot in sorted(windows, reverse=True):
        wrong += [slot] if start % largest else []
        start += size
    names = ", ".join(sorted(wrong))
    text = f"whether SeaBIOS is 1.16.3 is unknown: it gives BARs of {names} addresses that Linux refuses, 1.17 does not"
    return text if wrong else None


def memory_top(memory_bytes: int, firmware: Firmware) -> int:
    """Return the highest possible end of the guest's memory."""
    top = memory_bytes + BELOW_4G
    return top + AMD_HT_END - AMD_HT_START if firmware.amd and top > AMD_HT_START else top


def _reach(width: AddressBits, firmware: Firmware) -> int | None:
    """Return the address bits that firmware and devices can both use, None unknown."""
    if width.usable is None or firmware.kind != "efi":
        return width.usable
    return min(width.usable, BITS_WITHOUT_1G_PAGES if firmware.one_gib_pages is False else FIRMWARE_BITS)


def _refusal(total: int, need: int, memory: int, width: AddressBits, firmware: Firmware) -> str | None:
    """Return why the window is impossible; None if it is possible, or if no limit is known."""
    what = f"BARs of {_sum(total)} need a 64-bit window of {format_size(need)}"
    if firmware.kind == "efi" and need > OVMF_MAX_WINDOW_MIB * MIB:
        return f"{what}; the firmware opens {format_size(OVMF_MAX_WINDOW_MIB * MIB)} at the most"
    bits = _reach(width, firmware)
    if bits is None:
        return None
    reach = f"{bits} address bits{_whose(bits, width)} reach only {format_size(1 << bits)}"
    if 2 * need > 1 << bits:
        return f"{what}; with no memory at all it ends at {format_size(2 * need)}, but {reach}"
    end = -(-memory_top(memory, firmware) // need) * need + need
    if end <= 1 << bits:
        return None
    return f"{what}; above {format_size(memory)} of memory it ends at {format_size(end)}, but {reach}"


def _whose(bits: int, width: AddressBits) -> str:
    """Return whose address bits these are, if they are not the CPU's."""
    if width.usable is not None and bits < width.usable:
        return " (the most that the firmware uses)"
    return " (the IOMMU's)" if width.finding else ""


def _source(need: int, memory: int, width: AddressBits, firmware: Firmware) -> tuple[int | None, str, str]:
    """Return (minimum in MiB or None, note, why): what opens a window of that size."""
    if firmware.kind != "efi":  # SeaBIOS places BARs above the memory, and the hole grows to hold them (pciinit.c)
        if need <= DEFAULT_HOLE:
            return None, "within the host bridge's default hole", "the host bridge's default hole is large enough"
        return None, "the host bridge's hole is made as large", "pcihole64 makes room; SeaBIOS places BARs there"
    own, doubt = own_window(memory, width, firmware)
    if own >= need:
        text = f"the firmware's own window of {format_size(own)} is large enough"
        return None, "within the firmware's own", text
    asked = f"the firmware is asked for {format_size(need)}"
    if doubt:
        return need // MIB, f"{asked}: {doubt}", f"written as a floor, since {doubt}"
    return need // MIB, asked, f"the firmware's own window is only {format_size(own)}"


def _believed(bits: int | None, firmware: Firmware) -> bool:
    """Return whether OVMF and SeaBIOS trust an address width: they take narrow ones for QEMU's defaults.

    Source: edk2 PlatformAddressWidthFromCpuid; SeaBIOS src/fw/paravirt.c, physbits.
    """
    return bits is not None and (
        bits >= 41
        or (firmware.vendor == "GenuineIntel" and bits in (36, 39))
        or (firmware.vendor == "AuthenticAMD" and bits == 40)
    )


def own_window(memory_bytes: int, width: AddressBits, firmware: Firmware) -> tuple[int, str | None]:
    """Return (bytes that OVMF's own window certainly has, why the real window may be larger).

    It opens an eighth of the address space if it trusts the width and the memory ends below; else 32 GiB.
    """
    bits = width.bits  # the firmware sees the CPU's width, not the IOMMU's
    if bits is None:
        return CLASSIC_WINDOW, "the address width is unknown"
    if firmware.sizes_by_width is None:
        return CLASSIC_WINDOW, "libvirt or QEMU is unknown, and so the firmware's age"
    if not firmware.sizes_by_width:
        return CLASSIC_WINDOW, "libvirt or QEMU is older than 9.0 and 7.2, and so may the firmware be"
    if not _believed(bits, firmware):
        return CLASSIC_WINDOW, f"the firmware does not believe {bits} address bits of a {firmware.vendor or '?'} CPU"
    doubt = None
    if not firmware.one_gib_pages and bits > BITS_WITHOUT_1G_PAGES:
        doubt = f"without 1 GiB pages the firmware uses {BITS_WITHOUT_1G_PAGES} of {bits} address bits"
        if firmware.one_gib_pages is None:
            doubt = "whether the CPU has 1 GiB pages is unknown"
        bits = BITS_WITHOUT_1G_PAGES
    bits = min(bits, FIRMWARE_BITS)
    dynamic = 1 << (bits - 3)
    if dynamic <= CLASSIC_WINDOW or memory_top(memory_bytes, firmware) > (1 << bits) - dynamic:
        return CLASSIC_WINDOW, doubt
    return dynamic, doubt


def remedies(
    catalogue: Catalogue,
    devices: Sequence[str],
    gpus: Sequence[str],
    memory_bytes: int,
    width: AddressBits,
    firmware: Firmware,
) -> tuple[str, ...]:
    """Return what makes a refused window fit: less memory, fewer GPUs (those with the smallest BARs stay), or both."""
    texts: list[str] = []
    by_size = sorted(gpus, key=lambda address: add_bars(catalogue, (address,)).total)
    for count in range(len(gpus), min(len(gpus), 1) - 1, -1):
        dropped = {slot_of(address) for address in by_size[count:]}
        kept = [address for address in devices if slot_of(address) not in dropped]
        room = _memory_room(catalogue, kept, width, firmware)
        fewer = [f"gpus: {count}"] if count < len(gpus) else []
        if room >= memory_bytes:
            return (*texts, *fewer)
        if room >= GIB and not texts:
            texts.append(" and ".join((*fewer, f"memory: at most {format_size(room)}")))
    return tuple(texts)


def _memory_room(catalogue: Catalogue, devices: Sequence[str], width: AddressBits, firmware: Firmware) -> int:
    """Return the bytes of memory that fit below the window of these devices; 0 if none fit."""
    total = add_bars(catalogue, devices).total
    need = _needed(total) if total else 0
    bits = _reach(width, firmware)
    if bits is None or (need and _refusal(total, need, 0, width, firmware)):
        return 0
    top = (1 << bits) - need
    if firmware.amd and top > AMD_HT_START:
        top = max(AMD_HT_START, top - (AMD_HT_END - AMD_HT_START))
    return top - BELOW_4G


def _sum(size_bytes: int) -> str:
    """Return a sum of BARs with two decimals: 256.05 GiB shows why the next power of two is 512."""
    return f"{size_bytes / GIB:.2f} GiB" if size_bytes >= GIB else format_size(size_bytes)
