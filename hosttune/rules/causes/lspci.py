"""Parse `lspci -vvv` (pciutils) as far as a diagnosis needs it: links of GPUs, and what NICs and bridges may do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice

from hosttune.bench.parse.answer import NotJudged
from hosttune.errors import BadInput
from hosttune.gpu.logs import OWN_SWITCH
from hosttune.model.listing import some
from hosttune.model.measured import LinkSeen, Measured, Observations, Setup, Stated
from hosttune.predicting.formulas import pcie_gb_per_s
from hosttune.rules.causes.stated import narrow_drive
from hosttune.rules.causes.verdicts import IDLE_SPEEDS

_BLOCK = re.compile(r"(?m)^(?=(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] )")
_NAMED = re.compile(r"[0-9a-f:]{5,13}\.[0-7] (?!\s*Lnk)\S")
_GPU = re.compile(r"(?:3D controller|Processing accelerators|VGA compatible controller|Display controller)\b")
_NIC = re.compile(r"(?:Infiniband controller|Ethernet controller|Network controller)\b")
_FAST = 8.0 * 8  # GT/s × lanes; of slower NICs nobody asks for more
_GTS = r"([0-9]{1,3}(?:\.[0-9])?)GT/s"
_LINK = re.compile(rf"LnkCap:[^\n]{{0,80}}?Speed {_GTS}[^\n]{{0,80}}?Width x([0-9]{{1,2}})\b")
_OWN_OF_BOARD = r"LnkCap:[^\n]{0,80}Width x[12]\b"  # NICs for management, to which boards give one lane
_NOW = re.compile(rf"LnkSta:\s{{0,8}}Speed {_GTS}[^\n]{{0,80}}?(?:\n[ \t]{{1,60}})?Width x([0-9]{{1,2}})\b")


def machine_of(text: str) -> Measured:
    """Return what the output shows. Raises BadInput if it is cut short or shows no capabilities."""
    blocks = [block for block in _BLOCK.split(text) if block.strip()]
    # Where what the device can do is left out: lspci itself compares the two. A port may have a narrower card below it.
    alone = "LnkCap:" not in text and "PCI bridge" not in text
    stated = tuple(
        Stated(
            says=f"the link has x{short[2]} at {short[1]} GT/s: fewer lanes than its device",
            line=" ".join(short[0].split()),
            remedy="reseat the card or riser; see how many lanes the slot has, and how the firmware divides them",
            source="pciutils ls-caps.c, cap_express_link: downgraded",
        )
        for short in islice(re.finditer(rf"{_NOW.pattern} \(downgraded\)", text) if alone else (), 1)
    )
    if not any(_NAMED.match(block) for block in blocks):  # `lspci -vv | grep Lnk`: of which devices is not said
        text = re.sub(r"(?m)^[^\n]{0,80}\blspci -s (\S{5,13}) [^\n]{0,80}\n(?=[^\n]{0,40}LnkCap:)", r"\1 ", text)
        link, place = _worst(re.split(r"(?m)^(?=[^\n]{0,40}LnkCap:)", text))
        signs = re.findall(r"ACSCtl:[^\n]{0,80}?ReqRedir([+-])", text)
        said = {"link": place} if place else {}
        if on := signs.count("+"):
            said["acs_redirect"] = f"ReqRedir+ in {on} of {len(signs)} lines of ACSCtl"
        return Measured(
            version=1,
            observations=Observations(link=link, acs_redirect=on > 0 if signs else None, said=said, stated=stated),
        )
    if not text.endswith("\n"):
        raise BadInput("it is cut in the middle of a line", where="lspci", hint="save its whole output")
    gpus = [block for block in blocks if _GPU.search(block.partition("\n")[0]) and "LnkCap:" in block]
    nics = [block for block in blocks if _NIC.search(block.partition("\n")[0]) and "LnkCap:" in block]
    bridges = [block for block in blocks
               if "PCI bridge" in block.partition("\n")[0] and _is_above(block, gpus + nics)]  # fmt: skip
    if not any(word in block for word in ("LnkCap:", "Capabilities:", "ACSCtl:") for block in blocks):
        raise NotJudged("lspci", "no capabilities in it: run lspci -vvv as root")
    if any("<access denied>" in block for block in blocks):
        raise NotJudged("lspci", "capabilities are hidden, <access denied>: run lspci -vvv as root")
    acs = {block.split(" ", 1)[0]: match[1] for block in bridges
           if (match := re.search(r"ACSCtl:[^\n]{0,80}?ReqRedir([+-])", block))}  # fmt: skip
    redirecting = [address for address, sign in acs.items() if sign == "+"]
    # Those fields of a virtual function are reserved: its physical function's hold (PCIe Base Specification, SR-IOV).
    own = [block for block in nics if not _is_virtual(block)]
    fast = [block for block in own if (most := _LINK.search(block)) and float(most[1]) * int(most[2]) >= _FAST]
    drives = [block for block in blocks if "Non-Volatile memory controller" in block.partition("\n")[0]]
    drive, of_drive = _worst(drives)
    narrow = drive is not None and (drive.width or 0) < (drive.max_width or 0)
    inside = [
        block
        for block in gpus
        if OWN_SWITCH in block.partition("\n")[0] and (seen := _worst([block])[0])
        if (seen.speed_gts, seen.width) == (seen.max_speed_gts, seen.max_width)
    ]
    link, place = _worst([block for block in gpus if block not in inside and not _is_virtual(block)])
    nic_link, nic_place = _worst([block for block in own if not re.search(_OWN_OF_BOARD, block)])
    return Measured(
        version=1,
        setup=Setup(gpus_per_host=len(gpus) or None),
        observations=Observations(
            link=link,
            nic_pcie_link=nic_link,
            acs_redirect=bool(redirecting) if acs else None,
            ats=_switch(nics, r"ATSCtl:\s*Enable([+-])"),
            relaxed_ordering=_switch(fast, r"DevCtl:[^\n]*\n[^\n]*?RlxdOrd([+-])"),
            max_read_request_bytes=min(
                (int(size) for block in fast for size in re.findall(r"MaxReadReq ([0-9]{3,5}) bytes", block)),
                default=None,
            ),
            stated=(narrow_drive(of_drive, drive),) if drive and narrow else stated,
            said={
                **({"link": place} if place else {}),
                **({"nic_pcie_link": nic_place} if nic_place else {}),
                **({"acs_redirect": "at " + some(redirecting, 4)} if redirecting else {}),
            },
        ),
    )


_GROUPED = re.compile(
    r"(?m)^[ \t]{0,8}(?:IOMMU [Gg]roup (\d{1,4}):?\s{1,8})?"
    r"((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2})\.[0-7] ([^\n]{4,160})"
)


def groups(text: str) -> Measured:
    """Read the usual listing of IOMMU groups: whether each GPU (none of the CPU's) is with devices of other slots."""
    group, members = "", dict[str, list[tuple[str, str]]]()
    for number, slot, what in _GROUPED.findall(text):
        group = number or group
        members.setdefault(group, []).append((slot, what))
    others = {
        slot: [f"{other} {device[:60]}" for other, device in rows if other != slot and "bridge" not in device.lower()]
        for rows in members.values()
        for slot, what in rows
        if _GPU.search(what) and not re.match(r"(?:0000:)?00:", slot)
    }
    stated = (
        Stated(
            says="no GPU has an IOMMU group of its own: what shares it goes to the same guest, or to none",
            line="; ".join(f"{slot} with {some(devices, 2)}" for slot, devices in islice(others.items(), 2)),
            remedy="use a slot at the CPU or below a switch with ACS; newer firmware, or ACS and SR-IOV in it, can"
            " split a group; pcie_acs_override takes the guests' separation away",
            source="Linux Documentation/driver-api/vfio.rst, Groups",
        ),
    )
    return Measured(version=1, observations=Observations(stated=stated if others and all(others.values()) else ()))


def _is_above(bridge: str, devices: Sequence[str]) -> bool:
    """Return whether one of the devices is on a bus below the bridge; True if that is not shown."""
    buses = re.search(r"Bus: primary=\w\w, secondary=(\w\w), subordinate=(\w\w)", bridge)
    below = re.findall(r"(?m)^(?:[0-9a-f]{4,8}:)?([0-9a-f]{2}):[0-9a-f]{2}\.[0-7] ", "".join(devices))
    return not buses or not below or any(buses[1] <= bus <= buses[2] for bus in below)


def _is_virtual(block: str) -> bool:
    return (
        "Virtual Function" in block.partition("\n")[0] or re.search(r"LnkSta:[^\n]{0,80}Width x0\b", block) is not None
    )


def _switch(blocks: Sequence[str], pattern: str) -> bool | None:
    """Return False if a device has it off, True if all have it on, None if one does not show it."""
    numbers = [match[1] if (match := re.search(pattern, block)) else None for block in blocks]
    return False if "-" in numbers else True if numbers and None not in numbers else None


def _worst(blocks: Sequence[str]) -> tuple[LinkSeen | None, str]:
    """Return the link that carries the smallest part of what its device can do, and whose it is."""
    found: list[tuple[float, LinkSeen, str]] = []
    for block in blocks:
        most, now = _LINK.search(block), _NOW.search(block)
        if most is None or now is None:
            continue
        link = LinkSeen(
            speed_gts=float(now[1]), width=int(now[2]), max_speed_gts=float(most[1]), max_width=int(most[2])
        )
        speed = float(most[1] if link.speed_gts in IDLE_SPEEDS else now[1])  # an idle link has all its lanes
        top, rate = (pcie_gb_per_s(float(most[1]), int(most[2])), pcie_gb_per_s(speed, int(now[2])))
        address = re.match(r"[0-9a-f:]{5,13}\.[0-7]\b", block)
        found.append((rate / top if rate and top else 1.0, link, address[0] if address else ""))
    worst = min(found, key=lambda seen: seen[0], default=None)
    return (worst[1], worst[2]) if worst else (None, "")
