"""What the installed libvirt and QEMU do not offer, told before a guest is defined."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from examplehosts import discovered

import hosttune
from hosttune.model.host import DomainCapabilities, Host, Virtualization


@pytest.fixture(scope="module")
def example() -> Host:
    return discovered()


def said(host: Host, **guest: Any) -> list[tuple[str, str]]:
    """(level, text) of the findings that rest on the domain capabilities."""
    asked = {"name": "g", "gpus": ["0000:41:00.0"], "vcpus": 8, "memory": "8GiB", **guest}
    intent = hosttune.Intent.from_json(msgspec.json.encode({"version": 1, "guests": [asked]}))
    plan = hosttune.plan(host, intent)
    assert plan.unplaced == ()
    return [(f.level, f.text) for f in plan.findings if f.where == "virsh domcapabilities"]


def offering(host: Host, **capabilities: Any) -> Host:
    """The host with other domain capabilities (None: none)."""
    given = DomainCapabilities(**capabilities) if capabilities else None
    stack = Virtualization(kvm=True, libvirt_version="10.0.0", qemu_version="8.2.2", capabilities=given)
    return msgspec.structs.replace(host, virtualization=stack)


def test_a_stack_that_offers_all_says_nothing(example: Host) -> None:
    assert said(example) == []


def test_no_uefi_firmware(example: Host) -> None:
    bios_only = offering(example, firmwares=("bios",))
    assert said(bios_only) == [
        ("error", "guest g: libvirt finds no UEFI firmware; install OVMF (edk2), or ask for firmware: bios")
    ]
    assert said(bios_only, firmware="bios") == []


def test_a_cpu_mode_that_is_not_offered(example: Host) -> None:
    custom = offering(example, cpu_modes=("custom", "maximum"))
    text = "guest g: CPU mode host-passthrough is not offered here, only custom, maximum"
    assert said(custom) == [("error", text)]
    assert said(custom, accelerator="tcg") == []


def test_more_vcpus_than_the_machine_takes(example: Host) -> None:
    assert said(offering(example, max_vcpus=4)) == [
        ("error", "guest g: 8 vCPUs, this QEMU's machine takes 4"),
    ]


def test_unknown_capabilities_are_no_promise(example: Host) -> None:
    text = "the domain capabilities are unknown: what this QEMU offers was not checked"
    assert said(offering(example)) == [("info", text)]
    assert said(offering(example, machine="q35")) == []


def elements_of(host: Host) -> tuple[set[str], list[str]]:
    """(optional elements that the plan uses, findings about those left out)."""
    intent = hosttune.Intent.from_yaml("version: 1\nguests: [{name: g, gpus: 1}]")
    plan = hosttune.plan(host, intent)
    return set(plan.guests[0].elements), [f.text for f in plan.findings if f.text.startswith("left out of the XML")]


def test_the_installed_schema_decides_and_not_the_version(example: Host) -> None:
    """A distribution may carry an element back, or leave one out: what `define --validate` accepts is in the schema."""
    stack = example.virtualization
    assert stack is not None
    old = msgspec.structs.replace(stack, libvirt_version="8.0.0", schema_elements=("maxphysaddr", "poll-control"))
    used, left_out = elements_of(msgspec.structs.replace(example, virtualization=old))
    of_versions = {"mac", "discard", "panic", "vmcoreinfo", "firmware"}  # the schema is not asked for these
    assert used == {"maxphysaddr", "poll-control", "dma-translation-argument"} | of_versions  # QEMU's own argument
    assert "left out of the XML: hint-dedicated, which the installed libvirt's schema does not know" in left_out
    assert len(left_out) == 5


def test_the_schema_of_this_machine_s_libvirt_is_read() -> None:
    """The schema that the tests validate with knows what libvirt 9.0 knows, and says so of itself."""
    from hosttune.discovery.guests import read_guests
    from hosttune.machine.live import Machine
    from hosttune.machine.reader import Reader

    _, stack = read_guests(Reader(Machine()))
    assert stack.schema_elements is not None
    known = {"hint-dedicated", "poll-control", "firmware-features", "allocation-threads", "maxphysaddr", "port-hotplug"}
    assert known <= set(stack.schema_elements) <= known | {"maxphysaddr-limit", "dma-translation"}
