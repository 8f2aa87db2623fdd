"""Days of an operator on a scratch root, judged from the documents and the files alone: what an intent says, what
libvirt's definitions say, and the bytes. Nothing here asks how hosttune plans or what its journal holds."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from applyroots import PREFERENCE, STATE, Root, copied

from hosttune.cli import run

Guest = dict[str, Any]
GIB = 1 << 30
POOL = "sys/devices/system/node/node{}/hugepages/hugepages-1048576kB/{}"
THP = "sys/kernel/mm/transparent_hugepage/enabled"
PLACES = (
    "/cpufreq/",
    "/pm_qos_",
    "/hugepages-",
    "proc/irq/",
    "msi_irqs",
    "irqbalance",
    "etc/default/grub",
    "boot/grub",
)


@dataclass(frozen=True)
class Answer:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.out)
        return document

    def ended(self, code: int = 0) -> dict[str, Any]:
        """Its document, once its exit code is the one that the contract has."""
        assert self.code == code, f"exit {self.code}, not {code}\n{self.out[-3000:]}\n{self.err}"
        return self.document


@dataclass(frozen=True)
class Places:
    """Where a definition puts a guest: what a guest keeps while nobody asks it for anything else."""

    uuid: str
    cpus: tuple[str, ...]  # in the order of the vCPUs
    emulator: str
    iothreads: tuple[str, ...]
    cells: tuple[tuple[str, str, str], ...]  # (vCPUs, KiB, node)
    page: str | None
    devices: tuple[tuple[str, str], ...]  # (on the host, in the guest)
    macs: tuple[str, ...]

    @property
    def memory(self) -> int:
        return sum(int(size) << 10 for _, size, _ in self.cells)

    @classmethod
    def of(cls, text: str) -> Places:
        top = ET.fromstring(text)
        nodes = {one.get("cellid"): one.get("nodeset", "") for one in top.iterfind("numatune/memnode")}
        page = top.find("memoryBacking/hugepages/page")
        return cls(
            uuid=top.findtext("uuid", ""),
            cpus=tuple(one.get("cpuset", "") for one in top.iterfind("cputune/vcpupin")),
            emulator=top.find("cputune/emulatorpin").get("cpuset", ""),  # type: ignore[union-attr]
            iothreads=tuple(one.get("cpuset", "") for one in top.iterfind("cputune/iothreadpin")),
            cells=tuple(
                (one.get("cpus", ""), one.get("memory", ""), nodes.get(one.get("id"), ""))
                for one in top.iterfind("cpu/numa/cell")
            ),
            page=None if page is None else page.get("size"),
            devices=tuple(sorted(_device(one) for one in top.iterfind("devices/hostdev"))),
            macs=tuple(one.get("address", "") for one in top.iterfind("devices/interface/mac")),
        )


def _device(hostdev: ET.Element) -> tuple[str, str]:
    return _address(hostdev.find("source/address")), _address(hostdev.find("address"))


def _address(found: ET.Element | None) -> str:
    assert found is not None
    domain, bus, slot, function = (int(found.get(key, "0"), 16) for key in ("domain", "bus", "slot", "function"))
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"


class Day:
    """One scratch root, the intent in its file, and what was asked for and is in force there."""

    def __init__(self, root: Root, pristine: Path) -> None:
        self.root, self.pristine = root, pristine
        self.file = root.path.parent / f"{root.path.name}.intent.json"
        self.intent: dict[str, Any] = {"version": 1, "guests": []}
        self.asked: dict[str, Guest] = {}  # every guest in force with its request, named today or not
        self.settings: dict[str, Any] = {}  # every setting in force by name
        self.log: list[str] = []

    def __call__(self, verb: str, *arguments: str) -> Answer:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run([verb, "--root", str(self.root.path), *arguments])
        return Answer(code, out.getvalue(), err.getvalue())

    def apply(self, *options: str) -> Answer:
        self.file.write_text(json.dumps(self.intent))
        return self("apply", "--intent", str(self.file), "--yes", "-o", "json", *options)

    def plan(self, *options: str) -> Answer:
        self.file.write_text(json.dumps(self.intent))
        return self("plan", "-f", str(self.file), "-o", "json", *options)

    def places(self) -> dict[str, Places]:
        """Every guest that libvirt defines here."""
        return {name: Places.of(text) for name, text in self.definitions().items()}

    def definitions(self) -> dict[str, str]:
        files = (self.root.path / ".hosttune/commands").glob("virsh-dumpxml-*")
        return {path.name.removeprefix("virsh-dumpxml-"): path.read_text() for path in files}

    def outside(self) -> dict[str, Any]:
        """Every file outside the state directory, with its inode and time."""
        tree = self.root.tree()
        return {name: entry for name, entry in tree.items() if not name.startswith(STATE)}

    def contents(self) -> dict[str, str | bytes | None]:
        """What every file outside the state directory says that is not what it was."""
        names = self.root.contents() if self.root.upper else self.root.differences(self.pristine)
        return {name: self.root.held(name) for name in names}

    def moved(self, chance: Random) -> dict[str, str]:
        """A file of a setting that is in force with a third value."""
        places = sorted(self.places().items())
        pinned = [cpu for _, one in places for cpu in one.cpus]
        nodes = sorted({node for _, one in places for _, _, node in one.cells})
        choices: list[dict[str, str]] = []
        if pinned and self.intent.get("profile") != "none":
            choices.append({PREFERENCE.format(chance.choice(pinned)): "balance_power\n"})
        for node in nodes:
            now = int(self.root.get(POOL.format(node, "nr_hugepages")))
            other = now + 7 if chance.random() < 0.5 else now // 2
            choices.append({POOL.format(node, name): f"{other}\n" for name in ("nr_hugepages", "free_hugepages")})
        if self.settings.get("thp"):
            value = self.settings["thp"]
            others = [f"[{one}]" if one == "madvise" else one for one in ("always", "madvise", "never")]
            choices.append({THP: " ".join(others) + "\n"})
            assert value != "madvise"
        return chance.choice(choices) if choices else {}

    def name_guest(self, guest: Guest) -> None:
        """Put a guest in the intent, in the place of the one of its name."""
        others = [one for one in self.intent["guests"] if one["name"] != guest["name"]]
        self.intent["guests"] = [*others, guest]

    def unname(self, name: str) -> None:
        self.intent["guests"] = [one for one in self.intent["guests"] if one["name"] != name]


# --- steps: each changes the intent or the machine and applies ---------------------------------------------------


def size(chance: Random) -> Guest:
    return {"memory": f"{chance.choice([16, 32, 48, 96])}GiB", "vcpus": chance.choice([4, 8, 12, 16])}


def devices(chance: Random) -> Guest:
    gpus, inside = chance.choice([0, 1, 1, 2]), chance.choice([None, None, {"profile": "1g.18gb", "count": 7}])
    others = {"nics": chance.choice([0, 0, 1]), "nvme": chance.choice([0, 0, 1])}
    return {"gpus": gpus, "mig": inside if gpus else None, **others}


class Walk:
    """A random sequence of steps. After each one everything that the contract says of it is checked."""

    def __init__(self, day: Day, seed: str) -> None:
        self.day, self.chance = day, Random(seed)
        self._names = count()

    def step(self) -> None:
        kinds = [
            "add",
            "memory",
            "vcpus",
            "devices",
            "setting",
            "profile",
            "absent",
            "prune",
            "drift",
            "unname",
            "killed",
        ]
        here = [one["name"] for one in self.day.intent["guests"]]
        if not here or len(self.day.asked) > 3:
            kinds = ["prune"] if len(self.day.asked) > 3 else ["add"]
        kind = self.chance.choice(kinds)
        self.day.log.append(kind)
        getattr(self, f"_{kind}")(here)

    def _add(self, here: Sequence[str]) -> None:
        guest = {"name": f"g{next(self._names)}", **size(self.chance), **devices(self.chance)}
        self.day.name_guest(guest)
        self._applied(changed={guest["name"]})

    def _edited(self, here: Sequence[str], fields: Guest) -> None:
        name = self.chance.choice(here)
        (old,) = [one for one in self.day.intent["guests"] if one["name"] == name]
        self.day.name_guest({**old, **fields})
        self._applied(changed={name} if {**old, **fields} != old else set())

    def _memory(self, here: Sequence[str]) -> None:
        self._edited(here, {"memory": size(self.chance)["memory"]})

    def _vcpus(self, here: Sequence[str]) -> None:
        self._edited(here, {"vcpus": size(self.chance)["vcpus"]})

    def _devices(self, here: Sequence[str]) -> None:
        self._edited(here, devices(self.chance))

    def _setting(self, here: Sequence[str]) -> None:
        known: list[tuple[str, list[Any]]] = [("thp", ["never", "always"]), ("numa_balancing", [0])]
        name, values = self.chance.choice(known)
        self.day.intent.setdefault("settings", {})[name] = self.chance.choice(values)
        self._applied()

    def _profile(self, here: Sequence[str]) -> None:
        self.day.intent["profile"] = self.chance.choice(["guest", "host", "none"])
        self._applied()

    def _absent(self, here: Sequence[str]) -> None:
        name = self.chance.choice(here)
        self.day.name_guest({"name": name, "state": "absent"})
        self._applied(gone={name})
        self.day.unname(name)

    def _prune(self, here: Sequence[str]) -> None:
        if here and self.chance.random() < 0.5:
            self.day.unname(self.chance.choice(here))
        if self.chance.random() < 0.5:
            self.day.intent.pop("settings", None)
        named = {one["name"] for one in self.day.intent["guests"]}
        self._applied("--prune", gone=set(self.day.asked) - named)

    def _unname(self, here: Sequence[str]) -> None:
        self.day.unname(self.chance.choice(here))
        self._applied()

    def _drift(self, here: Sequence[str]) -> None:
        """Somebody writes a third value."""
        before = self.day.contents()
        files = self.day.moved(self.chance)
        for name, text in files.items():
            self.day.root.put(name, text)
        if files:
            status = self.day("status", "-o", "json")
            assert status.ended(1)["drift"], files
        self._applied()
        if not any(one["name"] not in here for one in self.day.asked.values()):
            assert self.day.contents() == before, "drift did not go back to what is in force"

    def _killed(self, here: Sequence[str]) -> None:
        """An apply is killed somewhere: `recover` settles it, and the same apply then does what it would have done."""
        day, name = self.day, self.chance.choice(here)
        (old,) = [one for one in day.intent["guests"] if one["name"] == name]
        day.name_guest({**old, **size(self.chance)})
        day.file.write_text(json.dumps(day.intent))
        words = ["apply", "--root", str(day.root.path), "--intent", str(day.file), "--yes"]
        apply = subprocess.Popen(
            [sys.executable, "-m", "hosttune", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        with contextlib.suppress(subprocess.TimeoutExpired):
            apply.wait(self.chance.uniform(0.3, 1.5))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(apply.pid, signal.SIGKILL)
        apply.wait()
        day("recover", "-o", "json").ended()
        self._applied(changed={name})

    def _applied(self, *options: str, changed: Iterable[str] = (), gone: Iterable[str] = ()) -> None:
        day = self.day
        before = day.places()
        day.apply(*options).ended()
        named = {one["name"]: one for one in day.intent["guests"] if one.get("state") != "absent"}
        day.asked = {name: one for name, one in {**day.asked, **deepcopy(named)}.items() if name not in gone}
        wanted = deepcopy(day.intent.get("settings", {}))
        day.settings = wanted if "--prune" in options else {**day.settings, **wanted}
        after = day.places()
        assert set(after) == set(day.asked)
        for name in set(before) & set(after) - set(changed):
            assert after[name] == before[name], f"{name} moved"
        for name in set(before) & set(changed):
            assert after[name].uuid == before[name].uuid
        check_sizes(day.asked, after)
        check_apart(after)
        check_again(day, *options)


def check_sizes(asked: dict[str, Guest], after: dict[str, Places]) -> None:
    for name, guest in asked.items():
        assert len(after[name].cpus) == guest["vcpus"]
        assert after[name].memory == int(guest["memory"].removesuffix("GiB")) * GIB


def check_apart(after: dict[str, Places]) -> None:
    """No CPU and no device belongs to two guests."""
    for held in (
        [cpu for one in after.values() for cpu in one.cpus],
        [device for one in after.values() for device, _ in one.devices],
    ):
        assert len(held) == len(set(held)), held


def check_again(day: Day, *options: str) -> None:
    """The same intent again writes nothing."""
    before = day.outside()
    result = day.apply(*options).ended()
    after = day.outside()
    assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} == set()
    assert result["changed"] is False


def bare(day: Day) -> dict[str, Any]:
    """The intent that asks a bare host for what is in force here, each guest with the devices that it has."""
    kinds = {"03": "gpus", "12": "gpus", "02": "nics", "01": "nvme"}
    guests = []
    for name, places in sorted(day.places().items()):
        guest = {key: value for key, value in day.asked[name].items() if key not in kinds.values()} | {"gpus": []}
        for address, _ in places.devices:
            code = (day.pristine / "sys/bus/pci/devices" / address / "class").read_text().strip()[2:4]
            guest[kinds[code]] = [*guest.get(kinds[code], []), address]
        guests.append({**guest, "gpus": guest["gpus"] or 0})
    profile = {"profile": day.intent["profile"]} if "profile" in day.intent else {}
    return {"version": 1, "guests": guests, "settings": day.settings, **profile}


def check_settings(day: Day, where: Path) -> None:
    """The host's settings are those of one plan on a bare host with the guests of today where they are today.

    Which CPUs a guest gets there is not asked: what depends on them is compared CPU by CPU, with a guest or without.
    """
    with copied(day.pristine, where) as root:
        other = Day(root, day.pristine)
        other.intent = bare(day)
        other.apply().ended()
        here, there = ({k: v for k, v in one.contents().items() if "virsh-dumpxml-" not in k} for one in (day, other))
        same = loads(day) == loads(other)
        for name in sorted(here.keys() | there.keys()):
            if same or not any(part in name for part in PLACES):
                assert day.root.held(name) == other.root.held(name), f"{name}: here, then on a bare host"
        assert knobs(day) == knobs(other)


def loads(day: Day) -> object:
    """Which CPUs have guests, and how many pages of which size each node gives."""
    places = day.places().values()
    return {c for one in places for c in one.cpus}, sorted(
        (node, one.page, size) for one in places for _, size, node in one.cells
    )


def knobs(day: Day) -> object:
    """The values of CPUs with guests and of those without, and each pool against the pages of its node's guests."""
    places = list(day.places().values())
    pinned = {cpu for one in places for cpu in one.cpus}
    values: dict[tuple[str, bool], set[str]] = {}
    for knob in ("cpufreq/energy_performance_preference", "cpufreq/scaling_governor", "power/pm_qos_resume_latency_us"):
        for file in (day.root.path / "sys/devices/system/cpu").glob(f"cpu[0-9]*/{knob}"):
            cpu = file.relative_to(day.root.path / "sys/devices/system/cpu").parts[0].removeprefix("cpu")
            values.setdefault((knob, cpu in pinned), set()).add(file.read_text().strip())
    over = {}
    for node in (0, 1):
        pages = sum(int(size) >> 20 for one in places for _, size, at in one.cells if at == str(node) and one.page)
        over[node] = int(day.root.get(POOL.format(node, "nr_hugepages"))) - pages
    return values, over


def check_back(day: Day) -> None:
    """Revert gives back every byte."""
    day("revert", "--yes", "-o", "json").ended()
    assert day.contents() == {}
    assert day("revert", "--yes", "-o", "json").ended()["changed"] is False
