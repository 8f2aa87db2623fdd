"""Parsers for the text of /proc/cpuinfo. Each architecture writes it in a form of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hosttune.machine.reader import Reader, number
from hosttune.model.values import MAX_ID

# "CPU implementer" of ARM's /proc/cpuinfo; names as lscpu prints them (util-linux sys-utils/lscpu-arm.c).
_ARM_VENDORS = {
    0x41: "ARM",
    0x42: "Broadcom",
    0x43: "Cavium",
    0x46: "FUJITSU",
    0x48: "HiSilicon",
    0x4E: "NVIDIA",
    0x50: "APM",
    0x51: "Qualcomm",
    0xC0: "Ampere",
}


def read_cpuinfo(reader: Reader) -> str:
    """Return the text; empty if it cannot be read. With 768 CPUs it has 1.3 MiB."""
    return reader.text_once("/proc/cpuinfo") or ""


def first_block(cpuinfo: str) -> dict[str, str]:
    """Return the "key : value" lines of the first CPU (on s390: of the machine)."""
    return _block(cpuinfo.partition("\n\n")[0])


def values_of(cpuinfo: str, key: str) -> set[str]:
    """Return the distinct values of a key over all CPUs."""
    return set(re.findall(rf"^[ \t]*{key}[ \t]*:[ \t]*(.*?)[ \t]*$", cpuinfo, re.MULTILINE))


def _block(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def blocks_by_cpu(cpuinfo: str) -> dict[int, dict[str, str]]:
    """Return the blocks of /proc/cpuinfo by CPU id.

    s390 has one line for each CPU instead, without places: its blocks are empty.
    """
    blocks = (_block(text) for text in cpuinfo.split("\n\n"))
    numbered = ((number(block.get("processor", ""), MAX_ID), block) for block in blocks)
    blocks_of = {cpu: block for cpu, block in numbered if cpu is not None}
    return blocks_of or {int(cpu): {} for cpu in re.findall(r"^processor ([0-9]{1,6}):", cpuinfo, re.MULTILINE)}


def ids_of(blocks: Mapping[int, Mapping[str, str]], key: str) -> dict[int, int]:
    """Return a number of each CPU's block by CPU id ("physical id", "core id").

    CPUs without that number are left out.
    """
    ids = ((cpu, number(block.get(key, ""), MAX_ID)) for cpu, block in blocks.items())
    return {cpu: value for cpu, value in ids if value is not None}


def vendor_of(block: Mapping[str, str]) -> str | None:
    """Return the CPU's maker. x86 and s390 give a name; ARM and RISC-V give a number.

    A number without a name in `_ARM_VENDORS` is returned as it is.
    """
    implementer = block.get("CPU implementer", "")
    if re.fullmatch(r"0x[0-9a-f]+", implementer):
        return _ARM_VENDORS.get(int(implementer, 16), implementer)
    return block.get("vendor_id") or block.get("mvendorid")


def model_of(block: Mapping[str, str]) -> str | None:
    """Return the CPU's model. x86 and some ARM: `model name`; POWER: `cpu`; other ARM: the part number."""
    name = block.get("model name") or block.get("cpu")
    if name:
        return " ".join(name.split())
    return f"part {block['CPU part']}" if "CPU part" in block else None
