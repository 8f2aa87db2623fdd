"""Command lines that people published, read as guests; and lines that nobody should be able to write."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from examplehosts import discovered
from xmledits import edited

import hosttune
from hosttune.domain.guest import Memnode
from hosttune.domain.reader import read_domain
from hosttune.domain.running import Running, definition
from hosttune.linux.qemuline import read_options
from hosttune.model.evidence import GuestThread
from hosttune.model.topology import Hugetlbfs
from hosttune.rules.lint import BY_HAND, LintedDefinition, Manager, lint, rules
from hosttune.rules.lint.running import NOT_ASKED

CASES = tomllib.loads((Path(__file__).parents[2] / "cases/running/cases.toml").read_text())["case"]
MOUNTS = (
    Hugetlbfs(path="/dev/hugepages", size_bytes=2 << 20),
    Hugetlbfs(path="/run/hugepages/kvm/1048576kB", size_bytes=1 << 30),
)


def host() -> Any:
    known = discovered()
    assert known.memory_settings is not None
    settings = msgspec.structs.replace(known.memory_settings, hugetlbfs=MOUNTS)
    return msgspec.structs.replace(known, memory_settings=settings)


def running(line: str, config: dict[str, str] | None = None, **facts: Any) -> Running:
    words = shlex.split(line)
    options, unread = read_options(words[1:], (config or {}).get)
    return Running(
        **{"name": "g", "page_bytes": (), "threads": (GuestThread(name="CPU 0/TCG", cpus="1"),), **facts},
        program=words[0].rpartition("/")[2],
        options=options,
        unread=unread,
    )


def made(line: str, config: dict[str, str] | None = None, **facts: Any) -> str:
    return definition(running(line, config, **facts), host())


def at(value: Any, path: str) -> Any:
    """What is at a path of fields; "*" is each of a list. None is "", which TOML can write."""
    for position, name in enumerate(steps := path.split(".")):
        if name == "*":
            return [at(one, ".".join(steps[position + 1 :])) for one in value]
        value = None if value is None else value[name]
    return "" if value is None else value


@pytest.mark.parametrize("case", CASES, ids=[case["trait"][:40] for case in CASES])
def test_a_published_command_line(case: dict[str, Any]) -> None:
    xml = made(case["line"], case.get("config"), policy=case.get("policy"))
    facts = {**msgspec.json.decode(msgspec.json.encode(read_domain(xml))), "confidential": "<launchSecurity" in xml}
    assert "unread" not in xml
    assert {path: at(facts, path) for path in case["expect"]} == case["expect"]


Q35 = "qemu-system-x86_64 -machine q35,accel=kvm"


def judged(line: str, **facts: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in lint(host(), [LintedDefinition("process 7", made(line, **facts), Manager(BY_HAND))]):
        found.setdefault(one.rule, []).append(one.text)
    return found


def threads(*pairs: tuple[str, str]) -> tuple[GuestThread, ...]:
    return tuple(GuestThread(name=name, cpus=cpus) for name, cpus in pairs)


def test_pins_are_those_of_the_threads() -> None:
    named = threads(("qemu-system-x86", "96-97"), ("CPU 0/KVM", "4"), ("CPU 1/KVM", "5"), ("IO io0", "97"))
    guest = read_domain(made(f"{Q35} -smp 2 -object iothread,id=io0", threads=named))
    assert {vcpu: str(cpus) for vcpu, cpus in guest.pins.items()} == {0: "4", 1: "5"}
    assert (guest.emulator_cpus, guest.iothread_pins[0].cpus) == ("96-97", "97")


def test_a_thread_that_may_run_everywhere_is_not_pinned() -> None:
    every = "0-191"
    guest = read_domain(made(f"{Q35} -smp 1", threads=threads(("qemu-system-x86", every), ("CPU 0/KVM", every))))
    assert (guest.pins, guest.emulator_cpus) == ({}, None)


def test_the_emulator_is_the_thread_with_the_name_of_the_process() -> None:
    """`-name td,process=td`: canonical/tdx guest-tools/run_td."""
    guest = read_domain(made(f"{Q35} -smp 1", title="td", threads=threads(("td", "96"), ("CPU 0/KVM", "4"))))
    assert (guest.emulator_cpus, {vcpu: str(cpus) for vcpu, cpus in guest.pins.items()}) == ("96", {0: "4"})
    nameless = threads(("qemu-system-x86", "4"), ("qemu-system-x86", "96"))  # one of them is a vCPU's
    assert read_domain(made(f"{Q35} -smp 1", threads=nameless)).emulator_cpus is None


def test_a_program_without_an_architecture_has_that_of_the_host() -> None:
    """KVM runs no other: qemu-kvm of virt-launcher on arm64 (kubevirt/kubevirt issue 3558)."""
    line = "/usr/libexec/qemu-kvm -machine virt-rhel8.4.0,accel=kvm,gic-version=2 -cpu host"
    assert 'arch="aarch64"' in definition(running(line), msgspec.structs.replace(host(), arch="aarch64"))


def test_a_guest_from_which_kvm_is_hidden_gets_no_hints_of_it() -> None:
    own = threads(("qemu-system-x86", "96"), ("CPU 0/KVM", "4"))
    shown, hidden = (judged(f"{Q35} -smp 1 -cpu host{more}", threads=own) for more in ("", ",kvm=off"))
    assert ("kvm-hints" in shown, "kvm-hints" in hidden) == (True, False)


@pytest.mark.parametrize(
    ("known", "rule"),
    [
        (threads(("qemu-system-x86", "4"), ("qemu-system-x86", "5")), "vcpu-pins"),
        (threads(("qemu-system-x86", "4"), ("qemu-system-x86", "5")), "emulator-pin"),
        (None, "vcpu-pins"),
        (None, "emulator-pin"),
    ],
    ids=["threads without names", "their emulator", "no threads", "no threads: the emulator"],
)
def test_what_is_not_known_of_threads_is_not_judged(known: Any, rule: str) -> None:
    found = judged(f"{Q35} -smp 2 -device vfio-pci,host=0000:1b:00.0", threads=known)
    assert rule not in found
    assert any("thread" in text for text in found["running-read"])


def test_a_file_that_cannot_be_read_leaves_nothing_judged() -> None:
    found = judged(f"{Q35} -smp 2 -device vfio-pci,host=0000:1b:00.0 -readconfig /dev/fd/9")
    assert found == {"running-read": ["cannot be judged: -readconfig /dev/fd/9: the file cannot be read"]}


def test_a_device_that_was_plugged_in_later_is_found_by_its_group() -> None:
    known = host()
    device = known.index.pci[known.gpus[0].address]
    bound = msgspec.structs.replace(device, driver="vfio-pci", iommu_group=40)
    others = [one for one in known.pci if one.address != device.address and one.iommu_group != 40]
    xml = definition(
        Running(name="g", program="qemu-system-x86_64", options=(), groups=("40", "77")),
        msgspec.structs.replace(known, pci=(bound, *others)),
    )
    assert read_domain(xml).functions == (device.address,)
    assert "IOMMU group 77" in xml


def test_the_node_of_a_cpuset_holds_for_all_memory() -> None:
    guest = read_domain(made(f"{Q35} -m 1G", nodes="1"))
    assert guest.numatune == Memnode(mode="strict", nodes="1")


PORTS = " ".join(f"-device pcie-root-port,id=rp{n},bus=pcie.0,chassis=0,slot={n},multifunction=off" for n in range(3))


@pytest.mark.parametrize(
    "line",
    [
        f"{Q35} -smp 2 {PORTS} -device vfio-pci,host=0000:18:00.0,bus=rp0",  # kata-containers issue 4211
        f"{Q35} -smp 8,sockets=1,modules=2,cores=4,threads=1 -device vfio-pci,host=0000:18:00.0",
        "qemu-system-x86_64 -machine pc-q35-99.0,accel=kvm -smp 2 -device vfio-pci,host=0000:18:00.0",
        f"{Q35} -smp 288 -device amd-iommu,intremap=on,xtsup=on -device vfio-pci,host=0000:18:00.0",
        f"{Q35},kernel-irqchip=split -smp 288 -device intel-iommu,x-flts=on,intremap=auto"
        " -device vfio-pci,host=0000:18:00.0",
        f"{Q35} -numa node -device pxb-pcie,id=p,bus=pcie.0,bus_nr=8,numa_node=0 -device pcie-root-port,id=r,bus=p"
        " -device vfio-pci,host=0000:18:00.0,bus=r",
    ],
    ids=[
        "ports by slot",
        "modules",
        "a program of its own",
        "an IOMMU device of AMD",
        "extended ids by themselves",
        "QEMU chooses the place",
    ],
)
def test_what_qemu_has_started_with_is_no_fault(line: str) -> None:
    rules = {"port-chassis", "topology", "hypervisor-offers", "iommu-eim", "device-place"}
    assert not [text for rule in rules for text in judged(line).get(rule, ()) if not text.startswith("cannot be")]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (",kernel-irqchip=split -device intel-iommu", (True, True)),
        (",kernel-irqchip=split -device intel-iommu,intremap=off", (False, False)),
        (",kernel-irqchip=off -device intel-iommu", (True, False)),
        (" -accel kvm,kernel-irqchip=split -device intel-iommu,eim=auto", (True, True)),
        (" -device intel-iommu", (None, False)),
    ],
)
def test_what_an_iommu_device_remaps_depends_on_the_interrupt_controllers(
    line: str, expected: tuple[bool | None, bool]
) -> None:
    """QEMU 10.1 hw/i386/x86-iommu.c (x86_iommu_realize), intel_iommu.c (vtd_decide_config)."""
    device = read_domain(made(f"{Q35}{line}")).iommu
    assert device is not None
    assert (device.intremap, device.eim) == expected


@pytest.mark.parametrize(
    ("line", "levels"),
    [
        (",kernel-irqchip=split -smp 288", ["warn"]),
        (",kernel-irqchip=split -smp 288 -device virtio-iommu-pci", ["warn"]),
        (" -accel kvm,kernel-irqchip=split -smp 288", ["warn"]),
        (" -smp 288", ["error"]),
        (" -smp 288 -device virtio-iommu-pci", ["error"]),
        (",kernel-irqchip=split -smp 288 -device intel-iommu,intremap=on,eim=off", ["error"]),
        (",kernel-irqchip=split -smp 288 -device intel-iommu", []),
        (",kernel-irqchip=split -smp 255", []),
    ],
)
def test_more_than_255_vcpus_without_remapping_work_where_the_irqchip_is_split(line: str, levels: list[str]) -> None:
    """QEMU 5.2 offers KVM_FEATURE_MSI_EXT_DEST_ID then (target/i386/kvm/kvm-cpu.c); Linux 5.11 uses it."""
    guests = [LintedDefinition("process 7", made(f"{Q35}{line}"), Manager(BY_HAND))]
    assert [one.level for one in lint(host(), guests) if one.rule == "iommu-eim"] == levels


HOSTILE = {
    "control characters": "-name a\x01\x1b[2J -m 1G",
    "many vCPUs": "-smp 99999999999",
    "no vCPUs": "-smp 0",
    "a list of many CPUs": "-numa node,cpus=0-99999999999",
    "an address beyond the bus": "-device pcie-root-port,id=a,bus=pcie.0,addr=ff.7 -device vfio-pci,host=00:1f.7,bus=a",
    "a ring of nodes": "-blockdev driver=raw,node-name=a,file=b -blockdev driver=raw,node-name=b,file=a"
    " -device virtio-blk-pci,drive=a",
    "a ring of buses": "-device pcie-root-port,id=a,bus=b -device pcie-root-port,id=b,bus=a"
    " -device vfio-pci,host=1b:00.0,bus=a",
    "JSON in JSON": "-device '" + '{"a":' * 3000 + "1" + "}" * 3000 + "'",
    "half a JSON": """-device '{"driver":'""",
    "no value at the end": "-m 1G -device",
    "another thing than a size": "-m lots",
    "100 KB of options": "-numa cpu,node-id=0 " * 3000 + "-smp 4096 -numa node -numa node",
    "100 KB of one option": "-cpu host," + "a," * 50_000,
    "a UUID": "-uuid <none>",
    "an empty option": "-device '' -object '' -drive '' -numa ''",
}


@pytest.mark.parametrize("line", HOSTILE.values(), ids=HOSTILE)
def test_hostile_lines_are_judged_or_said_not_to_be(line: str) -> None:
    judged(f"{Q35} {line}")


@pytest.mark.parametrize(
    ("name", "rule", "remedy"),
    [
        ("Proxmox", "memory-balloon", "qm set 100 --balloon 0"),
        ("Proxmox", "memory-merging", "qm set 100 --args '…', with QEMU's own option: -machine mem-merge=off"),
        ("Incus", "huge-pages", "incus config set 100 limits.memory.hugepages=true"),
        (BY_HAND, "memory-merging", "-machine mem-merge=off"),
        ("libvirt", "memory-merging", "write <nosharepages/> in <memoryBacking>"),
    ],
)
def test_the_remedy_is_a_setting_of_the_manager(name: str, rule: str, remedy: str) -> None:
    xml = made(f"{Q35} -device virtio-balloon-pci -device vfio-pci,host=0000:1b:00.0")
    found = {one.rule: one.remedy for one in lint(host(), [LintedDefinition("process 7", xml, Manager(name, "100"))])}
    assert found[rule] == remedy


NOVA = '<nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1"/>'


@pytest.mark.parametrize(
    ("metadata", "rule", "remedy"),
    [
        (
            NOVA,
            "huge-pages",
            "openstack flavor set FLAVOR --property hw:mem_page_size=1GB, and resize the server to it",
        ),
        (NOVA, "memory-balloon", "no setting of Nova's is known for it, and Nova writes its XML anew at each start;"),
        ('<one:vm xmlns:one="http://opennebula.org/xmlns/libvirt/1.0"/>', "cpu-model", "CPU_MODEL = [ MODEL = "),
        ('<k:kubevirt xmlns:k="http://kubevirt.io"/>', "huge-pages", "spec.domain.memory.hugepages.pageSize: 1Gi"),
        ("<a:b xmlns:a='urn:x'/>", "huge-pages", "write <hugepages><page size="),
    ],
)
def test_the_remedy_of_a_definition_is_its_writers(metadata: str, rule: str, remedy: str) -> None:
    xml = made(f"{Q35} -smp 2 -device virtio-balloon-pci -device vfio-pci,host=0000:1b:00.0")
    definition = LintedDefinition("a.xml", edited(xml, "metadata", metadata))
    found = {one.rule: one.remedy for one in lint(host(), [definition])}
    assert found[rule].startswith(remedy)


def test_settings_are_of_rules_that_there_are() -> None:
    table = tomllib.loads((Path(hosttune.__file__).parent / "rules/lint/managers.toml").read_text())
    assert {*table["rules"], *NOT_ASKED} <= {rule.id for rule in rules()}
    xml = {rule.id for rule in rules() if "<" in (rule.remedy or "")} - {*NOT_ASKED}
    assert {rule for rule in xml if "qemu" not in table["rules"].get(rule, ())} == {  # QEMU has no such fault
        *("firmware-choice", "high-memory", "cell-vcpus", "iothread-missing", "memory-sum", "memnode-cells"),
    }
