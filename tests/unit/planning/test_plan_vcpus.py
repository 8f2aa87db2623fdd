"""More than 255 vCPUs, APIC ids, and the IOMMU device that they need."""

from __future__ import annotations

from typing import Any

import pytest
from planhosts import Card, build_host, intent_of

from hosttune.domain.writer import domain_xml
from hosttune.inventory.vcpus import last_apic_id, needs_iommu
from hosttune.model.host import Host, Module, Platform
from hosttune.model.intent import Intent
from hosttune.model.plan import Plan, Topology
from hosttune.model.values import to_json
from hosttune.planning import plan

GPU = Card("0000:41:00.0", 0, group=1)


def planned(libvirt: str | None, qemu: str | None, max_vcpus: int | None = None, **intent: Any) -> Plan:
    """A host of one node with 191 cores of two threads, one of them the host's: 380 CPUs are free."""
    host = build_host(nodes=1, cores_per_node=191, llc_cores=191, cards=[GPU])
    stack: dict[str, Any] = {"kvm": True, "libvirt_version": libvirt, "qemu_version": qemu}
    if max_vcpus is not None:
        stack["capabilities"] = {"max_vcpus": max_vcpus}
    host["virtualization"] = stack
    host["platform"] = {"modules": [{"name": "kvm_amd", "parameters": intent.pop("modules", {})}]}
    document = intent_of(**{"gpus": 1, "memory": "4GiB", **intent})
    return plan(Host.from_json(to_json(host)), Intent.from_json(to_json(document)))


def said(made: Plan) -> str:
    return "\n".join(f"{f.level}: {f.text}" for f in made.findings)


@pytest.mark.parametrize(
    ("libvirt", "qemu", "machine", "vcpus"),
    [
        ("10.7.0", "9.1.0", None, 380),
        ("9.0.0", "8.2.2", None, 380),  # by an argument to QEMU
        ("9.0.0", "7.2.0", None, 288),  # the machine's own end
        ("9.0.0", "7.2.0", 300, 300),
        ("11.3.0", "10.0.0", 4096, 380),
        ("8.0.0", "6.2.0", None, 254),  # QEMU cannot leave DMA alone: whole cores below 255
        (None, None, None, 254),
        ("11.3.0", None, None, 254),
    ],
)
def test_auto_takes_the_cpus_that_are_there_where_that_is_known_to_work(
    libvirt: str | None, qemu: str | None, machine: int | None, vcpus: int
) -> None:
    made = planned(libvirt, qemu, machine)
    assert len(made.guests[0].vcpu_pins) == vcpus
    assert ("auto stops at" in said(made)) == (vcpus < 380)


@pytest.mark.parametrize(
    ("libvirt", "qemu", "attribute", "argument"),
    [("10.7.0", "9.1.0", True, False), ("9.0.0", "8.2.2", False, True), ("8.0.0", "6.2.0", False, False)],
)
def test_the_iommu_device_leaves_dma_alone(libvirt: str, qemu: str, attribute: bool, argument: bool) -> None:
    made = planned(libvirt, qemu, vcpus=300)
    xml = domain_xml(made, "g")
    assert "intremap='on'" in xml
    assert "eim='on'" in xml
    assert ("dma_translation='off'" in xml) == attribute
    assert ("<qemu:arg value='intel-iommu.dma-translation=off'/>" in xml) == argument
    assert ("warn: 300 vCPUs" in said(made)) == (not attribute and not argument)


def test_no_iommu_device_where_none_is_needed() -> None:
    made = planned("10.7.0", "9.1.0", vcpus=200)
    assert "<iommu" not in domain_xml(made, "g")
    assert "dma-translation" not in said(made)


@pytest.mark.parametrize(
    ("topology", "last"),
    [
        ((1, 1, 127, 2), 253),
        ((2, 1, 63, 2), 253),
        ((3, 1, 40, 2), 335),  # 240 vCPUs: 64 places for 40 cores
        ((1, 1, 255, 1), 254),
        ((1, 1, 1, 1), 0),
        ((8, 1, 15, 2), 253),
    ],
)
def test_apic_ids_have_places_of_powers_of_two(topology: tuple[int, int, int, int], last: int) -> None:
    sockets, dies, cores, threads = topology
    found = Topology(sockets=sockets, dies=dies, cores=cores, threads=threads)
    assert last_apic_id(found) == last
    assert needs_iommu(sockets * dies * cores * threads, found) == (last > 254)


@pytest.mark.parametrize(("avic", "warned"), [("Y", True), ("1", True), ("N", False), (None, False)])
def test_avic_that_ends_before_the_last_vcpu_is_said(avic: str | None, warned: bool) -> None:
    made = planned("10.7.0", "9.1.0", vcpus=300, modules={} if avic is None else {"avic": avic})
    assert ("kvm_amd.avic is on" in said(made)) == warned


@pytest.mark.parametrize(
    ("vendor", "accelerator", "policy"),
    [
        ("AuthenticAMD", "kvm", "discard"),
        ("HygonGenuine", "kvm", "discard"),
        ("GenuineIntel", "kvm", "delay"),
        (None, "kvm", "delay"),
        ("AuthenticAMD", "tcg", "delay"),
    ],
)
def test_the_pit_lets_avic_be_on(vendor: str | None, accelerator: str, policy: str) -> None:
    host = build_host(cards=[GPU])
    host["cpu_model"] = {"vendor": vendor}
    document = intent_of(gpus=1, vcpus=4, memory="4GiB", accelerator=accelerator)
    made = plan(Host.from_json(to_json(host)), Intent.from_json(to_json(document)))
    assert f"<timer name='pit' tickpolicy='{policy}'/>" in domain_xml(made, "g")


@pytest.mark.parametrize(("vcpus", "queues"), [(1, None), (4, 4), (8, 8), (14, 8)])
def test_a_network_has_a_queue_for_each_vcpu_up_to_eight(vcpus: int, queues: int | None) -> None:
    host = build_host()
    document = intent_of(vcpus=vcpus, memory="4GiB", networks=[{"bridge": "br0"}])
    made = plan(Host.from_json(to_json(host)), Intent.from_json(to_json(document)))
    xml = domain_xml(made, "g")
    assert (f"queues='{queues}'" in xml) if queues else ("queues" not in xml)
    assert "org.qemu.guest_agent.0" in xml
    assert "/dev/urandom" in xml


@pytest.mark.parametrize(
    ("avic", "policy", "found"), [("Y", "delay", True), ("Y", "discard", False), ("N", "delay", False)]
)
def test_xml_that_switches_avic_off_is_criticised(avic: str, policy: str, found: bool) -> None:
    from domain_faults import faults, host_of
    from domain_shapes import ONE_GPU

    host = host_of(platform=Platform(modules=(Module(name="kvm_amd", parameters={"avic": avic}),)))
    edits = [("clock/timer[@name='pit']", {"tickpolicy": policy})] if policy != "delay" else []
    told = [fault for fault in faults(ONE_GPU, *edits, host=host) if "AVIC" in fault.text]
    assert [fault.level for fault in told] == (["info"] if found else [])
