"""System → what the running kernel says of the isolation between guests, of its boot, and of its clock. Read only.

A capture must hold, as far as the host has them: /sys/devices/system/cpu/vulnerabilities, the microcode in
/proc/cpuinfo, the EFI variable SecureBoot, /sys/class/tpm and /sys/devices/system/clocksource.
"""

from __future__ import annotations

from hosttune.discovery.cpuinfo import blocks_by_cpu, read_cpuinfo
from hosttune.machine.reader import Reader
from hosttune.model import sysfs
from hosttune.model.evidence import SECURE_BOOT, Security
from hosttune.model.host import Host
from hosttune.model.values import CpuSet, grouped

_EFI, _TPM = "/sys/firmware/efi", "/sys/class/tpm"
_VARIABLES = f"{_EFI}/efivars"


def read_security(reader: Reader, host: Host) -> Security:
    """Return the kernel's own words (ABI/testing/sysfs-devices-system-cpu, sysfs-class-tpm; UEFI 2.10, 3.3)."""
    said = {name: reader.text(f"{sysfs.VULNERABILITIES}/{name}") for name in reader.names(sysfs.VULNERABILITIES)}
    blocks = blocks_by_cpu(read_cpuinfo(reader))
    revisions = grouped((block["microcode"], cpu) for cpu, block in blocks.items() if block.get("microcode"))
    whole = blocks and not {cpu.id for cpu in host.cpus if cpu.online is not False} - blocks.keys()
    # Whether the firmware checks what it boots: the variable is four bytes of attributes, then 1 or 0. It is a
    # query, because the variable's name has a UUID, and a capture replaces those.

    def live() -> str | None:
        data = reader.data(SECURE_BOOT)
        if data is None:  # a container may see an empty /sys/firmware; a firmware without Secure Boot has no variable
            names = reader.names(_VARIABLES)
            lacking = names and SECURE_BOOT.rpartition("/")[2] not in names
            return "off" if lacking or (reader.lacks(_EFI) and reader.names("/sys/firmware")) else None
        return {1: "on", 0: "off"}.get(data[4]) if len(data) == 5 else None

    # The version of the first TPM ("2"), "none" if the kernel has none. Kernels before 5.6 have no file with
    # it, and /sys/class/tpmrm for those of version 2 only.
    first = next((name for name in reader.names(_TPM) if name.startswith("tpm")), None)
    if first is None:
        tpm = "none" if reader.lacks(f"{_TPM}/tpm0") else None
    else:
        tpm = reader.text(f"{_TPM}/{first}/tpm_version_major") or ("2" if reader.names("/sys/class/tpmrm") else None)
    return Security(
        vulnerabilities=said or None,
        microcode={revision: str(CpuSet(cpus)) for revision, cpus in revisions.items()} if whole else None,
        secure_boot={"on": True, "off": False}.get((reader.query("secure-boot", live) or "").strip()),
        tpm=tpm,
        clocksource=reader.text(sysfs.CLOCKSOURCE),
    )
