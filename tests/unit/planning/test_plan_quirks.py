"""What a plan says that is nobody's setting: resets, slow starts, emulated switches, SEV-SNP, page records."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from damage import Damage, as_captured, load, read_by_discovery, with_damage
from evidences import evidence, outcome
from evidences import host as evidence_host
from planhosts import Card, build_host, intent_of
from sickhosts import EXAMPLE

import hosttune
from hosttune.discovery import discover
from hosttune.domain.writer import domain_xml
from hosttune.errors import BadInput
from hosttune.guest.nccl import topology
from hosttune.model.host import CpuModel, Host, Iommu, Module, Platform
from hosttune.model.intent import Intent
from hosttune.model.plan import Plan
from hosttune.model.values import to_json
from hosttune.planning import plan

GIB = 1 << 30
GPU = Card("0000:41:00.0", 0, group=1, bar_bytes=256 * GIB)
Json = dict[str, Any]


def planned(host: Json, **intent: Any) -> Plan:
    document = intent_of(**{"gpus": 1, "vcpus": 4, "memory": "4GiB", **intent})
    return plan(Host.from_json(to_json(host)), Intent.from_json(to_json(document)))


def said(made: Plan, text: str) -> list[str]:
    return [f.level for f in made.findings if text in f.text]


# --- guests --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("device_id", "levels"), [("2bb5", ["warn"]), ("2bb1", ["warn"]), ("2335", [])])
def test_a_board_that_does_not_come_back_from_its_reset(device_id: str, levels: list[str]) -> None:
    host = build_host(cards=[GPU])
    for row in host["pci"]:
        if row["address"] == GPU.address:
            row["device_id"] = device_id
    assert said(planned(host), "reset when a guest ends") == levels


def test_of_amds_gpus_the_single_report_is_said_and_the_rom_stays_on() -> None:
    host = build_host(cards=[Card("0000:21:00.0", 0, vendor="amd", group=1, bar_bytes=256 * GIB)])
    made = planned(host)
    assert said(made, "one report has it that a reset by vfio") == ["info"]
    assert [one.rom_bar for one in made.guests[0].devices] == [True]
    assert "<rom" not in domain_xml(made, made.guests[0].name)


def test_secure_boot_and_tpm_are_what_the_intent_asks_for() -> None:
    made = planned(build_host(cards=[GPU]), secure_boot=True, tpm=True)
    xml = domain_xml(made, made.guests[0].name)
    assert "<feature enabled='yes' name='secure-boot'/>\n      <feature enabled='yes' name='enrolled-keys'/>" in xml
    assert "<backend type='emulator' version='2.0'/>" in xml
    assert said(made, "loads only signed drivers") == ["info"]
    host = build_host(cards=[GPU]) | {"virtualization": {"libvirt_version": "7.0.0", "qemu_version": "5.2.0"}}
    (unplaced,) = planned(host, secure_boot=True).unplaced
    assert unplaced.why == ("Secure Boot needs libvirt 7.2, this one is 7.0.0",)


@pytest.mark.parametrize("wrong", [{"firmware": "bios"}, {"boot": {"kernel": "/k"}}])
def test_secure_boot_needs_uefi_and_a_disk(wrong: Json) -> None:
    with pytest.raises(BadInput, match="Secure Boot"):
        planned(build_host(cards=[GPU]), secure_boot=True, **wrong)


@pytest.mark.parametrize(("most", "levels"), [(8, ["info"]), (0, []), (None, [])])
def test_a_tenant_with_a_physical_function_is_said(most: int | None, levels: list[str]) -> None:
    nic = Card("0000:51:00.0", 0, kind="nic", group=2)
    host = build_host(cards=[GPU, nic])
    for row in host["pci"]:
        if row["address"] == nic.address:
            row["sriov_total_vfs"] = most
    assert said(planned(host, nics=[nic.address]), "whole NICs: 0000:51:00.0. Who has one can change") == levels


def test_a_libvirt_that_finds_no_firmware_gets_no_guest_with_uefi() -> None:
    host = build_host(cards=[GPU]) | {"virtualization": {"libvirt_version": "4.5.0", "qemu_version": "2.12.0"}}
    (unplaced,) = planned(host).unplaced
    assert unplaced.why == (
        "UEFI by <os firmware='efi'> needs libvirt 5.2, this one is 4.5.0: before, the guest would get SeaBIOS",
    )
    assert planned(host, firmware="bios").unplaced == ()


JOINED = [Card(f"0000:{0x21 + 16 * i:02x}:00.0", 0, vendor="amd", group=i, bar_bytes=256 * GIB) for i in range(4)]


@pytest.mark.parametrize(
    ("gpus", "kind", "told"),
    [
        (4, "xgmi", []),  # the guest has all of them
        (2, "xgmi", ["0000:41:00.0, 0000:51:00.0 are joined with 0000:21:00.0, and the guest has them not"]),
        (2, "pcie", []),
        (2, None, ["whether 0000:41:00.0, 0000:51:00.0 are joined with 0000:21:00.0 is unknown"]),
        (4, None, []),
    ],
)
def test_a_reset_of_one_gpu_touches_those_that_are_joined_with_it(gpus: int, kind: str | None, told: list[str]) -> None:
    host = build_host(cards=JOINED)
    for row in host["gpus"] if kind else ():
        row["peers"] = [{"address": other.address, "kind": kind} for other in JOINED if other.address != row["address"]]
    made = planned(host, gpus=[card.address for card in JOINED[:gpus]])
    texts = [finding.text for finding in made.findings if "can interrupt the GPUs that XGMI joins" in finding.text]
    assert [any(one in text for one in told) for text in texts] == [True] * len(told)
    assert len(texts) == len(told)


def test_of_gpus_that_other_guests_have_it_is_unknown_whether_they_are_joined() -> None:
    """The driver's topology leaves out what it does not hold."""
    host = build_host(cards=JOINED)
    for row, peer in zip(host["gpus"][2:], (JOINED[3], JOINED[2]), strict=True):
        row["peers"] = [{"address": peer.address, "kind": "xgmi"}]
    made = planned(host, gpus=[card.address for card in JOINED[2:]])
    (text,) = (one.text for one in made.findings if "can interrupt the GPUs that XGMI joins" in one.text)
    assert "whether 0000:21:00.0, 0000:31:00.0 are joined with 0000:41:00.0 is unknown" in text


