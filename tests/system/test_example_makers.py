"""The synthetic hosts with Gaudi 3 and MI300X: discovered, planned, validated; what is not known is unknown."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml
from applyroots import unpack
from damage import Files, load, validated
from msgspec import structs
from system.test_example import contents

from hosttune.cli import run
from hosttune.discovery import discover
from hosttune.errors import Refused
from hosttune.gpu.habana import HABANA
from hosttune.handover.targets import Asked, chosen
from hosttune.model.force import GuestInForce, InForce
from hosttune.model.host import Host, RunningGuest
from hosttune.model.intent import Intent
from hosttune.model.plan import Plan
from hosttune.planning import plan
from hosttune.transaction.site import open_site

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NAMES = ("gaudi3-8", "mi300x-8")
INTENTS = {
    "gaudi3-8": ("gaudi3/group_vars/gaudi3.yml", "gaudi3/host_vars/gaudi-02.yml"),
    "mi300x-8": ("mi300x/group_vars/mi300x.yml", "mi300x/host_vars/mi300x-02.yml"),
}
GPUS = [f"0000:{bus}:00.0" for bus in ("18", "29", "41", "56", "9a", "aa", "ba", "da")]
COMMANDS = "/.hosttune/commands/"


def files(name: str) -> Files:
    return load(EXAMPLES / f"{name}.tar.xz")


@cache
def host(name: str) -> Host:
    return discover(files(name).system())


def intended(name: str, which: int) -> Intent:
    """The intent of the group (0), or of a host in it (1): its keys beside the group's, its guests by name."""
    files = [ROOT / "inventories" / one for one in INTENTS[name][: which + 1]]
    group, *of_host = [yaml.safe_load(one.read_text())["hosttune_intent"] for one in files]
    guests = {one["name"]: one for layer in (group, *of_host) for one in layer["guests"]}
    return Intent.from_json(json.dumps({**group, "guests": list(guests.values())}))


def decided(name: str, which: int) -> Plan:
    return plan(host(name), intended(name, which))


BUILD = """
import hashlib, json
from build_makers import HOSTS
for name, make in HOSTS.items():
    tree = make()
    files = {path: hashlib.sha256(data).hexdigest() for path, data in tree.files.items()}
    print(json.dumps({"name": name, "files": files, "links": tree.links, "folders": sorted(tree.folders)}))
"""


def test_building_them_again_gives_the_same_hosts() -> None:
    """Without packing them, which takes seconds."""
    done = subprocess.run([sys.executable, "-c", BUILD], cwd=EXAMPLES, capture_output=True, text=True, check=True)
    built = {tree["name"]: tree for tree in map(json.loads, done.stdout.splitlines())}
    assert set(built) == set(NAMES)
    for name, tree in built.items():
        kept = contents(EXAMPLES / f"{name}.tar.xz")
        assert set(kept) == {*tree["files"], *tree["links"], *tree["folders"]}
        assert {path: kept[path][1] for path in tree["links"]} == tree["links"]
        assert {path: sha256(kept[path][4]).hexdigest() for path in tree["files"]} == tree["files"]
        assert b"SYNTHETIC" in kept[".hosttune/SYNTHETIC"][4]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_the_other_maker_is_left(name: str) -> None:
    whole = files(name)
    assert [path for path in (*whole.files, *whole.links, *whole.dirs) if "nvidia" in path or "/0000:82:" in path] == []
    system = whole.system()
    assert {to for to in whole.links.values() if not system.exists(to) and "/drivers/" not in to} <= {"/sys/bus/pci"}
    assert host(name).problems == ()


def test_what_is_discovered_of_gaudi_3() -> None:
    gpus = host("gaudi3-8").gpus
    cards = [gpu for gpu in gpus if gpu.vendor == "habana"]
    assert [gpu.address for gpu in cards] == GPUS
    assert {gpu.memory_bytes for gpu in cards} == {128 << 30}
    assert sorted(gpu.module_id for gpu in cards if gpu.module_id is not None) == list(range(8))
    limits = {(g.power_limit_watts, g.power_default_watts, g.power_min_watts, g.power_max_watts) for g in cards}
    assert limits == {(850.0, 850.0, 450.0, 900.0)}
    assert [nic.rdma for nic in host("gaudi3-8").nics if nic.rdma] == ["mlx5_0"]


