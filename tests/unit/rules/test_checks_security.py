"""What keeps tenants apart: the kernel's own words, microcode, SEV-SNP, Secure Boot and TPM, the clock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from evidences import SECURITY, evidence, guest, host, outcome
from unit.machine.test_manifest import FILES, LINKS, Live

from hosttune.discovery.configuration import configuration_of
from hosttune.discovery.evidence import gather
from hosttune.discovery.recording import write_capture
from hosttune.discovery.security import read_security
from hosttune.machine.opening import open_root
from hosttune.machine.reader import Reader
from hosttune.model.evidence import SECURE_BOOT, Evidence, Security
from hosttune.model.host import CpuModel, Iommu, Platform
from hosttune.model.platform import Module

replace = msgspec.structs.replace
CPU, CLOCK = "/sys/devices/system/cpu", "/sys/devices/system/clocksource/clocksource0"
CHECKS = ("cpu-vulnerabilities", "microcode", "secure-boot", "clocksource")


class Asked(Live):
    """A machine that answers what is asked of its firmware."""

    def query(self, name: str, live: Callable[[], str | None]) -> str | None:
        return live() if name == "secure-boot" else super().query(name, live)


def of(found: Any = None, **facts: Any) -> Evidence:
    return evidence(found, security=replace(SECURITY, **facts))


def captured(tmp_path: Path, *, sick: bool) -> Evidence:
    """A capture of a machine with two CPUs; if it is sick, with all faults at once."""
    blocks = (f"processor\t: {n}\nmicrocode\t: 0x2b0005{90 - 19 * n * sick}\n" for n in (0, 1))
    files = {
        **FILES,
        "/proc/cpuinfo": "\n".join(blocks).encode(),
        f"{CPU}/vulnerabilities/mds": b"Vulnerable; SMT vulnerable\n" if sick else b"Mitigation: Clear CPU buffers\n",
        SECURE_BOOT: b"\x06\x00\x00\x00" + b"\x01",
        "/sys/class/tpm/tpm0/tpm_version_major": b"1\n" if sick else b"2\n",
        f"{CLOCK}/current_clocksource": b"hpet\n" if sick else b"tsc\n",
    }
    machine = Asked(files, LINKS, "a machine")
    machine.complete, machine.facts = True, None
    write_capture(machine, str(tmp_path / "x.tar.gz"))
    return gather(open_root(str(tmp_path / "x.tar.gz")))


@pytest.mark.parametrize(("sick", "outcomes"), [(False, ["pass"] * 4), (True, ["warn", "fail", "warn", "fail"])])
def test_a_healthy_and_a_sick_capture(tmp_path: Path, sick: bool, outcomes: list[str]) -> None:
    found = captured(tmp_path, sick=sick)
    assert [outcome(check, found)[0] for check in CHECKS] == outcomes


def test_a_capture_of_before_skips_what_it_does_not_hold() -> None:
    old = evidence(security=None, facts=1)
    assert {outcome(check, old) for check in CHECKS} == {("skip", "not in this capture")}
    assert {outcome(check, evidence(security=None))[0] for check in CHECKS} == {"unknown"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("Not affected", "pass"),
        ("Mitigation: PTE Inversion; VMX: conditional cache flushes, SMT disabled", "pass"),
        ("Mitigation: Clear CPU buffers; SMT vulnerable", "pass"),  # one guest alone on its cores
        ("Mitigation: Retpolines; BHI: Vulnerable, KVM: SW loop", "pass"),  # guests are kept out
        ("KVM: Mitigation: VMX disabled", "pass"),
        ("Vulnerable", "warn"),
        ("Vulnerable: Clear CPU buffers attempted, no microcode; SMT vulnerable", "warn"),
        ("KVM: Vulnerable", "warn"),
        ("Processor vulnerable", "warn"),
        ("Mitigation: PTE Inversion; VMX: vulnerable", "warn"),
        ("Mitigation: Enhanced IBRS; IBPB: conditional; BHI: Vulnerable", "warn"),
        ("Mitigation: Retpolines; IBPB: disabled; STIBP: disabled", "warn"),
        ("Unknown: No mitigations", "warn"),
        ("Mitigation: safe RET, no microcode", "warn"),  # before 6.7 spec_rstack_overflow said so; then: Vulnerable
        ("Mitigation: AVX disabled, no microcode", "pass"),
        ("Mitigation: Enhanced / Automatic IBRS; IBPB: conditional; PBRSB-eIBRS: Not affected; BHI: BHI_DIS_S", "pass"),
        ("Mitigation: Retpolines; IBPB: conditional; IBRS_FW; STIBP: disabled; RSB filling", "pass"),
        ("Mitigation: Clear CPU buffers; SMT Host state unknown", "pass"),
        ("Vulnerable, KVM: Not affected", "pass"),
        (None, "unknown"),
    ],
)
def test_the_kernels_words(words: str | None, expected: str) -> None:
    assert outcome("cpu-vulnerabilities", of(vulnerabilities={"x": words, "y": "Not affected"}))[0] == expected


def test_with_several_guests_an_open_vulnerability_fails() -> None:
    two = host(guests=(guest(), guest("b", pins=(3, 7), devices=())))
    assert outcome("cpu-vulnerabilities", of(two, vulnerabilities={"mds": "Vulnerable"}))[0] == "fail"
    nested = replace(two, hypervisor=True)
    assert outcome("cpu-vulnerabilities", of(nested, vulnerabilities={"mds": "Vulnerable"}))[0] == "warn"


@pytest.mark.parametrize(
    ("pins", "state", "expected"),
    [((3, 7), "running", "pass"), ((1, 6), "running", "fail"), ((), "running", "fail"), ((), "shut off", "pass")],
)
def test_threads_that_share_a_core_are_open_where_smt_is_vulnerable(
    pins: tuple[int, ...], state: str, expected: str
) -> None:
    """The first guest has CPUs 2 and 6, which are one core; a guest without pins may run on them."""
    two = host(guests=(guest(), guest("b", pins=pins, devices=(), state=state)))
    found = outcome("cpu-vulnerabilities", of(two, vulnerabilities={"mds": "Mitigation: x; SMT vulnerable"}))
    assert found[0] == expected
    assert ("a, b may share a core" in found[1] or "b, a may share a core" in found[1]) == (expected == "fail")


@pytest.mark.parametrize(
    ("secure", "tpm", "expected", "told"),
    [
        (True, "2", "pass", "Secure Boot on, TPM 2"),
        (False, "2", "skip", "Secure Boot is off, and nothing asks for it"),
        (False, "none", "skip", "Secure Boot is off, and nothing asks for it"),
        (True, "none", "warn", "Secure Boot on, no TPM"),
        (True, "1", "warn", "Secure Boot on, TPM 1"),
        (None, "2", "unknown", "whether Secure Boot is on was not read"),
        (True, None, "unknown", "the TPM's version was not read"),
    ],
)
def test_secure_boot(secure: bool | None, tpm: str | None, expected: str, told: str) -> None:
    found = of(secure_boot=secure, tpm=tpm)
    assert outcome("secure-boot", found) == (expected, told)
    facts = {fact.name: fact.value for fact in configuration_of(found)}
    assert facts["secure-boot"] == {True: "on", False: "off", None: None}[secure], "a fleet can ask for it"


@pytest.mark.parametrize(
    ("words", "flags", "sev", "snp", "mode", "expected"),
    [
        (("iommu=pt", "mem_encrypt=on"), (), "Y", "N", "identity", "warn"),  # AMDESE/AMDSEV#88
        (("iommu.passthrough=1",), ("sev_snp",), "Y", "N", "DMA", "warn"),
        ((), ("sev_snp",), "Y", "N", "identity", "warn"),  # CONFIG_IOMMU_DEFAULT_PASSTHROUGH
        (("iommu=nopt",), ("sev_snp",), "Y", "N", "DMA-FQ", "pass"),
        (("iommu=pt",), ("sev_snp",), "Y", "Y", "DMA-FQ", "pass"),
        (("iommu=pt",), (), "Y", "N", "identity", "skip"),  # SEV by default, and nobody asks for SNP
        (("iommu=pt", "mem_encrypt=on"), (), "N", "N", "identity", "skip"),
        (("iommu=pt", "mem_encrypt=on"), (), "Y", None, "identity", "skip"),  # a kernel without SNP
    ],
)
def test_sev_snp(
    words: tuple[str, ...], flags: tuple[str, ...], sev: str, snp: str | None, mode: str, expected: str
) -> None:
    switches = {"sev": sev, **({} if snp is None else {"sev_snp": snp})}
    found = host(
        kernel_args=words,
        cpu_model=CpuModel(vendor="AuthenticAMD", flags=flags),
        platform=Platform(modules=(Module(name="kvm_amd", parameters=switches),)),
        iommu=Iommu(present=True, mode=mode),
    )
    assert outcome("sev-snp", evidence(found))[0] == expected


@pytest.mark.parametrize(
    ("source", "virtual", "expected"),
    [("kvm-clock", True, "pass"), ("acpi_pm", False, "fail"), ("hpet", True, "warn"), (None, False, "unknown")],
)
def test_the_clock_source(source: str | None, virtual: bool, expected: str) -> None:
    assert outcome("clocksource", of(host(hypervisor=virtual), clocksource=source))[0] == expected


def test_microcode_of_cpus_that_report_none() -> None:
    assert outcome("microcode", evidence(security=Security(microcode={})))[0] == "skip"


def test_microcode_of_cpus_that_nothing_lists_is_unknown() -> None:
    assert outcome("microcode", evidence(security=Security()))[0] == "unknown"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"/sys/firmware/memmap/0/type": b"x"}, False),  # started without EFI
        ({}, None),  # a container's empty /sys/firmware
        ({"/sys/firmware/efi/fw_platform_size": b"64"}, None),  # the variables are not mounted
        ({"/sys/firmware/efi/efivars/BootOrder-8be4df61-93ca-11d2-aa0d-00e098032b8c": b"x"}, False),
        ({SECURE_BOOT: b"\x06\x00\x00\x00\x01"}, True),
        ({SECURE_BOOT: b"\x06\x00"}, None),
    ],
)
def test_secure_boot_is_what_the_firmware_tells(files: dict[str, bytes], expected: bool | None) -> None:
    machine = Asked(files, {}, "a machine")
    assert read_security(Reader(machine), host()).secure_boot == expected


def test_a_tpm_of_a_kernel_that_does_not_tell_its_version() -> None:
    files = {"/sys/class/tpm/tpm0/dev": b"10:224", "/sys/class/tpmrm/tpmrm0/dev": b"253:65536"}
    assert read_security(Reader(Asked(files, {}, "a machine")), host()).tpm == "2"
    files.popitem()
    assert read_security(Reader(Asked(files, {}, "a machine")), host()).tpm is None