def test_of_a_reset_of_nvidia_gpus_nothing_is_said_of_others() -> None:
    cards = [Card(card.address, 0, group=card.group, bar_bytes=GIB) for card in JOINED]
    assert said(planned(build_host(cards=cards), gpus=2), "can interrupt") == []


@pytest.mark.parametrize(
    ("qemu", "kernel", "gpus", "told"),
    [
        ("8.2.2", "6.8.0-60-generic", 4, "QEMU before 9.2 does not align them, Linux before 6.12 faults"),
        ("8.2.2", "6.15.0", 4, "QEMU before 9.2 does not align them: "),
        ("9.2.0", "6.8.0", 4, "and Linux before 6.12 faults"),
        ("10.0.13", "6.12.0", 4, "and Linux before 6.15 maps them for DMA 4 KiB at a time: "),
        ("9.2.0", "6.15.0-1-amd64", 4, None),
        (None, None, 4, None),
        ("8.2.2", "6.8.0", 1, None),
    ],
)
def test_what_makes_many_huge_bars_start_slowly(
    qemu: str | None, kernel: str | None, gpus: int, told: str | None
) -> None:
    cards = [Card(f"0000:{0x21 + 16 * i:02x}:00.0", 0, group=i, bar_bytes=256 * GIB) for i in range(gpus)]
    host = build_host(cards=cards)
    host["virtualization"] = {"kvm": True, "libvirt_version": "9.0.0", "qemu_version": qemu}
    host["cpu_model"] = {"physical_address_bits": 46}
    host["kernel"] = kernel
    made = planned(host, gpus=gpus)
    (text,) = [one.text for one in made.findings if "the start can take minutes" in one.text] or [""]
    assert (told is None) == (text == "")
    assert (told or "") in text
    assert ("page tables take 2 GiB" in text) == ("9.2 does not" in text or "6.12" in text)


@pytest.mark.parametrize(("seed", "levels"), [(False, ["warn"]), (True, [])])
def test_emulated_switches_cost_bandwidth_without_nccls_file(seed: bool, levels: list[str]) -> None:
    host = hosttune.discover("examples/hgx-h200-8.tar.xz")
    made = plan(host, Intent.from_json(to_json(intent_of(gpus=8, nics=8, seed=seed))))
    assert any(c.model == "pcie-switch-downstream-port" for c in made.guests[0].controllers)
    assert said(made, "2.5 GT/s x1") == levels


def test_a_guest_without_switches_has_no_such_ports() -> None:
    assert said(planned(build_host(cards=[GPU])), "2.5 GT/s x1") == []