def test_what_is_discovered_of_mi300x() -> None:
    cards = [gpu for gpu in host("mi300x-8").gpus if gpu.vendor == "amd"]
    assert [gpu.address for gpu in cards] == GPUS
    assert {gpu.memory_bytes for gpu in cards} == {192 << 30}
    assert {(gpu.compute_partition, gpu.memory_partition) for gpu in cards} == {("SPX", "NPS1")}
    assert {(gpu.temperature_c, gpu.temperature_slowdown_c) for gpu in cards} == {(38.0, 95.0)}
    for gpu in cards:
        assert [(peer.address, peer.kind) for peer in gpu.peers or ()] == [
            (a, "xgmi") for a in GPUS if a != gpu.address
        ]


@pytest.mark.parametrize("name", NAMES)
def test_all_of_them_for_one_guest(name: str) -> None:
    made = decided(name, 0)
    (guest,) = made.guests
    assert made.unplaced == ()
    assert [device.address for device in guest.devices if device.kind == "gpu"] == GPUS
    assert [cell.host_nodes for cell in guest.cells] == ["0", "1"]
    driver = "habanalabs" if name == "gaudi3-8" else "amdgpu"
    bound = {one.target: one.current for one in made.actions if one.kind == "driver" and one.current == driver}
    assert bound == dict.fromkeys(GPUS, driver)
    texts = [finding.text for finding in made.findings]
    assert not [text for text in texts if "can interrupt" in text]
    assert bool([text for text in texts if "NCCL" in text]) is (name == "mi300x-8")


def test_halves_of_gaudis_and_a_single_mi300x() -> None:
    halves = decided("gaudi3-8", 1)
    assert [[d.address for d in guest.devices] for guest in halves.guests] == [GPUS[:4], GPUS[4:]]
    assert not [one for one in halves.findings if "can interrupt" in one.text]
    ports = [one for one in halves.findings if "network ports of their own" in one.text]
    assert [(one.level, one.where) for one in ports] == [("warn", f"guest {one.name}") for one in halves.guests]
    assert f"whether the ports to {', '.join(GPUS[4:])} are cut" in ports[0].text
    assert not [one for one in decided("gaudi3-8", 0).findings if "network ports of their own" in one.text]
    (told,) = (one for one in decided("mi300x-8", 1).findings if "can interrupt" in one.text)
    assert f"{', '.join(GPUS[1:])} are joined with {GPUS[0]}" in told.text


def test_of_a_gpu_that_its_guest_has_already_it_is_not_told_again_whom_a_reset_touches() -> None:
    """The plan that gave it told; now vfio-pci has it, and nothing shows how it is joined."""
    there, made = host("mi300x-8"), decided("mi300x-8", 1)
    (guest,) = made.guests
    own = {device.address for device in guest.devices}
    gpus = tuple(structs.replace(gpu, peers=None) if gpu.address in own else gpu for gpu in there.gpus)
    force = GuestInForce(name=guest.name, request=intended("mi300x-8", 1).guests[-1], places=guest, number=1)
    for guests, number in (((), 1), ((force,), 0)):
        now = structs.replace(there, gpus=gpus, in_force=InForce(last=1, guests=guests))
        texts = [one.text for one in plan(now, intended("mi300x-8", 1)).findings if "can interrupt" in one.text]
        assert len(texts) == number, texts


