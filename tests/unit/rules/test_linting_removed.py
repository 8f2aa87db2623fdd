"""The linter on what the planner writes: it is clean, and each tuning element that is taken out of it is missed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from domain_faults import criticise
from domain_shapes import SHAPES, changed, plan_of
from lxml import etree
from system.test_plan_xml import CASES, hosts, planned
from xmledits import edited

from hosttune.assets import shipped_text
from hosttune.domain.writer import domain_xml
from hosttune.model.host import (
    Host,
    Iommu,
    Module,
    Platform,
)
from hosttune.model.lint import LintFinding
from hosttune.rules.lint import ADVISORY, rules

__all__ = ["hosts"]

QEMU = "{http://libvirt.org/schemas/domain/qemu/1.0}"

# --- each tuning element is missed -------------------------------------------------------------------------------

# What the template can write, and the rule that misses it. Controllers, disks, devices and timers are told apart by
# their model, device, type and name; ports by whether they lead to a passed device.
MISSED = {
    "memoryBacking": "huge-pages",
    "memoryBacking/hugepages": "huge-pages",
    "memoryBacking/hugepages/page": "page-size",
    "memoryBacking/nosharepages": "memory-merging",
    "vcpu": "vcpu-pins",
    "iothreads": "iothread-missing",
    "cputune": "vcpu-pins",
    "cputune/vcpupin": "vcpu-pins",
    "cputune/emulatorpin": "emulator-pin",
    "cputune/iothreadpin": "iothread-pins",
    "numatune": "memory-bound",
    "numatune/memory": "memory-bound",
    "numatune/memnode": "memory-near-vcpus",
    "os": "machine-type",
    "os/type": "machine-type",
    "os/firmware": "secure-boot",
    "os/firmware/feature": "secure-boot",
    "features": "acpi",
    "features/acpi": "acpi",
    "features/kvm": "kvm-hints",
    "features/kvm/hint-dedicated": "kvm-hints",
    "features/kvm/poll-control": "kvm-hints",
    "features/ioapic": "iommu-eim",
    "cpu": "cpu-model",
    "cpu/topology": "topology-missing",
    "cpu/cache": "cpu-cache",
    "cpu/maxphysaddr": "iommu-width",
    "cpu/feature": "cpu-topoext",
    "cpu/numa": "flat-topology",
    "cpu/numa/cell": "memory-sum",
    "cpu/numa/cell/distances": "cell-distances",
    "clock": "pit-policy",
    "clock/timer[pit]": "pit-policy",
    "pm": "guest-sleep",
    "pm/suspend-to-mem": "guest-sleep",
    "pm/suspend-to-disk": "guest-sleep",
    "devices": "guest-agent",
    "devices/disk[disk]/driver": "disk-cache",
    "devices/controller[pcie-root]/pcihole64": "pci-hole64",
    "devices/controller[pcie-root]": "pci-hole64",
    "devices/controller[pcie-expander-bus]": "device-place",
    "devices/controller[pcie-expander-bus]/target": "expander-node",
    "devices/controller[pcie-expander-bus]/target/node": "expander-node",
    "devices/controller[pcie-root-port]": "device-place",
    "devices/controller[pcie-root-port]/target": "port-hotplug",
    "devices/controller[pcie-root-port]/address": "device-place",
    "devices/controller[pcie-switch-upstream-port]": "device-place",
    "devices/controller[pcie-switch-upstream-port]/address": "device-place",
    "devices/controller[pcie-switch-downstream-port]": "device-place",
    "devices/controller[pcie-switch-downstream-port]/target": "port-hotplug",
    "devices/controller[pcie-switch-downstream-port]/address": "device-place",
    "devices/interface/model": "nic-model",
    "devices/interface/driver": "nic-queues",
    "devices/channel": "guest-agent",
    "devices/channel/target": "guest-agent",
    "devices/hostdev[pci]/rom": "rom-bar",
    "devices/hostdev[pci]/address": "device-place",
    "devices/memballoon": "memory-balloon",
    "devices/rng": "random-numbers",
    "devices/rng/backend": "random-numbers",
    "devices/iommu": "iommu-eim",
    "devices/iommu/driver": "iommu-eim",
    "qemu:commandline": "iommu-dma",
    "qemu:commandline/qemu:arg": "iommu-dma",
}
# What is written and is no tuning: libvirt refuses the XML without it, or does the same without it.
_REQUIRED = "libvirt refuses the XML, or makes the value up: nothing runs slower"
_DEFAULT = "libvirt's default is the same"
_CLIQUE = "what lacks a clique is worth knowing, and no fault: gpu-cliques says it as info (test_cliques.py)"
_OWN = "it is the guest's own, and says nothing of the host"
UNTUNED = {
    "memoryBacking/allocation": "libvirt allocates huge pages at the start without it",
    "name": _REQUIRED,
    "uuid": _REQUIRED,
    "memory": "libvirt takes the sum of the cells",
    "currentMemory": _DEFAULT,
    "cpu/numa/cell/distances/sibling": "libvirt takes the value of the other direction",
    "features/apic": "QEMU's x86 machines have APICs in any case",
    "clock/timer[rtc]": "KVM guests keep the time by kvm-clock or the TSC",
    "clock/timer[hpet]": "KVM guests keep the time by kvm-clock or the TSC",
    "on_poweroff": _DEFAULT,
    "on_reboot": _DEFAULT,
    "on_crash": _DEFAULT,
    "features/vmcoreinfo": _OWN,
    "devices/panic": _OWN,
    "devices/tpm": _OWN,
    "devices/tpm/backend": _OWN,
    "devices/watchdog": _OWN,
    "devices/interface/mac": _OWN,
    "devices/interface/vlan": _OWN,
    "devices/interface/vlan/tag": _OWN,
    "devices/interface/source/address": _REQUIRED,
    "devices/interface/address": "libvirt gives it a root port of its own",
    "devices/interface/rom": "a virtual function has no ROM of its own (SR-IOV 1.1, 3.4.1.11)",
    "os/kernel": _OWN,
    "os/initrd": _OWN,
    "os/cmdline": _OWN,
    "devices/disk[disk]": _OWN,
    "devices/disk[disk]/source": _REQUIRED,
    "devices/disk[disk]/target": _REQUIRED,
    "devices/disk[disk]/boot": "libvirt boots from the first disk",
    "devices/controller[none]": "libvirt adds a USB controller, which costs a slot",
    "devices/controller[pcie-expander-bus]/address": "its slot on pcie.0 means nothing",
    "devices/controller[spare pcie-root-port]": "libvirt adds a port for each device that needs one",
    "devices/controller[spare pcie-root-port]/address": "libvirt adds a port for each device that needs one",
    "devices/controller[spare pcie-root-port]/target": "libvirt numbers it",
    "devices/interface": _OWN,
    "devices/interface/source": _REQUIRED,
    "devices/serial": _OWN,
    "devices/serial/target": _OWN,
    "devices/console": _OWN,
    "devices/console/target": _OWN,
    "devices/hostdev[pci]": _OWN,
    "devices/hostdev[pci]/source": _REQUIRED,
    "devices/hostdev[pci]/source/address": _REQUIRED,
    "devices/hostdev[pci]/driver": _DEFAULT,
    "devices/hostdev[pci]/alias": _CLIQUE,
    "qemu:override": _CLIQUE,
    "qemu:override/qemu:device": _CLIQUE,
    "qemu:override/qemu:device/qemu:frontend": _CLIQUE,
    "qemu:override/qemu:device/qemu:frontend/qemu:property": _CLIQUE,
    "devices/hostdev[mdev]": _OWN,
    "devices/hostdev[mdev]/source": _REQUIRED,
    "devices/hostdev[mdev]/source/address": _REQUIRED,
    "devices/hostdev[mdev]/address": "libvirt gives it a root port of its own",
    "devices/disk[cdrom]": _OWN,
    "devices/disk[cdrom]/driver": _DEFAULT,
    "devices/disk[cdrom]/source": _REQUIRED,
    "devices/disk[cdrom]/target": _REQUIRED,
    "devices/disk[cdrom]/readonly": _DEFAULT,
}
# The cases that have each element where it matters, the one with most first. Each stands for itself: a guest of one
# cell has memnodes and a node of its expander, too, but they say what is so without them.
RICH = ("everything", "disk", "many-vcpus", "amd", "boot", "limited")
ONLY_IN = {
    "cpu/feature": "amd",
    "clock": "amd",
    "clock/timer[pit]": "amd",
    "cpu/maxphysaddr": "limited",
    "qemu:commandline": "many-vcpus",
    "qemu:commandline/qemu:arg": "many-vcpus",
}
# Of the distances of one cell alone libvirt takes the other direction's values; an option without its value is another
# argument.
AT_ONCE = ("cpu/numa/cell/distances", "qemu:commandline/qemu:arg")


def case(hosts: Callable[[str], Host], name: str) -> tuple[Host, str]:
    """A host and the planner's XML for it. Some facts are added that captures lack: AVIC on, a narrow IOMMU."""
    source = "one-gpu" if name == "limited" else name
    host = hosts(CASES[source].host)
    if name == "amd":
        host = changed(host, platform=Platform(modules=(Module(name="kvm_amd", parameters={"avic": "Y"}),)))
    if name == "limited":
        host = changed(host, iommu=changed(host.iommu or Iommu(), address_bits=45))
    return host, domain_xml(planned(host, source), source)