@pytest.mark.parametrize(
    ("speed", "more", "levels"),
    [
        (32.0, {}, ["warn"]),
        (64.0, {}, ["warn"]),
        (32.0, {"seed": True}, []),
        (32.0, {"nics": 0}, []),  # nothing to weigh
        (16.0, {}, []),
        (None, {}, []),
    ],
)
def test_an_emulated_root_port_says_16_gts(speed: float | None, more: Json, levels: list[str]) -> None:
    host = build_host(cards=[GPU, Card("0000:81:00.0", 1, kind="nic", group=2)])
    for row in host["pci"]:
        if row["address"] == GPU.address:
            row["link"] = {"speed_gts": speed, "width": 16, "max_speed_gts": speed, "max_width": 16}
    made = planned(host, **{"nics": 1, **more})
    assert said(made, "GPUs on an emulated root port: 1") == levels
    # The file is what mends it: it has the host's figure, so NCCL does not ask the port.
    (gpu,) = [device for device in made.guests[0].devices if device.kind == "gpu"]
    written = topology(made.guests[0]) or ""
    (line,) = [line for line in written.splitlines() if f'busid="{gpu.guest_address}"' in line]
    assert f'link_speed="{"" if speed is None else f"{speed:.1f} GT/s PCIe"}"' in line


# --- the host ------------------------------------------------------------------------------------------------


def snp(value: str | None, **intent: Any) -> Plan:
    host = build_host(cards=[GPU])
    host["platform"] = {"modules": [{"name": "kvm_amd", "parameters": {} if value is None else {"sev_snp": value}}]}
    return planned(host, profile="host", **intent)


def passes_through(made: Plan) -> bool:
    return any(a.target == "iommu" and "pt" in str(a.want) for a in made.actions if a.kind == "kernel-argument")


@pytest.mark.parametrize(("value", "left_out"), [("Y", True), ("1", True), ("N", False), (None, False)])
def test_iommu_pt_is_left_out_where_it_would_end_sev_snp(value: str | None, left_out: bool) -> None:
    made = snp(value)
    assert passes_through(made) == (not left_out)
    assert said(made, "SEV-SNP is on or asked for") == (["info"] if left_out else [])


def test_iommu_pt_by_name_is_planned_with_a_warning() -> None:
    made = snp("Y", settings={"iommu_passthrough": True})
    assert passes_through(made)
    assert said(made, "SEV-SNP is on or asked for") == ["warn"]


def test_records_of_many_pages_are_said_and_given_back_by_name() -> None:
    host = build_host(cards=[GPU], memory_gib=128)
    assert said(planned(host, profile="host", memory="100GiB"), "the kernel's records of these pages take 1.6 GiB") == [
        "info"
    ]
    made = planned(host, profile="host", memory="100GiB", settings={"hugetlb_free_vmemmap": True})
    assert said(made, "the kernel's records") == []
    (argument,) = [a for a in made.actions if a.target == "hugetlb_free_vmemmap"]
    assert (argument.want, argument.effect, argument.needed) == ("hugetlb_free_vmemmap=on", "reboot", False)
    assert said(planned(host, profile="host", memory="4GiB"), "the kernel's records") == []


# --- the check of interrupt virtualisation -------------------------------------------------------------------


def judged(vendor: str, module: str | None, flags: tuple[str, ...] | None = None, **parameters: str) -> str:
    modules = () if module is None else (Module(name=module, parameters=parameters or None),)
    model = CpuModel(vendor=vendor, flags=flags)
    found = evidence_host(cpu_model=model, platform=Platform(modules=modules))
    return outcome("interrupt-virtualisation", evidence(found))[0]


@pytest.mark.parametrize(
    ("vendor", "module", "flags", "parameters", "expected"),
    [
        ("GenuineIntel", "kvm_intel", None, {"enable_apicv": "Y"}, "pass"),
        ("GenuineIntel", "kvm_intel", None, {"enable_apicv": "N"}, "warn"),
        ("GenuineIntel", "kvm_intel", None, {"nested": "Y"}, "skip"),
        ("GenuineIntel", "kvm_intel", None, {}, "unknown"),
        ("GenuineIntel", "kvm_intel", None, {"enable_apicv": "maybe"}, "unknown"),
        ("AuthenticAMD", "kvm_amd", ("svm", "x2avic"), {"avic": "N"}, "warn"),
        ("AuthenticAMD", "kvm_amd", ("svm",), {"avic": "N"}, "pass"),
        ("AuthenticAMD", "kvm_amd", None, {"avic": "N"}, "unknown"),
        ("AuthenticAMD", "kvm_amd", ("svm", "x2avic"), {"avic": "1"}, "pass"),
        ("CentaurHauls", "kvm_intel", None, {"enable_apicv": "Y"}, "unknown"),
    ],
)
def test_interrupts_without_the_host(
    vendor: str, module: str, flags: tuple[str, ...] | None, parameters: dict[str, str], expected: str
) -> None:
    assert judged(vendor, module, flags, **parameters) == expected


