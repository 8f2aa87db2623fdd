"""The linter: unknown is never a pass, guests are compared with each other, and the manual has its rules."""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from domain_faults import criticise, findings, host_of
from domain_shapes import ONE_GPU, changed, plan_of
from system.test_plan_xml import hosts
from xmledits import Edit, with_edits

from hosttune.domain.writer import domain_xml
from hosttune.errors import BadInput
from hosttune.model.host import (
    CpuModel,
    DomainCapabilities,
    Host,
    MemorySettings,
    Module,
    Platform,
    RunningGuest,
    VcpuPin,
    Virtualization,
)
from hosttune.model.lint import LintFinding
from hosttune.model.vgpu import Vgpu
from hosttune.rules.lint import LEVEL, LintedDefinition, lint, rules

__all__ = ["hosts"]

# --- unknown is no pass ------------------------------------------------------------------------------------------

FACTS = {
    "cpus": (),
    "numa_nodes": (),
    "pci": (),
    "guests": None,
    "cpu_model": None,
    "memory_settings": None,
    "virtualization": None,
    "platform": None,
    "vgpu": None,
    "iommu": None,
}


def spoilt(xml: str) -> str:
    """A guest with a fault of most rules that need the host."""
    return with_edits(
        xml,
        ("cputune/vcpupin[@vcpu='0']", {"cpuset": "0"}),
        ("cputune/vcpupin[@vcpu='3']", {"cpuset": "401"}),
        ("cputune/vcpupin[@vcpu='5']", {"cpuset": "40"}),
        ("cputune/emulatorpin", {"cpuset": "512"}),
        ("numatune/memory", {"nodeset": "1"}),
        ("numatune/memnode", {"nodeset": "1"}),
        ("memoryBacking/hugepages/page", {"size": "4194304"}),
        ("devices/hostdev/rom", None),
        ("devices/hostdev/address", {"bus": "0x00", "slot": "0x05"}),
        ("os/firmware", None),
    )


@pytest.mark.parametrize("fact", FACTS)
def test_a_fact_that_is_lost_makes_no_finding_go_away(fact: str) -> None:
    pin = VcpuPin(vcpu=0, cpus="4")
    other = RunningGuest(name="other", state="running", vcpu_pins=(pin,), devices=("0000:41:00.0",))
    host = host_of(
        guests=(other,),
        cpu_model=CpuModel(vendor="AuthenticAMD", physical_address_bits=39),
        platform=Platform(modules=(Module(name="kvm_amd", parameters={"avic": "Y"}),)),
        virtualization=Virtualization(kvm=False, capabilities=DomainCapabilities(max_vcpus=8, firmwares=("bios",))),
        memory_settings=MemorySettings(hugetlbfs=()),
        vgpu=Vgpu(),
    )
    xml = spoilt(domain_xml(plan_of(ONE_GPU), "one-gpu"))
    whole = criticise(host, xml, where="vm.xml")
    left = criticise(changed(host, **{fact: FACTS[fact]}), xml, where="vm.xml")
    gone = {one.rule for one in whole if one.judged} - {one.rule for one in left}
    assert len({one.rule for one in whole if one.judged}) >= 17
    assert gone == set()
    assert all(one.level == "info" and one.text.startswith("cannot be judged: ") for one in left if not one.judged)


def test_of_an_unknown_host_no_rule_that_needs_it_is_silent() -> None:
    found = findings(ONE_GPU, host=Host())
    assert [one for one in found if one.judged] == []
    silent = {rule.id for rule in rules() if rule.needs} - {one.rule for one in found}
    assert silent == {"mdev-missing", "cell-distances", "device-cell", "flat-threads", "gpu-cliques", "high-memory",
                      "confidential-devices", "confidential-type", "qemu-set"}  # fmt: skip


# --- several guests ----------------------------------------------------------------------------------------------


def pair(*edits: tuple[str, Edit]) -> tuple[LintFinding, ...]:
    """Two guests in one call; the second is the first with another name, and edits."""
    first = domain_xml(plan_of(ONE_GPU), "one-gpu")
    second = with_edits(first, ("name", "second"), *edits)
    found = lint(host_of(guests=()), (LintedDefinition("a.xml", first), LintedDefinition("b.xml", second)))
    return tuple(one for one in found if one.rule in ("cpus-shared", "device-shared"))


def test_guests_that_are_judged_together_share_nothing() -> None:
    found = pair()
    assert Counter((one.file, one.rule, one.level) for one in found) == {
        (file, rule, "warn"): count
        for file in ("a.xml", "b.xml")
        for rule, count in (("cpus-shared", 1), ("device-shared", 1))
    }
    assert any("vCPUs on CPUs 2-17, where guest second has its vCPUs" in one.text for one in found)


def test_the_same_guest_twice_is_one_guest() -> None:
    assert pair(("name", "one-gpu")) == ()