def path_of(element: etree._Element, used: set[str]) -> str:
    """The path of an element below `<domain>`, with what tells controllers, disks, devices and timers apart."""
    words = []
    at: etree._Element | None = element
    while at is not None and at.getparent() is not None:
        tag = str(at.tag).replace(QEMU, "qemu:")
        key = {"timer": "name", "disk": "device", "controller": "model"}.get(tag)
        word = at.get(key) if key else at.get("type") if tag == "hostdev" else None
        if word == "pcie-root-port" and at.get("index") not in used:
            word = f"spare {word}"
        words.append(f"{tag}[{word}]" if word else tag)
        at = at.getparent()
    return "/".join(reversed(words))


def used_ports(root: etree._Element) -> set[str]:
    """The indexes of the controllers above passed devices."""
    above = {
        c.get("index"): address
        for c in root.iterfind("devices/controller")
        if (address := c.find("address")) is not None
    }
    used: set[str] = set()
    for address in root.iterfind("devices/hostdev/address"):
        at: etree._Element | None = address
        while at is not None and (index := str(int(at.get("bus", "0"), 16))) not in used:
            used.add(index)
            at = above.get(index)
    return used


def groups(root: etree._Element, path: str) -> Iterator[list[etree._Element]]:
    """What is taken out together: each element alone, or all of a kind at once."""
    used = used_ports(root)
    found = [e for e in root.iter() if isinstance(e.tag, str) and path_of(e, used) == path]
    yield from [found] if path in AT_ONCE else [[one] for one in found]


