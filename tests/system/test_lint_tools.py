"""The linter on definitions by other tools: what it finds, that libvirt accepts them, and what it must not find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from domain_faults import criticise, host_of
from libvirtd import Libvirtd, libvirtd
from lxml import etree
from system.test_plan_xml import SCHEMA, hosts
from unit.rules.test_linting import compare
from xmledits import edited

from hosttune.model.host import Host
from hosttune.rules.lint import rules

__all__ = ["hosts", "libvirtd"]

CASES = sorted((Path(__file__).parents[1] / "cases" / "lint").glob("*.xml"))
GPU = {"emulator-pin", "vcpu-pins"}
LOOSE = {*GPU, "huge-pages", "memory-bound"}  # besides, where nobody tuned anything
EXPECTED = {
    "terraform-plain": set(),
    "virt-install-plain": set(),
    "terraform-gpu": LOOSE,
    "virt-install-gpu": {*GPU, "memory-bound", "page-size"},
    "virt-install-tuned": {*GPU, "sibling-pins"},
    "virt-install-two": {*LOOSE, "fabric-partition"},
    "virt-install-win": LOOSE,
    "virt-install-win11": LOOSE,
    "nova-gpu": {*LOOSE, "cpu-model"},
    "nova-cells": {"memory-nodes"},
    "nova-realtime": {"memory-locking", "memory-nodes"},
    "by-hand": {*LOOSE, "gpu-vcpus", "sibling-pins"},
}


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_what_is_wrong_with_the_definitions_of_other_tools(path: Path, hosts: Callable[[str], Host]) -> None:
    found = criticise(hosts("example"), path.read_bytes(), where=path.name)
    assert {one.rule for one in found if one.level != "info"} == EXPECTED[path.stem]


def test_secure_boot_is_wrong_only_where_drivers_are_built(hosts: Callable[[str], Host]) -> None:
    xml = next(path for path in CASES if path.stem == "virt-install-win11").read_text()
    ubuntu = edited(
        xml, ".//{http://libosinfo.org/xmlns/libvirt/domain/1.0}os", {"id": "http://ubuntu.com/ubuntu/22.04"}
    )
    for text, found in ((xml, False), (ubuntu, True)):
        rule_ids = {one.rule for one in criticise(hosts("example"), text, where="a.xml")}
        assert ("secure-boot" in rule_ids) is found


def test_libvirts_schema_accepts_them() -> None:
    if not SCHEMA.exists():
        pytest.skip("libvirt's schemas are not installed")
    schema = etree.RelaxNG(etree.parse(SCHEMA))
    for path in CASES:
        schema.assertValid(etree.parse(path))


@pytest.mark.parametrize("name", ["virt-install-plain", "terraform-plain"])
def test_those_that_need_nothing_start(name: str, libvirtd: Libvirtd) -> None:
    path = next(path for path in CASES if path.stem == name)
    libvirtd.virsh("create", libvirtd.file(path.name, path.read_text()))
    try:
        assert libvirtd.virsh("domstate", name).strip() == "running"
    finally:
        libvirtd.virsh("destroy", name)


def test_the_manual_has_their_findings(request: pytest.FixtureRequest, hosts: Callable[[str], Host]) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    files: dict[tuple[str, str], list[str]] = {}
    for path in CASES:
        for one in criticise(hosts("example"), path.read_bytes(), where=path.name):
            key = one.rule, one.level if one.judged else "not judged"
            counts[key] += 1
            files.setdefault(key, []).append(path.stem)
    order = {rule.id: n for n, rule in enumerate(rules())}
    keys = sorted(counts, key=lambda key: (order[key[0]], key[1]))
    names = {key: ", ".join(dict.fromkeys(files[key])) for key in keys}
    made = [f"| `{rule}` | {level} | {counts[rule, level]} | {names[rule, level]} |" for rule, level in keys]
    compare(request, "| rule | level | findings | definitions |\n|---|---|---|---|\n", made)


@pytest.mark.parametrize(
    ("vcpus", "loose"),
    [
        ("<vcpu current='2'>4</vcpu>", None),
        ("<vcpu>4</vcpu>", "vCPUs 2-3 have no vcpupin"),
        ("<vcpu current='3'>4</vcpu>", "vCPUs 2 have no vcpupin"),
        ("<vcpu current='2'>4</vcpu><vcpus><vcpu id='0' enabled='yes'/><vcpu id='1' enabled='no'/>"
         "<vcpu id='2' enabled='yes'/><vcpu id='3' enabled='no'/></vcpus>", "vCPUs 2 have no vcpupin"),
    ],
)  # fmt: skip
def test_vcpus_that_are_off_need_no_pin(vcpus: str, loose: str | None) -> None:
    pins = "".join(f"<vcpupin vcpu='{n}' cpuset='{n + 2}'/>" for n in range(2))
    xml = f"<domain type='kvm'><name>a</name><memory>1048576</memory>{vcpus}<cputune>{pins}</cputune></domain>"
    texts = [one.text for one in criticise(host_of(), xml, where="a.xml") if one.rule == "vcpu-pins"]
    assert texts == ([] if loose is None else [f"{loose}: they may run on all CPUs of the host"])


@pytest.mark.parametrize(("kind", "image", "found"), [("volume", "qcow2", True), ("volume", "raw", False),
                                                      ("network", "raw", False), ("file", "raw", True)])  # fmt: skip
def test_a_volume_with_an_image_is_a_file(kind: str, image: str, found: bool) -> None:
    xml = (Path(__file__).parents[1] / "cases" / "lint" / "terraform-gpu.xml").read_text()
    xml = edited(xml, "devices/disk[@type='volume'][@device='disk']", {"type": kind}, each=True)
    xml = edited(xml, f"devices/disk[@type='{kind}'][@device='disk']/driver", {"type": image}, each=True)
    rule_ids = {one.rule for one in criticise(host_of(), xml, where="a.xml")}
    assert ("disk-cache" in rule_ids) is found
