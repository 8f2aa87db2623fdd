"""What validation finds on every captured host: one golden matrix of check and host, and three hosts in full words.

Read a difference critically: each unknown must be a fact that the capture really lacks, each fail a fault that its
machine really has. A new check is a new row. What passes, or does not apply, is not in the full texts: a new check
changes none of a host that passes it.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from hosttune.discovery.evidence import gather
from hosttune.machine.opening import open_root
from hosttune.model.evidence import Evidence
from hosttune.model.host import Host
from hosttune.model.validation import CheckResult, verdict_of
from hosttune.rules.checks import checks, judge, on, results_of
from hosttune.rules.engine import Finding

TESTS = Path(__file__).parents[2]
GOLDEN = TESTS / "golden" / "validate"
MATRIX = TESTS / "golden" / "validations.txt"
FOLDERS = ("derived", "ghw", "h100", "h200", "hwloc", "lscpu", "older")
ARCHIVES = {
    f"{folder}-{path.name.partition('.tar.')[0]}": path
    for folder in FOLDERS
    for path in sorted((TESTS / "hosts" / folder).glob("*.tar.*"))
} | {f"example-{name}": TESTS.parent / "examples" / f"{name}.tar.xz" for name in ("hgx-h200-8", "gaudi3-8", "mi300x-8")}
XE9680, AZURE, MI300X, OCI = (
    f"derived-{name}"
    for name in ("xe9680-8xh100-lspci", "azure-ndv4-8xa100-vm", "amd-mi300x-8-vm", "oci-bm-gpu-a100-b4-nps4")
)


@cache
def evidence(name: str) -> Evidence:
    return gather(open_root(str(ARCHIVES[name])))


@cache
def results(name: str) -> tuple[CheckResult, ...]:
    return tuple(judge(evidence(name)))


def told(found: tuple[CheckResult, ...]) -> str:
    """The verdict, then what failed, is unknown or warns, alike together."""
    lines: list[str] = [verdict_of(found)]
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


# A whole capture of hosttune's own, a guest seen from inside, and a capture of another tool that lacks nearly all.
IN_FULL = ("example-hgx-h200-8", "older-vm-x4", "hwloc-2i386-2c-nohugepage")


@pytest.mark.parametrize("name", IN_FULL)
def test_what_is_found_in_words(name: str, request: pytest.FixtureRequest) -> None:
    path = GOLDEN / f"{name}.txt"
    if request.config.getoption("--regenerate"):
        path.write_text(told(results(name)))
    assert told(results(name)) == path.read_text()


LETTERS = {"fail": "F", "unknown": "?", "warn": "w", "pass": "p", "skip": "-"}
LEGEND = "F fail, ? unknown, w warn, p pass, - skip; more letters: subjects differ; empty: not asked\n"


def matrix() -> str:
    """A row for each check, a column for each host, all outcomes of its subjects in the cell."""
    cells: dict[str, dict[str, set[str]]] = {}
    for name in ARCHIVES:
        for result in results(name):
            cells.setdefault(result.check, {}).setdefault(name, set()).add(result.outcome)
    lines = [f"{number:2} {name}" for number, name in enumerate(ARCHIVES, 1)]
    lines += ["", LEGEND, " " * 25 + "".join(f"{number:<4}" for number in range(1, len(ARCHIVES) + 1))]
    for check in sorted(cells):
        of = [cells[check].get(name, set()) for name in ARCHIVES]
        texts = ("".join(letter for word, letter in LETTERS.items() if word in outcomes) for outcomes in of)
        lines.append(f"{check:<25}" + "".join(f"{text:<4}" for text in texts))
    return "".join(f"{line.rstrip()}\n" for line in lines)


def test_what_each_check_finds_on_each_capture(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--regenerate"):
        MATRIX.write_text(matrix())
    assert matrix() == MATRIX.read_text()


def test_every_result_says_what_the_contract_asks_for() -> None:
    for name in ARCHIVES:
        seen = set()
        for result in results(name):
            where = f"{result.check} of {result.subject} on {name}"
            assert (result.check, result.subject) not in seen, f"{where}: one result per check and subject"
            seen.add((result.check, result.subject))
            assert result.actual, f"{where} does not say what it found"
            if result.outcome in ("pass", "warn", "fail"):
                assert result.source, f"{where}: {result.outcome} without a source"
            if result.outcome in ("fail", "unknown", "warn"):
                assert result.hint, f"{where}: {result.outcome} without a hint"
                assert result.expected, where


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


@pytest.mark.parametrize(("name", "gpus"), [("older-vm-x1", 1), ("older-vm-x4", 4)])
def test_in_a_guest_nodes_warn_links_are_no_fault_and_the_host_is_not_its_business(name: str, gpus: int) -> None:
    found = results(name)
    nodes = [r for r in found if r.check == "numa-affinity"]
    assert [r.outcome for r in nodes] == ["warn"] * gpus, "no setting in the guest can show them"
    assert all("hosttune plan on its host" in (r.hint or "") for r in nodes)
    assert [r.outcome for r in found if r.check == "pcie-link" and r.outcome != "skip"] == ["pass"] * gpus
    assert {r.outcome for r in found if r.check in ("iommu-mode", "cpu-frequency", "hugepages", "ksm")} == {"skip"}


@pytest.mark.parametrize("name", [name for name in ARCHIVES if name.startswith(("h100", "h200"))])
def test_a_healthy_guest_with_gpus_that_was_captured_whole_leaves_nothing_unknown(name: str) -> None:
    assert [one for one in results(name) if one.outcome in ("unknown", "fail")] == []
    assert verdict_of(results(name)) == "warn"


def test_a_host_without_gpus_and_guests_fails_nothing() -> None:
    bare = [name for name in ARCHIVES if name.startswith(("hwloc", "lscpu"))]
    assert {name for name in bare for result in results(name) if result.outcome == "fail"} == set()


TABLE = TESTS / "hosts" / "FINDINGS.md"
HEAD = """# What validation finds on the captures

