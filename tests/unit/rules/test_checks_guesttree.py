"""The check that holds a guest against its plan: each outcome, on guests discovered from a sysfs tree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from domain_shapes import SWITCHED, changed, plan_of

from hosttune.discovery.evidence import gather
from hosttune.errors import BadInput
from hosttune.guest import guest_files
from hosttune.guest.files import expected, guest_tree
from hosttune.machine.capture import Capture
from hosttune.model.evidence import Evidence
from hosttune.model.guestplan import PLACE, GuestPlan
from hosttune.model.host import Host, NumaNode, PciDevice
from hosttune.model.validation import CheckResult
from hosttune.rules.checks import judge, results_of
from hosttune.rules.checks.guests import guest_topology

GIB = 1 << 30
PLAN = expected(SWITCHED)
NODES = tuple(
    NumaNode(id=cell.id, cpus=cell.vcpus, memory_bytes=int(cell.memory_bytes * 0.98)) for cell in SWITCHED.cells
)


def as_planned(**changes: dict[str, Any]) -> tuple[PciDevice, ...]:
    """The functions of the planned guest; keywords (addresses with '_' for ':' and '.') change one."""
    wanted = {device.address: device for device in PLAN.devices}
    found = []
    for address, function in guest_tree(SWITCHED).items():
        vendor, _, device = (wanted[address].ids or ":" if address in wanted else "1b36:000c").partition(":")
        more = changes.get("at_" + address.replace(":", "_").replace(".", "_"), {})
        found.append(changed(function, **{"vendor_id": vendor, "device_id": device, **more}))
    return tuple(found)


def judged(
    pci: tuple[PciDevice, ...] | None = None, nodes: tuple[NumaNode, ...] = NODES, plan: GuestPlan | None = PLAN
) -> dict[str, CheckResult]:
    host = Host(pci=as_planned() if pci is None else pci, numa_nodes=nodes, hypervisor=True)
    results = list(results_of(guest_topology, Evidence(host=host, inside=True, guest_plan=plan)))
    assert len({result.subject for result in results}) == len(results)
    return {result.subject: result for result in results}


def outcomes(results: dict[str, CheckResult]) -> dict[str, str]:
    return {subject: result.outcome for subject, result in results.items() if result.outcome != "pass"}


def test_a_guest_as_planned_passes_in_every_part() -> None:
    results = judged()
    assert outcomes(results) == {}
    assert set(results) == {
        *("node 0", "node 1"),
        *("0000:07:00.0", "0000:08:00.0", "0000:0b:00.0", "0000:0c:00.0", "0000:10:00.0", "0000:11:00.0"),
        *(f"0000:{g}:00.0 0000:{n}:00.0" for g in ("07", "0b", "10") for n in ("08", "0c", "11")),
    }
    grades = {subject: result.actual for subject, result in results.items() if " " in subject and "node" not in subject}
    assert grades["0000:07:00.0 0000:08:00.0"] == "PIX"
    assert grades["0000:07:00.0 0000:0c:00.0"] == "PHB"
    assert grades["0000:07:00.0 0000:11:00.0"] == "SYS"


def test_a_flat_guest_fails_by_device_and_pair() -> None:
    flat = tuple(changed(f, parent=None, numa_node=None) for f in as_planned() if f.class_code != "060400")
    results = judged(flat)
    assert results["0000:07:00.0"].outcome == "fail"
    assert results["0000:07:00.0"].expected == "gpu 10de:2335 on node 0"
    assert results["0000:07:00.0"].actual == "gpu 10de:2335 of no node"
    assert "hosttune apply" in (results["0000:07:00.0"].hint or "")
    assert results["0000:07:00.0 0000:08:00.0"].outcome == "unknown"


def test_a_nic_below_another_port_fails_by_its_grade() -> None:
    moved = as_planned(at_0000_08_00_0={"parent": "0000:04:01.0"})
    assert judged(moved)["0000:07:00.0 0000:08:00.0"].actual == "PHB"
    assert outcomes(judged(moved))["0000:07:00.0 0000:08:00.0"] == "fail"


def test_a_device_that_is_missing_or_another_fails() -> None:
    gone = tuple(f for f in as_planned() if f.address != "0000:10:00.0")
    results = judged(gone)
    assert (results["0000:10:00.0"].outcome, results["0000:10:00.0"].actual) == ("fail", "nothing there")
    assert results["0000:10:00.0 0000:11:00.0"].outcome == "unknown"
    other = judged(as_planned(at_0000_10_00_0={"device_id": "1234"}))["0000:10:00.0"]
    assert (other.outcome, other.actual) == ("fail", "a device 10de:1234 on node 1")
    unread = judged(as_planned(at_0000_10_00_0={"device_id": None}))["0000:10:00.0"]
    assert (unread.outcome, unread.actual) == ("unknown", "what device it is was not read")


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"memory_bytes": 64 * GIB}, "pass"),
        ({"memory_bytes": 61 * GIB}, "pass"),
        ({"memory_bytes": 59 * GIB}, "fail"),
        ({"memory_bytes": 65 * GIB}, "fail"),
        ({"cpus": "0-6"}, "fail"),
        ({"memory_bytes": None}, "unknown"),
        ({"cpus": None}, "unknown"),
        ({"id": 7}, "fail"),
    ],
)
def test_a_node_is_judged_by_cpus_and_memory(changes: dict[str, Any], outcome: str) -> None:
    assert SWITCHED.cells[0].memory_bytes == 64 * GIB
    assert judged(nodes=(changed(NODES[0], **changes), NODES[1]))["node 0"].outcome == outcome


def test_without_nodes_or_functions_nothing_is_passed() -> None:
    results = judged((), ())
    assert {result.outcome for result in results.values()} == {"unknown"}


def test_without_a_plan_it_is_skipped_with_the_reason() -> None:
    (result,) = judged(plan=None).values()
    assert result.outcome == "skip"
    assert PLACE in (result.actual or "")


# --- from the file ---------------------------------------------------------------------------------------------------


def evidence(root: Path, text: str | None) -> Evidence:
    (root / "sys").mkdir()
    (root / "proc").mkdir()
    if text is not None:
        (root / PLACE.lstrip("/")).parent.mkdir(parents=True)
        (root / PLACE.lstrip("/")).write_text(text)
    return gather(Capture(str(root)), inside=True)


def test_the_seeds_own_document_is_what_is_read(tmp_path: Path) -> None:
    text = guest_files(plan_of(SWITCHED), "switched").bundle["expected.json"]
    assert evidence(tmp_path, text).guest_plan == PLAN
    assert GuestPlan.from_json(text).to_json() == text


def test_the_document_names_nothing_of_the_host() -> None:
    text = guest_files(plan_of(SWITCHED), "switched").bundle["expected.json"]
    assert not [device.address for device in SWITCHED.devices if device.address in text]
    assert "host" not in text.replace("hosttune", "")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "truncated"),
        ('{"schema": "hosttune.guest/v9", "name": "g"}', "v9"),
        (
            json.dumps(
                {"schema": "hosttune.guest/v1", "name": "g", "cells": [{"id": 0, "cpus": "x", "memory_bytes": 1}]}
            ),
            "x",
        ),
    ],
)
def test_a_broken_document_is_unknown_never_a_pass(tmp_path: Path, text: str, why: str) -> None:
    found = evidence(tmp_path, text)
    assert found.guest_plan is None
    (result,) = [r for r in judge(found) if r.check == "guest-topology"]
    assert result.outcome == "unknown"
    assert why in (result.actual or "")
    with pytest.raises(BadInput):
        GuestPlan.from_json(text)