APICV = Module(name="kvm_intel", parameters={"enable_apicv": "Y"})
AVIC = Module(name="kvm_amd", parameters={"avic": "Y"})
AMD_CPU = CpuModel(vendor="AuthenticAMD", flags=("svm", "x2avic"))


@pytest.mark.parametrize(
    ("module", "changes", "expected", "said"),
    [
        (APICV, {}, "pass", ""),
        (APICV, {"kernel_args": ("intremap=nopost",)}, "warn", "intremap=nopost"),
        (APICV, {"kernel_args": ("intremap=on,nosid,nopost", "intremap=on")}, "warn", "nopost"),
        (APICV, {"kernel_args": ("intremap=on", "amd_iommu_intr=legacy")}, "pass", ""),
        (APICV, {"kernel_args": None}, "unknown", "command line was not read"),
        (APICV, {"iommu": Iommu(interrupt_remapping=True, interrupt_posting=False)}, "warn", "cannot post"),
        (APICV, {"iommu": Iommu(interrupt_posting=False), "kernel_args": None}, "unknown", "command line was not read"),
        (APICV, {"iommu": Iommu(interrupt_remapping=True)}, "unknown", "was not read"),
        (APICV, {"iommu": Iommu(interrupt_posting=True)}, "unknown", "was not read"),
        (APICV, {"iommu": Iommu(interrupt_remapping=False, interrupt_posting=True)}, "warn", "remaps no interrupts"),
        (APICV, {"iommu": None}, "unknown", "was not read"),
        (AVIC, {"iommu": Iommu(interrupt_remapping=True)}, "pass", ""),
        (AVIC, {"kernel_args": ("amd_iommu_intr=legacy",)}, "warn", "amd_iommu_intr=legacy"),
        (AVIC, {"kernel_args": ("amd_iommu_intr=legacy", "amd_iommu_intr=vapic")}, "pass", ""),
        (AVIC, {"kernel_args": ("intremap=nopost",)}, "pass", ""),
        (AVIC, {"kernel_args": None}, "unknown", "command line was not read"),
    ],
)
def test_the_iommu_hands_interrupts_to_vcpus(module: Module, changes: dict[str, Any], expected: str, said: str) -> None:
    model = CpuModel(vendor="GenuineIntel") if module is APICV else AMD_CPU
    found = evidence_host(**{"cpu_model": model, "platform": Platform(modules=(module,)), **changes})
    got, text = outcome("interrupt-virtualisation", evidence(found))
    assert got == expected
    assert said in text


def test_a_module_that_is_not_there_is_skipped_only_where_all_was_recorded() -> None:
    found = evidence_host(platform=Platform())
    assert outcome("interrupt-virtualisation", evidence(found, complete=True))[0] == "skip"
    assert outcome("interrupt-virtualisation", evidence(found, complete=False))[0] == "unknown"


def test_a_known_missing_driver_is_no_doubt_and_a_lost_one_is() -> None:
    from hosttune.report.plan import _known_absent

    host = Host.from_json(to_json(build_host(cards=[msgspec_card(None), Card("0000:42:00.0", 0, driver="nvidia")])))
    made = plan(host, Intent.from_json(to_json(intent_of(gpus=["0000:41:00.0"], vcpus=4, memory="4GiB"))))
    (action,) = [a for a in made.actions if a.kind == "driver"]
    assert action.current is None
    assert _known_absent(action, host) is None  # nobody says that it has none
    proven = tuple(msgspec.structs.replace(d, unbound=d.driver is None) for d in host.pci)
    assert _known_absent(action, msgspec.structs.replace(host, pci=proven)) == "no driver"


def test_a_driver_link_that_a_capture_has_lost_is_no_proof_of_none() -> None:
    bare_files, gpu = load(EXAMPLE), "0000:18:00.0"
    files = as_captured(bare_files, read_by_discovery(bare_files))
    assert not any(one.unbound for one in discover(bare_files.system()).pci)  # by whoever captured it
    link = f"{files.links[f'/sys/bus/pci/devices/{gpu}']}/driver"
    whole = {one.address: one for one in discover(files.system()).pci}
    assert whole[gpu].driver == "nvidia"
    bare = {one.address for one in whole.values() if one.driver is None}
    assert bare
    assert {address for address, one in whole.items() if one.unbound} == bare
    damaged = discover(with_damage(files, Damage("lost", link, link)).system())
    (found,) = [one for one in damaged.pci if one.address == gpu]
    assert (found.driver, found.unbound) == (None, None)


def msgspec_card(driver: str | None) -> Card:
    return Card("0000:41:00.0", 0, group=1, driver=driver)
