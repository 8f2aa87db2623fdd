"""Plans from anybody: mutants of a real one, hostile names, addresses, paths and values. Nothing of them is written.

What must hold: a named error (what, where, what to do), exit 1, 2 or 3, and not one file changed. A mutant that is
still a plan stops at the prompt; its rehearsal may name nothing but the files that settings of ours own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from faultkills import applying, lab_of, options_of, reverting, shut_off
from faultkinds import EXAMPLES, VM, Example, host, together
from faultlab import difference, fresh_root, quiet, site_on, tree_of
from faultplans import HOSTILE, call, outside
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree
from sweeps import FULL, examples, sample
from unpacking import unpack

from hosttune.errors import BadInput, HosttuneError
from hosttune.model.host import Cpu, Host, NumaNode
from hosttune.model.intent import Boot, Network
from hosttune.model.plan import Device, Plan, PlannedGuest, PlannedPin, Step, Topology
from hosttune.transaction import apply_plan
from hosttune.transaction.plancheck import check_places, check_plan

HERE = Path(__file__).parents[1]
MUTANTS = sample("mutants", range(1200), 100)
GPU = "0000:00:06.0"
INTENT = """
version: 1
profile: host
reserve: {cores_per_node: 1, memory_per_node: 1GiB}
guests:
- name: one
  gpus: ["0000:00:06.0"]
  hugepages: 2MiB
  disk: /var/lib/libvirt/images/one.qcow2
  networks: [{network: default}]
  seed: true