def without(root: etree._Element, gone: list[etree._Element]) -> bytes:
    """The XML without some elements."""
    places = [(parent, parent.index(one), one) for one in gone if (parent := one.getparent()) is not None]
    for parent, _, one in places:
        parent.remove(one)
    text = etree.tostring(root)
    for parent, n, one in reversed(places):
        parent.insert(n, one)
    return text


def bad(found: tuple[LintFinding, ...]) -> set[tuple[str, str]]:
    advisory = {rule.id for rule in rules() if rule.outcome in ADVISORY}
    return {(one.rule, one.text) for one in found if one.level != "info" or (one.rule in advisory and one.judged)}


@pytest.mark.parametrize("name", RICH)
def test_each_tuning_element_that_is_taken_out_is_missed(hosts: Callable[[str], Host], name: str) -> None:
    host, xml = case(hosts, name)
    root = etree.fromstring(xml.encode())
    before = bad(criticise(host, xml, where=name))
    assert before == set()
    for path in sorted(_paths(hosts, name)):
        first = ONLY_IN.get(path) or next((rich for rich in RICH if path in _paths(hosts, rich)), name)
        if path in UNTUNED or first != name:
            continue
        for gone in groups(root, path):
            found = criticise(host, without(root, gone), where=name)
            assert MISSED[path] in {rule for rule, _ in bad(found)}, (path, etree.tostring(gone[0]))