Every captured host of the tests, level 0, without a state directory. Captures that other tools made lack much: what
was not recorded is unknown, never a pass. No fault is missed, and there is no false alarm: as far as the captures
show, these machines are healthy, the sixteen slower links of the XE9680 are so by design, and links of virtual ports
prove nothing. No capture of a whole host has a faulty GPU. Faults (a B200 off NVLink, HW slowdown on eight H100s, XIDs,
pending row remaps) are tested on the output of the makers' tools (test_checks_gpus.py, test_checks_fabric.py and
test_checks_health.py in tests/unit/rules): each fault fails its own GPU and no other.

| capture | verdict | warn | fail | unknown | fails, warnings |
|---|---|---|---|---|---|
"""


def row(name: str) -> str:
    """A capture's line of the table."""
    found = results(name)
    counted = Counter(result.outcome for result in found)
    amiss = dict.fromkeys(result.check for result in found if result.outcome in ("fail", "warn"))
    numbers = " | ".join(str(counted[word]) for word in ("warn", "fail", "unknown"))
    return f"| {name} | {verdict_of(found)} | {numbers} | {', '.join(amiss) or '-'} |\n"


def test_the_published_table_is_what_is_found(request: pytest.FixtureRequest) -> None:
    text = HEAD + "".join(row(name) for name in ARCHIVES)
    if request.config.getoption("--regenerate"):
        TABLE.write_text(text)
    assert text == TABLE.read_text()


# --- a new check ---------------------------------------------------------------------------------------------

ASKED: list[str | None] = []


@on.check("toy", title="NUMA nodes", about="the host", why="a test", source="this test", expected="some", reads="sysfs")
def toy(scene: on.On) -> Finding:
    """A toy: whether the host shows NUMA nodes."""
    ASKED.append(scene.host.hostname)
    text = f"{len(scene.host.numa_nodes)} nodes"
    return scene.passed(text) if scene.host.numa_nodes else scene.failed(text, "look with: numactl -H")


TOY = toy


@pytest.mark.parametrize("name", ["example-hgx-h200-8", "older-vm-x4"])
def test_a_new_check_is_one_value_and_changes_no_golden_text_of_a_host_that_passes_it(name: str) -> None:
    found = tuple(judge(evidence(name), (*checks(evidence(name).inside), TOY)))
    assert [result.outcome for result in found if result.check == "toy"] == ["pass"]
    assert told(found) == (GOLDEN / f"{name}.txt").read_text()


def test_a_new_check_adds_its_line_to_the_golden_text_of_a_host_that_fails_it() -> None:
    name = "hwloc-2i386-2c-nohugepage"
    found = tuple(judge(evidence(name), (*checks(), TOY)))
    added = set(told(found).splitlines()) - set((GOLDEN / f"{name}.txt").read_text().splitlines())
    assert added == {"fail", "fail toy (host): 0 nodes"}


def test_a_check_for_guests_is_not_asked_on_a_host_that_has_neither_gpus_nor_guests() -> None:
    declared = replace(TOY, for_guests=True)
    nobody = Evidence(host=Host(guests=()), complete=True, absent=("/",))
    ASKED.clear()
    assert [(one.outcome, one.actual) for one in results_of(declared, nobody)] == [("skip", "no GPU and no guest here")]
    lost = Evidence(host=Host())
    assert [one.outcome for one in results_of(declared, lost)] == ["unknown"], "whether it has any was not read"
    assert not ASKED
    assert [one.outcome for one in results_of(declared, evidence(XE9680))] == ["pass"]
    assert ASKED


def test_a_check_without_a_subject_says_what_is_not_here_and_only_where_that_is_known() -> None:
    declared = replace(TOY, each=lambda _: (), none="quantum card")
    nobody = Evidence(host=Host(), complete=True, absent=("/",))
    assert [(one.outcome, one.actual) for one in results_of(declared, nobody)] == [("skip", "no quantum card here")]
    assert [one.outcome for one in results_of(declared, Evidence(host=Host()))] == ["unknown"]