"""

# --- mutants of a real plan ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scratch root of a captured machine with an H200, given what it lacked: an IOMMU group, an answering libvirt."""
    root = tmp_path_factory.mktemp("machine")
    unpack(HERE / "hosts/older/vm-x1.tar.gz", root)
    files = {
        ".hosttune/scratch": "",
        ".hosttune/commands/virsh-list": " Id   Name   State\n--------------------\n",
        "etc/machine-id": "0123456789abcdef0123456789abcdef\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    device = (root / "sys/bus/pci/devices" / GPU).resolve()
    group = root / "sys/kernel/iommu_groups/7"
    group.mkdir(parents=True)
    (device / "iommu_group").symlink_to(os.path.relpath(group, device))
    return root


@pytest.fixture(scope="module")
def plan(machine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its plan for one guest with the GPU, profile host."""
    folder = tmp_path_factory.mktemp("plan")
    (folder / "intent.yaml").write_text(INTENT)
    words = ["--root", str(machine), "-f", str(folder / "intent.yaml"), "--out", str(folder / "plan.json")]
    code, _, errors = call(["plan", *words])
    assert code == 0, errors
    return folder / "plan.json"


def _without_state() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "HOSTTUNE_STATE"}


@pytest.fixture(scope="module")
def verdicts(machine: Path, plan: Path) -> list[dict[str, Any]]:
    """What became of each mutant, tried in a process of its own."""
    environment = {**_without_state(), "PYTHONPATH": os.pathsep.join((str(HERE.parent), str(HERE / "support")))}
    words = [sys.executable, "-m", "faultplans", str(machine), str(plan)]
    asked = "".join(f"{number}\n" for number in MUTANTS)
    done = subprocess.run(words, env=environment, input=asked, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_real_plan_would_be_applied(machine: Path, plan: Path) -> None:
    code, output, errors = call(["apply", str(plan), "--root", str(machine), "--dry-run", "-o", "json"])
    assert code == 0, errors
    writes = json.loads(output)["writes"]
    assert len(writes) > 20
    assert outside(writes) == []
    assert outside(["write /etc/passwd <- x", "file  /var/lib/hosttune/guests/../x (mode", "run   sh -c id"]) != []


def test_mutants_of_a_real_plan_are_refused_or_still_plans(machine: Path, verdicts: list[dict[str, Any]]) -> None:
    """To make one again: `faultplans.mutant(PLAN, NUMBER)`."""
    assert [(row["number"], row["what"], row["wrong"]) for row in verdicts if row["wrong"]] == []
    refused = [row for row in verdicts if not row["accepted"]]
    assert [row["number"] for row in verdicts] == MUTANTS
    assert len(refused) > (1000 if FULL else len(MUTANTS) * 3 // 4)
    assert {row["code"] for row in refused} <= {1, 2, 3}
    others = Counter(row["code"] for row in refused)[3]  # other machines, other devices: few of a sample
    assert others > 20 or not FULL
    assert not (machine / "var/lib/hosttune/transactions").exists()


def test_mutants_leave_the_machine_as_it_was(
    machine: Path, plan: Path, verdicts: list[dict[str, Any]], tmp_path: Path
) -> None:
    """The same, told by the files themselves: the root is what the archive makes of it, but for the lock."""
    before = tree_of(machine)
    code, _, _ = call(["apply", str(plan), "--root", str(machine), "--yes", "--disrupt", GPU])
    assert code == 0
    assert tree_of(machine) != before
    code, _, _ = call(["revert", "--yes", "--root", str(machine)])
    assert code == 0
    assert tree_of(machine) == before


# --- hypothesis ----------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(HOSTILE),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4),
    max_leaves=12,
)
FEW = together(EXAMPLES["thp"], EXAMPLES["sysctl"], EXAMPLES["guest"])
FIELDS = sorted(Plan.__struct_fields__)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("few")
    yield fresh_root(folder / "root", FEW.files, FEW.links)
    shutil.rmtree(folder)


def refused(root: Path, document: bytes, before: dict[str, tuple[int, bytes]]) -> None:
    """Apply it, and answer yes: it must come to nothing."""
    path = root.parent / "plan.json"
    path.write_bytes(document)
    code, _, errors = call(["apply", str(path), "--root", str(root), "--yes"])
    assert code in (1, 2, 3), errors
    assert re.search(r"error: .+\nwhere: .+\n   do: .+", errors, re.DOTALL)
    assert "internal error" not in errors
    assert tree_of(root) == before
    assert not (root / "var/lib/hosttune/transactions").exists()


@settings(max_examples=examples(40, full=150), deadline=None)
@given(field=st.sampled_from(FIELDS), value=JSON)
def test_any_value_in_any_field(few: Path, field: str, value: Any) -> None:
    """The plan is for another machine besides, so that even one that is well-formed is refused."""
    document = json.loads(FEW.plan.to_json())
    document[field] = value
    refused(few, json.dumps(document).encode("utf-8", "surrogatepass"), tree_of(few))


@settings(max_examples=examples(40, full=150), deadline=None)
@given(st.binary(max_size=300) | JSON.map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass")))
def test_anything_at_all(few: Path, document: bytes) -> None:
    refused(few, document, tree_of(few))


# --- every kind, hostile targets and values ------------------------------------------------------------------

TARGETS = [text for text in HOSTILE if isinstance(text, str)] + ["cpus 0-65536", "cpus 0,0,0", "0000:41:00.0\n"]


def tried(example: Example, root: Path, before: dict[str, tuple[int, bytes]]) -> str:
    """ "refused" with nothing written; or "taken", and then taken back to what it was."""
    try:
        _, code = apply_plan(site_on(root), example.plan, options_of(example), host, lambda todo: True, quiet)
    except HosttuneError as error:
        named = error.exit_code in (1, 2, 3) and error.what and error.where and error.hint
        return "refused" if named and tree_of(root) == before else f"{type(error)}, {difference(before, tree_of(root))}"
    shut_off(root)
    if code == 0:
        _, code = reverting(example)(site_on(root))
        assert code == 0
    assert tree_of(root) == before
    return "taken"


@pytest.mark.parametrize("name", [name for name, example in EXAMPLES.items() if example.wants])
def test_hostile_targets_and_values_of_every_kind(name: str, tmp_path: Path) -> None:
    example = EXAMPLES[name]
    root = fresh_root(tmp_path / "root", example.files, example.links)
    before = tree_of(root)
    kind, target, want = example.wants[0]
    targets, values = sample(f"targets {name}", TARGETS, 12), sample(f"values {name}", HOSTILE, 16)
    found = Counter(tried(replace(example, wants=((kind, hostile, want),)), root, before) for hostile in targets)
    assert set(found) <= {"refused", "taken"}, found
    assert found["taken"] <= 3, found  # "cpus 0,0,0", another function: such a thing there is
    found = Counter(tried(replace(example, wants=((kind, target, hostile),)), root, before) for hostile in values)
    assert set(found) <= {"refused", "taken"}, found
    assert found["taken"] < 8, found  # true, 0, 1, "0", "": values of some


def test_a_kind_that_there_is_not(tmp_path: Path) -> None:
    root = fresh_root(tmp_path / "root", {}, {})
    for kind in ("", "../thp", "os.system", "__class__", "Thp", "guest", "guest-state", "guest-files", "drop-in"):
        example = Example("x", {}, ((kind, "vm", "running"),))
        assert tried(example, root, tree_of(root)) == "refused", kind


# --- guests --------------------------------------------------------------------------------------------------

NAMES = (
    "../../etc/cron.d/x", "a/b", "..", ".", "", "-h", "a b", "a\nb", "a\0b", "<x/>", "&amp;", "$(id)", "`id`", "a;b",
    "x" * 300, "'", '"', "é", "\x1b[2J", "*",
)  # fmt: skip
TEXTS = (
    "</cmdline><emulator>/bin/sh</emulator>", "' onload='", '"/><x/>', "<![CDATA[x]]>", "]]>", "&e;", "--><x/><!--",
    "<?xml version='1.0'?>", "$(reboot)", "{{ 7*7 }}", "{% raw %}", "\x1b[2J", "a\0b", "a\nb", "x" * 70_000,
)  # fmt: skip


def with_guest(**fields: Any) -> Example:
    guest: PlannedGuest = msgspec.structs.replace(VM, **fields)
    return Example("guest", EXAMPLES["guest"].files, guests=(guest,))


def definition(root: Path, name: str = "vm") -> etree._Element | None:
    path = root / f".hosttune/commands/virsh-dumpxml-{name}"
    return etree.fromstring(path.read_bytes()) if path.exists() else None


def shape_of(xml: etree._Element) -> Counter[str]:
    """How often each path of elements and attributes is there, whatever their texts say."""
    tree = etree.ElementTree(xml)
    found: Counter[str] = Counter()
    for element in xml.iter("*"):
        path = re.sub(r"\[\d+\]", "", tree.getpath(element))
        found.update([path, *(f"{path}@{name!s}" for name in element.attrib)])
    return found


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    return fresh_root(tmp_path / "root", EXAMPLES["guest"].files, {})


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name[:20]))
def test_a_hostile_guest_name_goes_nowhere(name: str, empty: Path) -> None:
    example = with_guest(name=name)
    before = tree_of(empty.parent)
    assert tried(example, empty, tree_of(empty)) == "refused"
    assert tree_of(empty.parent).keys() - before.keys() <= {"/root/var/lib/hosttune/lock"}


@pytest.mark.parametrize(
    ("fields", "what", "where"),
    [
        ({"kind": "quantum"}, "'quantum' is not a kind of device", "guests[1].devices[0].kind"),
        ({"kind": "mdev"}, "'0000:41:00.0' is not a UUID", "guests[1].devices[0].address"),
        (
            {"address": "41:00.0"},
            "'41:00.0' is not the kernel's spelling of an address",
            "guests[1].devices[0].address",
        ),
        ({}, "a second use of 0000:41:00.0", "guests[1].devices[0]"),
    ],
)
def test_a_device_of_a_guest_that_no_planner_wrote(fields: dict[str, Any], what: str, where: str) -> None:
    gpu = Device(address="0000:41:00.0", kind="gpu", guest_cell=None, guest_address="0000:01:00.0", identity="")
    first = msgspec.structs.replace(VM, name="first", devices=(gpu,))
    elsewhere = tuple(PlannedPin(vcpu=pin.vcpu, cpus=str(int(pin.cpus) + 100)) for pin in VM.vcpu_pins)
    device = msgspec.structs.replace(gpu, **fields)
    second = msgspec.structs.replace(first, name="second", vcpu_pins=elsewhere, devices=(device,))
    with pytest.raises(BadInput) as caught:
        check_plan(Example("guests", {}, guests=(first, second)).plan)
    assert (caught.value.what, caught.value.where) == (what, f"plan: {where}")


def test_a_cpu_with_vcpus_of_two_guests_is_refused() -> None:
    second = msgspec.structs.replace(VM, name="second")
    with pytest.raises(BadInput, match="is not one CPU of its own") as caught:
        check_plan(Example("guests", {}, guests=(VM, second)).plan)
    assert caught.value.where == "plan: guests[1].vcpu_pins[0].cpus"


CELL = VM.cells[0]


@pytest.mark.parametrize(
    ("fields", "what", "where"),
    [
        ({"cells": ()}, "its cells do not have each vCPU once", "cells"),
        ({"cells": (CELL, CELL)}, "its cells do not have each vCPU once", "cells"),
        ({"cells": (msgspec.structs.replace(CELL, vcpus="0-x"),)}, "'0-x' is not a CPU range", "cells[0].vcpus"),
        ({"cells": (msgspec.structs.replace(CELL, memory_bytes=0),)}, "0 is not a size of whole pages",
         "cells[0].memory_bytes"),
        ({"topology": Topology(sockets=1, dies=1, cores=8, threads=1)}, "not a topology of 16 vCPUs", "topology"),
        ({"devices": (Device(address=GPU, kind="gpu", guest_cell=1, guest_address="0000:01:00.0", identity=""),)},
         "the guest has no such cell", "devices[0].guest_cell"),
        ({"machine": "isapc"}, "'isapc' is none", "machine"),
        ({"steps": (Step(when="never", text=""),)}, "'never' is none", "steps[0].when"),
        ({"fabric_partition": -5}, "-5 is not within 0 to 1048575", "fabric_partition"),
        ({"allocation_threads": 10**9}, "1000000000 is not within 1 to 16", "allocation_threads"),
        ({"physical_address_bits": 0}, "0 is not within 32 to 64", "physical_address_bits"),
        ({"cells": (msgspec.structs.replace(CELL, distances=(9,)),)}, "9 is not within 10 to 254",
         "cells[0].distances"),
    ],
)  # fmt: skip
def test_a_guest_that_does_not_fit_together(fields: dict[str, Any], what: str, where: str) -> None:
    with pytest.raises(BadInput) as caught:
        check_plan(with_guest(**fields).plan)
    assert (caught.value.what, caught.value.where) == (what, f"plan: guests[0].{where}")


def test_a_place_that_the_host_does_not_have() -> None:
    cpus = tuple(Cpu(id=number) for number in range(18))
    has = Host(cpus=cpus, numa_nodes=(NumaNode(id=0, cpus="0-17"),))
    check_places(with_guest().plan, has)
    check_places(with_guest(emulator_cpus="0,99").plan, Host())  # not known
    for fields in ({"emulator_cpus": "0,99"}, {"iothread_cpus": ("0", "99")}):
        with pytest.raises(BadInput, match="this host has no CPU 99"):
            check_places(with_guest(**fields).plan, has)
    with pytest.raises(BadInput, match="this host has no node 1"):
        check_places(with_guest(cells=(msgspec.structs.replace(CELL, host_nodes="1"),)).plan, has)


FIELDS_OF_TEXT = ("disk", "cmdline", "kernel", "network", "bridge", "uuid", "machine", "seed", "why")
TEXT_CASES = [(field, text) for text in TEXTS for field in FIELDS_OF_TEXT]


@pytest.mark.parametrize(
    ("field", "text"),
    sample("texts", TEXT_CASES, 18),
    ids=lambda text: repr(text[:20]) if isinstance(text, str) else None,
)
def test_no_text_of_a_guest_becomes_more_than_a_text(field: str, text: str, tmp_path: Path) -> None:
    """Refused, or the XML has the same elements and attributes as with a harmless text in that place."""

    def fields(word: str) -> dict[str, Any]:
        known: dict[str, dict[str, Any]] = {
            "disk": {"disk": f"/srv/{word}"},
            "cmdline": {"boot": Boot(kernel="/boot/vmlinuz", cmdline=word)},
            "kernel": {"boot": Boot(kernel=f"/boot/{word}")},
            "network": {"networks": (Network(network=word),)},
            "bridge": {"networks": (Network(bridge=word),)},
            "why": {"why": (word,)},
        }
        return known.get(field, {field: word})

    found = []
    for number, word in enumerate(("harmless", text)):
        example = with_guest(**fields(word))
        root = fresh_root(tmp_path / str(number), example.files, {})
        before = tree_of(root)
        try:
            applying(example)(site_on(root))
        except HosttuneError:
            assert tree_of(root) == before
        xml = definition(root)
        found.append(None if xml is None else shape_of(xml))
        written = {
            path for path in tree_of(root) if not path.startswith(("/var/lib/hosttune/guests/vm/", "/.hosttune"))
        }
        assert written == set()
    assert found[1] in (None, found[0])


@pytest.mark.parametrize(
    ("settings", "lies"),
    [
        ({"sysctl": {"vm.x": "$(id)\n; reboot"}}, "reboot"),
        ({"sysctl": {"../../etc/x": "1"}}, "etc/x"),
        ({"sysctl": {"vm.a=1\nvm.b": "1"}}, "vm.b"),
        ({"power_limit_watts": "700; reboot"}, "reboot"),
        ({"persistence": "$(id)"}, "id"),
        ({"__class__": 1}, "class"),
    ],
)
def test_hostile_settings_inside_a_guest(settings: dict[str, Any], lies: str, empty: Path) -> None:
    example = with_guest(guest_settings=settings, seed="/var/lib/hosttune/guests/vm/seed.iso")
    assert tried(example, empty, tree_of(empty)) == "refused"


@pytest.mark.parametrize("seed", ["/etc/passwd", "../../x", "/var/lib/hosttune/guests/../../../etc/shadow", "/dev/sda"])
def test_a_seed_that_is_not_the_guests_own(seed: str, empty: Path) -> None:
    assert tried(with_guest(seed=seed), empty, tree_of(empty)) == "refused"


def test_the_lab_tells_an_injection(tmp_path: Path) -> None:
    lab = lab_of(with_guest(), tmp_path / "root")
    xml = definition(lab.root)
    assert xml is not None
    before = shape_of(xml)
    etree.SubElement(xml, "emulator")
    assert shape_of(xml) != before