@pytest.mark.parametrize("state", ["running", "shut off"])
def test_what_a_guest_has_whose_definition_could_not_be_read_cannot_be_judged(state: str) -> None:
    xml = domain_xml(plan_of(ONE_GPU), "one-gpu")
    found = criticise(host_of(guests=(RunningGuest(name="old", state=state),)), xml, where="a")
    shared = [one for one in found if one.rule in ("cpus-shared", "device-shared") and not one.judged]
    assert [(one.rule, one.level, one.text) for one in shared] == [
        (rule, "info", f"cannot be judged: the {what} of guest old are unknown: its definition cannot be read")
        for rule, what in (("device-shared", "devices"), ("cpus-shared", "CPUs"))
    ]


def test_a_definition_that_is_given_replaces_the_hosts() -> None:
    """The host still has the guest's old pins; what counts is the XML beside it."""
    old = RunningGuest(name="second", state="shut off", vcpu_pins=(VcpuPin(vcpu=0, cpus="2"),))
    xml = domain_xml(plan_of(ONE_GPU), "one-gpu")
    second = "<domain type='kvm'><name>second</name><vcpu>1</vcpu></domain>"
    host = host_of(guests=(old,))
    assert [one.rule for one in criticise(host, xml, where="a") if one.rule == "cpus-shared"] == ["cpus-shared"]
    both = lint(host, (LintedDefinition("a", xml), LintedDefinition("b", second)))
    assert [one.rule for one in both if one.rule == "cpus-shared"] == []


# --- what is no guest of KVM ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["xen", "lxc", "bhyve", "test", "hvf"])
def test_another_hypervisors_guest_is_refused(kind: str) -> None:
    with pytest.raises(BadInput, match=f"a domain of type '{kind}', which hosttune does not judge") as refused:
        criticise(host_of(), f"<domain type='{kind}'><name>a</name></domain>", where="a.xml")
    assert refused.value.where == "a.xml"


# --- lines and declarations --------------------------------------------------------------------------------------


def test_a_finding_has_the_line_of_its_element() -> None:
    found = findings(
        ONE_GPU, ("devices/hostdev/source/address", {"bus": "0x99"}), ("devices/memballoon", {"model": None})
    )
    lines = domain_xml(plan_of(ONE_GPU), "one-gpu").splitlines()
    at = {one.rule: lines[one.line - 1].strip() for one in found}
    assert at["device-missing"].startswith("<hostdev ")
    assert at["memory-balloon"] == "<memballoon model='none'/>"
    found = findings(ONE_GPU, ("devices/rng", None))
    absent = next(one for one in found if one.rule == "random-numbers")
    assert lines[absent.line - 1].strip() == "<devices>"


def test_a_rule_is_whole() -> None:
    every = rules()
    assert len({rule.id for rule in every}) == len(every)
    for rule in every:
        assert rule.outcome in LEVEL
        assert all((rule.title, rule.why, rule.source, rule.remedy, rule.judge.__doc__)), rule.id
        assert rule.about == "/domain" or rule.about.startswith("/domain/")
        assert not any(text.endswith(".") for text in (rule.title, rule.why, rule.source, rule.remedy)), rule.id


# --- the manual --------------------------------------------------------------------------------------------------

MANUAL = Path(__file__).parents[2] / "cases/lint/FINDINGS.md"
LIBVIRT = Path(__file__).parents[2] / "cases/domain/qemuxmlconfdata.tar.xz"


def compare(request: pytest.FixtureRequest, head: str, made: list[str]) -> None:
    """A table of the manual; `pytest --regenerate` writes it."""
    text = MANUAL.read_text(encoding="utf-8")
    before, found, rest = text.partition(head)
    assert found, f"{MANUAL} has no table {head!r}"
    table, _, after = rest.partition("\n\n")
    rows = "\n".join(made)
    if request.config.getoption("--regenerate"):
        MANUAL.write_text(f"{before}{head}{rows}\n\n{after.lstrip()}", encoding="utf-8")
    else:
        assert table == rows


def test_libvirts_cases_have_as_many_findings_as_the_manual_says(
    request: pytest.FixtureRequest, hosts: Callable[[str], Host]
) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    files: dict[tuple[str, str], set[str]] = {}
    with tarfile.open(LIBVIRT) as tar:
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None
            for one in criticise(hosts("example"), file.read(), where=member.name):
                key = one.rule, one.level if one.judged else "not judged"
                counts[key] += 1
                files.setdefault(key, set()).add(member.name)
    order = {rule.id: n for n, rule in enumerate(rules())}
    keys = sorted(counts, key=lambda key: (order[key[0]], key[1]))
    made = [f"| `{rule}` | {level} | {counts[rule, level]} | {len(files[rule, level])} |" for rule, level in keys]
    compare(request, "| rule | level | findings | files |\n|---|---|---|---|\n", made)