def test_a_divided_gpu_is_told_to_the_one_who_plans_a_guest_with_it() -> None:
    """All eight go to one guest; only the divided one is named, and none where the mode is not known."""
    told = {}
    for mode in ("SPX", "CPX", None):
        there = host("mi300x-8")
        gpus = tuple(
            structs.replace(gpu, compute_partition=mode) if gpu.address == GPUS[3] else gpu for gpu in there.gpus
        )
        made = plan(structs.replace(there, gpus=gpus), intended("mi300x-8", 0))
        told[mode] = [one.text for one in made.findings if "is divided" in one.text]
    assert {mode: len(texts) for mode, texts in told.items()} == {"SPX": 0, "CPX": 1, None: 0}
    assert f"GPU {GPUS[3]} is divided (CPX)" in told["CPX"][0]
    assert "set SPX with amd-smi before" in told["CPX"][0]


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_is_applied_judged_and_reverted(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All eight for one guest, as a scratch root. The cards' own interfaces are up, and nobody uses them."""
    root = unpack(EXAMPLES / f"{name}.tar.xz", tmp_path / "root")
    drivers = {gpu: root / "sys/bus/pci/devices" / gpu / "driver" for gpu in GPUS}
    before = {gpu: place.resolve().name for gpu, place in drivers.items()}
    there, made = ("--root", str(root)), str(tmp_path / "plan.json")
    listed = root / "proc/net/route"
    routes = listed.read_text()

    def call(*words: str) -> dict[str, Any]:
        code = run([*words, *there, "-o", "json"])
        out, err = capsys.readouterr()
        assert (code, err.replace(f"plan saved: {made}\n", "")) == (0, "")
        found: dict[str, Any] = json.loads(out)
        return found

    call("plan", "--gpus", "8", "--out", made)
    if name == "gaudi3-8":  # whether an interface that is up has an address is unknown without the routes
        listed.unlink()
        assert run(["apply", made, "--yes", *there]) == 3
        assert "acc0p5 is up" in capsys.readouterr().err
        listed.write_text(routes)
    done = call("apply", made, "--yes")
    assert {place.resolve().name for place in drivers.values()} == {"vfio-pci"}
    assert {entry["outcome"] for entry in done["entries"]} <= {"done", "already", "pending"}
    found = call("validate")
    held = {row["subject"]: row["outcome"] for row in found["results"] if row["check"] == "gpu-driver"}
    assert (found["verdict"], held) == ("warn", dict.fromkeys(GPUS, "skip"))
    call("revert", "--yes")
    assert {gpu: place.resolve().name for gpu, place in drivers.items()} == before


GOOD = {
    "gaudi3-8": {"gpu-driver", "gpu-status", "power-limit", "gpu-ports", "scale-out-ports", "pcie-link", "bar-size"},
    "mi300x-8": {
        *("gpu-driver", "power-limit", "gpu-temperature", "ecc-errors", "pcie-replay", "xgmi", "gpu-partition"),
        *("pcie-link", "bar-size"),
    },
}


@pytest.mark.parametrize("name", NAMES)
def test_a_healthy_host_is_fit_for_use(name: str) -> None:
    found = validated(files(name))
    assert found.verdict == "warn"
    outcomes = {check: {found.outcomes[check, gpu] for gpu in GPUS} for check in GOOD[name]}
    assert outcomes == {check: {"pass"} for check in GOOD[name]}
    assert "unknown" not in found.outcomes.values()


def change(name: str, path: str, old: str, new: str) -> Files:
    whole = files(name)
    text = whole.files[path].decode()
    assert old in text
    return whole.put({path: text.replace(old, new, 1)})


def at(name: str, gpu: str, file: str) -> str:
    return f"{files(name).links[f'/sys/bus/pci/devices/{gpu}']}/{file}"


def test_faults_of_a_gaudi_are_told_of_it_alone() -> None:
    sick = change("gaudi3-8", COMMANDS + "hl-smi-ports", "port 4:\tUP", "port 4:\tDOWN")
    sick = sick.put(
        {
            at("gaudi3-8", GPUS[1], "max_power"): "600000\n",
            at("gaudi3-8", GPUS[2], "status"): "malfunction\n",
            at("gaudi3-8", GPUS[3], "net/acc3p2/speed"): "100000\n",
        }
    )
    found = validated(sick)
    told = {key: outcome for key, outcome in found.outcomes.items() if outcome == "fail"}
    assert told == {("gpu-ports", GPUS[0]): "fail", ("gpu-status", GPUS[2]): "fail"}
    assert {gpu: found.outcomes["power-limit", gpu] for gpu in GPUS[:3]} == dict(
        zip(GPUS, ("pass", "warn", "pass"), strict=False)
    )
    assert {gpu: found.outcomes["scale-out-ports", gpu] for gpu in GPUS} == {
        gpu: "warn" if gpu == GPUS[3] else "pass" for gpu in GPUS
    }


def test_what_no_source_tells_of_a_gaudi_is_unknown() -> None:
    """The name of the card is its power class; without hl-smi it is not known, and neither are its ports."""
    whole = files("gaudi3-8")
    kept = {path: data for path, data in whole.files.items() if "hl-smi" not in path}
    found = validated(Files(kept, whole.links, whole.dirs, whole.origin))
    told = {found.outcomes[check, gpu] for check in ("power-limit", "gpu-ports", "scale-out-ports") for gpu in GPUS}
    assert told == {"unknown"}


NODES = "/sys/class/kfd/kfd/topology/nodes"


def partitions(whole: Files, of: int) -> dict[str, str]:
    """The KFD nodes of seven more partitions of one GPU, as the driver makes them: the number in location_id."""
    place = int(GPUS[of][5:7], 16) << 8
    mine = whole.files[f"{NODES}/{of + 2}/properties"].decode().replace("simd_count 1216", "simd_count 152")
    assert f"location_id {place}\n" in mine
    nodes = {
        f"{NODES}/{9 + number}/properties": mine.replace(f"location_id {place}", f"location_id {place + number}")
        for number in range(1, 8)
    }
    for number in range(1, 8):
        for index in range(8):
            name = f"io_links/{index}/properties"
            nodes[f"{NODES}/{9 + number}/{name}"] = whole.files[f"{NODES}/{of + 2}/{name}"].decode()
    return nodes


def test_faults_of_an_mi300x_are_told_of_it() -> None:
    """A divided GPU is one PCI function: its partitions in the KFD topology are no GPUs that were lost."""
    whole = files("mi300x-8")
    divided = whole.put(
        {
            at("mi300x-8", GPUS[3], "current_compute_partition"): "CPX\n",
            at("mi300x-8", GPUS[3], "current_memory_partition"): "NPS4\n",
            at("mi300x-8", GPUS[5], "ras/umc_err_count"): "ue: 1\nce: 0\n",
            **partitions(whole, 3),
        }
    )
    found, good = validated(divided), validated(whole)
    changed = {key: outcome for key, outcome in found.outcomes.items() if good.outcomes.get(key) != outcome}
    assert changed == {("gpu-partition", GPUS[3]): "warn", ("ecc-errors", GPUS[5]): "fail"}


def test_what_a_guest_with_gaudis_is_told_about_tests_that_do_not_run_there() -> None:
    note = HABANA.inside.note
    assert "ReportNCheck" in note
    assert "29000 MiB of 2 MiB pages" in note


# --- a hand-over of a GPU that others are joined with --------------------------------------------------------------


def beside(state: str, has: tuple[str, ...], peers: str | None = "xgmi") -> Host:
    """The MI300X host with a guest that has some GPUs. `peers` None: how they are joined was not read."""
    found = host("mi300x-8")
    gpus = tuple(
        structs.replace(
            gpu, peers=None if peers is None else tuple(structs.replace(one, kind=peers) for one in gpu.peers or ())
        )
        for gpu in found.gpus
    )
    return structs.replace(found, gpus=gpus, guests=(RunningGuest(name="tenant", state=state, devices=has),))


def test_a_guest_with_a_virtual_function_of_a_gpu_is_interrupted_too() -> None:
    part = f"{GPUS[5][:-1]}1"
    there = beside("running", (part,))
    whole = there.index.pci[GPUS[5]]
    virtual = structs.replace(whole, address=part, physfn=whole.address)
    pci = [one for one in there.pci if one != whole]
    there = structs.replace(there, pci=(*pci, structs.replace(whole, virtfns=(part,)), virtual))
    with pytest.raises(Refused, match=f"{GPUS[5]}: guest tenant has it .* a reset of {GPUS[0]} can interrupt it"):
        chosen(open_site(None, there)[0], there, Asked(devices=(GPUS[0],)))


@pytest.mark.parametrize(
    ("state", "peers", "refused"),
    [("running", "xgmi", True), ("paused", "xgmi", True), ("running", None, True), ("shut off", "xgmi", False),
     ("running", "pcie", False)],
)  # fmt: skip
def test_no_gpu_is_handed_over_whose_reset_can_interrupt_a_guest(state: str, peers: str | None, refused: bool) -> None:
    there = beside(state, (GPUS[5],), peers)
    site, _ = open_site(None, there)
    asked = Asked(devices=(GPUS[0],))
    if not refused:
        assert [target.address for target in chosen(site, there, asked)] == [GPUS[0]]
        return
    with pytest.raises(Refused, match=f"{GPUS[5]}: guest tenant has it .* a reset of {GPUS[0]} can interrupt it"):
        chosen(site, there, asked)
