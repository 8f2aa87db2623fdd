"""What validation finds on every captured host: counts, and every fail and unknown line, as golden texts.

Read a difference critically: each unknown must be a fact that the capture really lacks, each fail a fault that its
machine really has. A capture that lacks nearly everything says so in many lines.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from hosttune.archive import open_root
from hosttune.checks import judge
from hosttune.discovery.evidence import gather
from hosttune.model.validation import CheckResult, verdict_of

TESTS = Path(__file__).parent
GOLDEN = TESTS / "golden" / "validate"
FOLDERS = ("derived", "ghw", "h200", "hwloc", "lscpu")
ARCHIVES = {
    f"{folder}-{path.name.partition('.tar.')[0]}": path
    for folder in FOLDERS
    for path in sorted((TESTS / "hosts" / folder).glob("*.tar.*"))
} | {"example-hgx-h200-8": TESTS.parent / "examples" / "hgx-h200-8.tar.xz"}
XE9680, AZURE, MI300X, OCI = (
    f"derived-{name}"
    for name in ("xe9680-8xh100-lspci", "azure-ndv4-8xa100-vm", "amd-mi300x-8-vm", "oci-bm-gpu-a100-b4-nps4")
)


@cache
def results(name: str) -> tuple[CheckResult, ...]:
    return tuple(judge(gather(open_root(str(ARCHIVES[name])))))


def told(name: str) -> str:
    """Counts, then what failed and what is unknown, alike together."""
    found = results(name)
    counted = Counter(result.outcome for result in found)
    lines = [f"{verdict_of(found)}: " + ", ".join(f"{n} {word}" for word, n in sorted(counted.items()))]
    for outcome in ("fail", "unknown", "warn"):
        alike: dict[tuple[str, str], list[str]] = {}
        for result in found:
            if result.outcome == outcome:
                said = result.actual or ""
                if ":" in result.subject:  # an address; "host" may be a part of any other word
                    said = said.replace(result.subject, "<subject>")
                alike.setdefault((result.check, said), []).append(result.subject)
        for (check, said), subjects in alike.items():
            who = subjects[0] if len(subjects) == 1 else f"{len(subjects)} subjects from {subjects[0]}"
            lines.append(f"{outcome} {check} ({who}): {said}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", ARCHIVES)
def test_what_is_found_on_a_capture(name: str, request: pytest.FixtureRequest) -> None:
    path = GOLDEN / f"{name}.txt"
    if request.config.getoption("--regenerate"):
        path.write_text(told(name))
    assert told(name) == path.read_text()


def test_no_golden_text_is_left_of_a_capture_that_is_gone() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(ARCHIVES)


@pytest.mark.parametrize("name", ARCHIVES)
def test_every_result_says_what_the_contract_asks_for(name: str) -> None:
    seen = set()
    for result in results(name):
        assert (result.check, result.subject) not in seen, "one result per check and subject"
        seen.add((result.check, result.subject))
        assert result.actual, f"{result.check} does not say what it found"
        if result.outcome in ("pass", "warn", "fail"):
            assert result.source, f"{result.check} {result.outcome} without a source"
        if result.outcome in ("fail", "unknown", "warn"):
            assert result.hint, f"{result.check} {result.outcome} without a hint"
            assert result.expected


def test_the_sixteen_slower_links_of_the_xe9680_are_by_design() -> None:
    """Gen4 drives and NICs below Gen5 ports, a Gen2 network chip, the switch before the NVSwitches: none is a fault."""
    links = [result for result in results(XE9680) if result.check == "pcie-link"]
    assert {result.outcome for result in links} == {"pass"}
    assert len(links) == 8 + 14 + 8 + 4  # GPUs, network functions, drives, NVSwitches
    slower = {result.subject for result in links if "by design" in (result.actual or "")}
    assert slower == {"0000:01:00.0", "0000:01:00.1"}, "of the links' lower ends; the other 14 are ports and bridges"


@pytest.mark.parametrize("name", [XE9680, AZURE, MI300X, OCI])
def test_each_gpu_has_one_link_and_one_node(name: str) -> None:
    gpus = [result.subject for result in results(name) if result.check == "numa-affinity"]
    assert len(gpus) == len(set(gpus)) == 8
    assert {r.outcome for r in results(name) if r.check in ("pcie-link", "numa-affinity")} == {"pass"}
    assert set(gpus) <= {result.subject for result in results(name) if result.check == "pcie-link"}


@pytest.mark.parametrize(("name", "gpus"), [("h200-vm-x1", 1), ("h200-vm-x4", 4)])
def test_in_a_guest_nodes_are_unknown_links_are_no_fault_and_the_host_is_not_its_business(name: str, gpus: int) -> None:
    found = results(name)
    assert [r.outcome for r in found if r.check == "numa-affinity"] == ["unknown"] * gpus
    assert [r.outcome for r in found if r.check == "pcie-link" and r.outcome != "skip"] == ["pass"] * gpus
    assert {r.outcome for r in found if r.check in ("iommu-mode", "cpu-frequency", "hugepages", "ksm")} == {"skip"}


@pytest.mark.parametrize("name", [name for name in ARCHIVES if name.startswith(("hwloc", "lscpu"))])
def test_a_host_without_gpus_and_guests_fails_nothing(name: str) -> None:
    assert "fail" not in {result.outcome for result in results(name)}


TABLE = TESTS.parent / "docs" / "validate-captures.md"
HEAD = """# What validation finds on the captures

Every captured host of the tests, level 0, without a state directory. A capture that somebody else made lacks much:
what nobody recorded is unknown, never a pass. No fault is missed and none is a false alarm: the machines are
healthy as far as their captures tell, the XE9680's sixteen slower links are so by design, and links of virtual
ports are no evidence. Faulty GPUs (a B200 off NVLink, HW slowdown on eight H100s, XIDs, pending row remaps) are
known from their tools' answers alone, not from whole hosts: tests/test_checks_gpus.py, test_checks_fabric.py and
test_checks_health.py hold those, each fault failing its own GPU and no other.

| capture | verdict | pass | warn | fail | skip | unknown | fails, warnings |
|---|---|---|---|---|---|---|---|
"""


def row(name: str) -> str:
    """A capture's line of the table."""
    found = results(name)
    counted = Counter(result.outcome for result in found)
    amiss = dict.fromkeys(result.check for result in found if result.outcome in ("fail", "warn"))
    numbers = " | ".join(str(counted[word]) for word in ("pass", "warn", "fail", "skip", "unknown"))
    return f"| {name} | {verdict_of(found)} | {numbers} | {', '.join(amiss) or '-'} |\n"


def test_the_published_table_is_what_is_found(request: pytest.FixtureRequest) -> None:
    text = HEAD + "".join(row(name) for name in ARCHIVES)
    if request.config.getoption("--regenerate"):
        TABLE.write_text(text)
    assert text == TABLE.read_text()