# Attributes that the template writes for the same end.
ATTRIBUTES = {
    ("os/type", "machine"): "machine-type",
    ("os/firmware/feature", "enabled"): "secure-boot",
    ("cpu", "mode"): "cpu-model",
    ("cpu", "migratable"): "cpu-model",
    ("cpu/topology", "threads"): "flat-threads",
    ("cpu/cache", "mode"): "cpu-cache",
    ("cpu/numa/cell", "cpus"): "cell-vcpus",
    ("cputune/vcpupin", "cpuset"): "vcpu-pins",
    ("cputune/emulatorpin", "cpuset"): "emulator-pin",
    ("cputune/iothreadpin", "cpuset"): "iothread-pins",
    ("numatune/memnode", "nodeset"): "memory-near-vcpus",
    ("memoryBacking/hugepages/page", "size"): "page-size",
    ("devices/controller[pcie-root-port]/target", "hotplug"): "port-hotplug",
    ("devices/hostdev[pci]/rom", "bar"): "rom-bar",
    ("devices/hostdev[pci]/address", "bus"): "root-port",
    ("devices/memballoon", "model"): "memory-balloon",
    ("pm/suspend-to-mem", "enabled"): "guest-sleep",
    ("clock/timer[pit]", "tickpolicy"): "pit-policy",
}


@pytest.mark.parametrize(("path", "name"), ATTRIBUTES)
def test_a_tuning_attribute_that_is_taken_out_is_missed(hosts: Callable[[str], Host], path: str, name: str) -> None:
    host, xml = case(hosts, ONLY_IN.get(path, "eight-gpus"))
    root = etree.fromstring(xml.encode())
    used = used_ports(root)
    element = next(e for e in root.iter() if isinstance(e.tag, str) and path_of(e, used) == path)
    assert element.attrib.pop(name) is not None
    found = criticise(host, etree.tostring(root), where="vm.xml")
    assert ATTRIBUTES[path, name] in {rule for rule, _ in bad(found)}


def test_gpus_of_both_nodes_that_are_joined_by_hand(hosts: Callable[[str], Host]) -> None:
    """They are on no partition of the fabric, and the guest does not see that they are on two nodes."""
    _, xml = case(hosts, "one-gpu")
    second = "<hostdev mode='subsystem' type='pci'><source><address bus='0xda' slot='0x00'/></source></hostdev>"
    found = criticise(hosts("example"), edited(xml, "devices", second), where="vm.xml")
    texts = {one.rule: one for one in found if one.level != "info"}
    assert texts["fabric-partition"].level == "error"
    assert "are not a partition of this host's NVSwitch fabric" in texts["fabric-partition"].text
    assert texts["flat-topology"].text.startswith("flat topology: the GPUs are on nodes 0-1")


_KNOWN: dict[str, frozenset[str]] = {}


def _paths(hosts: Callable[[str], Host], name: str) -> frozenset[str]:
    if name not in _KNOWN:
        _KNOWN[name] = paths_of(case(hosts, name)[1])
    return _KNOWN[name]


def paths_of(xml: str) -> frozenset[str]:
    """The paths of all elements below `<domain>`."""
    root = etree.fromstring(xml.encode())
    used = used_ports(root)
    return frozenset(path_of(e, used) for e in root.iter() if isinstance(e.tag, str) and e is not root)


def test_the_two_tables_are_what_the_template_can_write(hosts: Callable[[str], Host]) -> None:
    """From all cases of the planner, and the shapes with a seed and a mediated device that no case has."""
    written: set[str] = set()
    for name in CASES:
        written |= _paths(hosts, name)
    # libvirt takes no TPM where swtpm is not installed: no shape has one
    for guest in (*SHAPES.values(), changed(SHAPES["one-gpu"], tpm=True)):
        written |= paths_of(domain_xml(plan_of(guest), guest.name))
    assert written == MISSED.keys() | UNTUNED.keys()
    assert not MISSED.keys() & UNTUNED.keys()


def test_the_tables_have_every_element_that_the_template_names() -> None:
    """Also one behind a condition that no case and no shape meets."""
    text = shipped_text("templates", "domain.xml.j2")
    named = set(re.findall(r"<([A-Za-z][A-Za-z0-9:_-]*)", re.sub(r"\{#.*?#\}", "", text, flags=re.DOTALL))) - {"domain"}
    assert len(named) > 60
    assert named - {path.rpartition("/")[2].partition("[")[0] for path in MISSED | UNTUNED} == set()


# --- what the planner writes is clean ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_what_only_the_host_lacks_is_a_note(hosts: Callable[[str], Host], name: str) -> None:
    """Pages, mounts and drivers are missing on most of these hosts; the other notes are rules that cannot judge."""
    host, xml = case(hosts, name)
    notes = [one for one in criticise(host, xml, where=name) if one.level == "info" and one.judged]
    assert {one.rule for one in notes} <= {"pages-reserved", "hugetlbfs-mount", "host-driver", "iommu-group"}
