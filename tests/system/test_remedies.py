"""Remedies work: in each state the command that its text names is run as it stands, and the state is better.

`make test` takes half of the states, `make lab-full` (rest) all.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import applyroots
import pytest
from applyroots import GPU, OTHER_GPU, PREFERENCE, STATE, Cli, Root, applied, copied
from handovers import record
from xmledits import edited

from hosttune.cli import run
from hosttune.journal.register import record_devices

plan = applyroots.plan
cli = applyroots.cli

COMMANDS = ".hosttune/commands"
HEAD = "version: 1\nguests:\n"
ROWS = {name: f"  - {{name: {name}, gpus: [\"{gpu}\"], memory: 32GiB, networks: [{{network: default}}]}}\n"
        for name, gpu in (("a", GPU), ("b", OTHER_GPU))}  # fmt: skip
BOTH = HEAD + "".join(ROWS.values())
FOREIGN = """<domain type='kvm'><name>a</name><uuid>11111111-2222-3333-4444-555555555555</uuid>
<memory unit='GiB'>4</memory><vcpu>4</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os></domain>
"""


class World:
    """A scratch root with an intent of two guests, and what people and virsh do there."""

    def __init__(self, cli: Cli, folder: Path) -> None:
        self.cli, self.root, self.intent = cli, cli.root, folder / "intent.yaml"
        self.write("a", "b")

    def write(self, *names: str, **changed: str) -> None:
        """Write the intent of these guests, of all without names; `changed`: their memory."""
        names = names or tuple(ROWS)
        rows = (ROWS[name].replace("32GiB", changed.get(name, "32GiB")) for name in names)
        self.intent.write_text(HEAD + "".join(rows))

    def apply(self) -> None:
        if (self.root.path / STATE / "transactions").exists() and self.intent.read_text() == BOTH:
            return  # the root was made so
        assert self.run("apply", "--intent", str(self.intent), "--yes")[0] == 0

    def run(self, *words: str) -> tuple[int, str]:
        """Exit code and all that is printed, with one blank between words."""
        verb, *rest = (str(self.intent) if word == "FILE" else word for word in words)
        inner = [rest.pop(0)] if verb == "handover" and rest and not rest[0].startswith("-") else []
        where = self.root.path
        code = run([verb, *inner, *rest, "--root", str(where)])
        said = self.cli._capsys.readouterr()
        return code, " ".join((said.out + said.err).split())

    def remedy(self, line: str) -> None:
        """Run a command line as it stands: hosttune's with the place and without a question, virsh's by a stand-in."""
        words = shlex.split(line)
        if words[0] == "virsh":
            self.virsh(*words[1:])
            return
        if words[0] == "rm":
            for path in words[1:]:
                (self.root.path / path.lstrip("/")).unlink()
            code, said = self.run("status")
            assert (code, "unknown" in said) == (0, False), said
            return
        asks = words[1] in ("apply", "revert") and "--dry-run" not in words
        code, said = self.run(*words[1:], *(["--yes"] if asks else []))
        assert code in (0, 1), said
        self.said = said

    def virsh(self, verb: str, name: str, other: str = "") -> None:
        commands = self.root.path / COMMANDS
        gone = {
            "shutdown": commands / f"virsh-domstate-{name}",
            "managedsave-remove": self.root.path / f"var/lib/libvirt/qemu/save/{name}.save",
            "snapshot-delete": self.root.path / f"var/lib/libvirt/qemu/snapshot/{name}/{other}.xml",
        }
        if verb == "domrename":
            text = edited((commands / f"virsh-dumpxml-{name}").read_text(), "name", other)
            (commands / f"virsh-dumpxml-{name}").unlink()
            self.root.put(f"{COMMANDS}/virsh-dumpxml-{other}", text)
        else:
            gone[verb].unlink()

    # --- what happens ---

    def drifts(self) -> None:
        self.apply()
        self.root.put(PREFERENCE.format(3), "balance_power\n")

    def pages_drift(self) -> None:
        self.apply()
        for name in ("nr", "free"):
            self.root.put(applyroots.PAGES.replace("/nr_", f"/{name}_"), "3\n")

    def is_undefined(self) -> None:
        self.apply()
        (self.root.path / COMMANDS / "virsh-dumpxml-a").unlink()

    def is_edited(self) -> None:
        self.apply()
        path = f"{COMMANDS}/virsh-dumpxml-a"
        self.root.put(path, edited(self.root.get(path), "cputune/vcpupin[@vcpu='0']", {"cpuset": "9"}))

    def runs(self) -> None:
        self.apply()
        self.root.put(f"{COMMANDS}/virsh-domstate-a", "running\n")

    def runs_and_shrinks(self) -> None:
        self.runs()
        self.write("a", "b", a="16GiB")

    def is_saved(self) -> None:
        self.apply()
        self.root.put("var/lib/libvirt/qemu/save/a.save", "memory")

    def has_a_snapshot(self) -> None:
        self.apply()
        self.root.put("var/lib/libvirt/qemu/snapshot/a/first.xml", "<domainsnapshot/>")

    def is_cut(self) -> None:
        self.apply()
        path = f"{STATE}/transactions/000001.jsonl"
        self.root.put(path, "".join(line + "\n" for line in self.root.get(path).split("\n")[:7]))

    def is_cut_at_its_end(self) -> None:
        self.apply()
        path = f"{STATE}/transactions/000001.jsonl"
        self.root.put(path, self.root.get(path).rpartition("\n")[0] + "\n")

    def other_was_faster(self) -> None:
        assert self.run("plan", "-f", "FILE", "--out", str(self.intent.parent / "old.json"))[0] == 0
        self.write("a")
        self.apply()

    def swapped(self) -> None:
        self.apply()
        for names in (("a", "x"), ("b", "a"), ("x", "b")):
            self.virsh("domrename", *names)

    def renamed(self) -> None:
        self.apply()
        self.virsh("domrename", "a", "z")

    def loses_a_device(self) -> None:
        self.apply()
        self.write("b", b="32GiB")
        text = self.intent.read_text()
        self.intent.write_text(text.replace(f'["{OTHER_GPU}"]', "1").replace("{name: b", "{name: c"))
        self.apply()
        taken = json.loads(self.cli("plan", "-f", str(self.intent), "-o", "json")[1])["guests"][0]["devices"][0]
        (self.root.path / "sys/bus/pci/devices" / taken["address"]).unlink()

    def of_options(self) -> None:
        words = ("--gpus", "1", "--network", "default", "--out", str(self.intent.parent / "own.json"))
        assert self.run("plan", *words)[0] == 0
        assert self.run("apply", str(self.intent.parent / "own.json"), "--yes")[0] == 0

    def is_foreign(self) -> None:
        self.root.put(f"{COMMANDS}/virsh-dumpxml-a", FOREIGN)

    def left_alone(self) -> None:
        self.drifts()
        assert self.run("revert", "--yes")[0] == 1

    def quarantined(self) -> None:
        folder = self.root.path / STATE
        folder.mkdir(parents=True, mode=0o700)
        record_devices(str(folder), (record(GPU, state="quarantined"),))

    def state_is_lost(self) -> None:
        self.apply()
        (self.root.path / STATE).rename(self.root.path / "var/lib/lost")


@dataclass(frozen=True)
class State:
    """Something that has happened, what is asked then with which exit code, and the remedy that is told.

    `again`: words that are asked again; None: the remedy itself does what was wanted.
    """

    happens: Callable[[World], None]
    ask: str
    code: int
    remedy: str  # a pattern in what is printed, blanks counting as one
    again: bool = True
    lack: str = ""  # what must not be told any more, where the exit code stays


APPLY = "apply --intent FILE --yes"
STATES = {
    "status: a setting has drifted": State(World.drifts, "status", 1, "hosttune apply --intent FILE"),
    "status: pages have drifted": State(World.pages_drift, "status", 1, "hosttune apply --intent FILE"),
    "status: a guest is undefined": State(World.is_undefined, "status", 1, "hosttune apply --intent FILE"),
    "status: a definition is edited": State(World.is_edited, "status", 1, "hosttune apply --intent FILE"),
    "status: an apply was cut": State(World.is_cut, "status", 1, "hosttune recover"),
    "plan: an apply was cut": State(World.is_cut, "plan -f FILE", 0, "hosttune recover", lack="was not finished"),
    "plan: an apply was cut at its end": State(World.is_cut_at_its_end, "plan -f FILE", 2, "hosttune recover"),
    "apply: an apply was cut": State(World.is_cut_at_its_end, APPLY, 3, "hosttune recover"),
    "revert: an apply was cut": State(World.is_cut, "revert --yes", 3, "hosttune recover"),
    "revert: a setting is somebody else's": State(
        World.drifts, "revert --yes", 1, r"left alone \(--force reverts it\)", lack="left alone"
    ),
    "revert: a guest runs": State(World.runs, "revert --yes", 3, r"virsh shutdown \w+"),
    "revert --guest: it runs": State(World.runs, "revert --guest a --yes", 3, "virsh shutdown a"),
    "revert --guest: it is saved": State(World.is_saved, "revert --guest a --yes", 3, "virsh managedsave-remove a"),
    "revert --guest: it has a snapshot": State(
        World.has_a_snapshot, "revert --guest a --yes", 3, "virsh snapshot-delete a first"
    ),
    "apply: a running guest shrinks": State(
        World.runs_and_shrinks, APPLY, 0, "virsh shutdown a, then hosttune apply --start",
        lack="still runs on it",
    ),
    "apply: no plan is saved": State(World.write, "apply --yes", 2, "hosttune plan -f FILE"),
    "apply: none, and there is an intent": State(
        World.write, "apply --yes", 2, "hosttune apply --intent FILE", again=False
    ),
    "apply: another operator was faster": State(
        World.other_was_faster, "apply OLD --yes", 3, "hosttune apply --intent FILE", again=False
    ),
    "apply --prune: of which intent": State(World.apply, "apply --prune --yes", 2, "--intent FILE", again=False),
    "plan: names are swapped": State(World.swapped, "plan -f FILE", 2, r"virsh domrename.*?(?=; then)"),
    "plan: a guest is renamed": State(World.renamed, "plan -f FILE", 2, r"virsh domrename z a"),
    "plan: a device is gone": State(
        World.loses_a_device, "plan -f FILE", 1, "hosttune plan -f FILE --replan c", again=False
    ),
    "plan: another guest of options": State(
        World.of_options, "plan --gpus 2 --network default", 2, r"--name gpu-guest(?= changes)", again=False
    ),
    "plan: one more guest of options": State(
        World.of_options, "plan --gpus 2 --network default", 2, r"--name OTHER(?= plans)", again=False
    ),
    "plan: a guest that is not hosttune's": State(
        World.is_foreign, "plan -f FILE", 2, "hosttune plan --adopt a", again=False
    ),
    "plan: the state is lost": State(World.state_is_lost, "plan -f FILE", 2, "rm [^,]+", again=False),
    "validate: a setting has drifted": State(
        World.drifts, "validate", 1, "hosttune apply --intent FILE", lack="settings-in-force host: warn"
    ),
    "validate: left alone by a revert": State(
        World.left_alone, "validate", 0, "hosttune revert --force", lack="hosttune revert --force"
    ),
    "status: left alone by a revert": State(World.left_alone, "status", 1, "hosttune revert --force"),
    "status: names are swapped": State(World.swapped, "status", 1, r"virsh domrename.*?(?=; then)"),
    "status: a guest is renamed": State(World.renamed, "status", 1, r"virsh domrename z a"),
    "status: a device is gone": State(World.loses_a_device, "status", 1, r"hosttune revert --guest \w+"),
    "revert: a guest is renamed": State(World.renamed, "revert --yes", 3, r"virsh domrename z a"),
    "revert --guest: names are swapped": State(
        World.swapped, "revert --guest a --yes", 3, r"virsh domrename.*?(?=; then)"
    ),
    "validate: a guest is renamed": State(
        World.renamed, "validate", 1, r"virsh domrename z a", lack="settings-in-force guest:a: fail"
    ),
    "apply: a device is between two tenants": State(
        World.quarantined, APPLY, 1, r"hosttune handover release \S+ --why \w+"
    ),
    "validate: a device is between two tenants": State(
        World.quarantined, "validate", 0, r"hosttune handover release \S+ --why \w+", lack="handover release"
    ),
    "history: of which transaction": State(World.apply, "history --intent", 2, "hosttune history", again=False),
}  # fmt: skip


BARE = (World.write, World.other_was_faster, World.of_options, World.is_foreign, World.quarantined)


@pytest.fixture(scope="module")
def both(pristine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both guests are in force there."""
    return applied(pristine, tmp_path_factory.mktemp("both"), BOTH)


@pytest.fixture
def root(name: str, pristine: Path, both: Path, tmp_path: Path) -> Iterator[Root]:
    with copied(pristine if STATES[name].happens in BARE else both, tmp_path / "root") as root:
        yield root


@pytest.mark.sweep(most=15)
@pytest.mark.parametrize("name", STATES)
def test_the_remedy_of_the_state_works(name: str, cli: Cli, tmp_path: Path) -> None:
    state, world = STATES[name], World(cli, tmp_path)
    state.happens(world)
    ask = state.ask.replace("OLD", str(tmp_path / "old.json")).split()
    code, said = world.run(*ask)
    assert code == state.code, said
    told = re.search(state.remedy, said)
    assert told is not None, said
    line = (
        told[0].replace("OTHER", "other").replace("NAME", "c" if "device is gone" in name else "a").replace("BDF", GPU)
    )
    for part in re.split(r"; |, then ", line):
        if (option := re.search(r"--[a-z].*", part)) and not part.startswith(("hosttune", "virsh")):
            part = shlex.join(
                ["hosttune", *ask[: 2 if ask[0] == "handover" else None], *option[0].rstrip(")").split()[:2]]
            )
            part = part.replace("--force reverts", "--force").replace(" --yes", "")
        world.remedy(part.replace("FILE", str(world.intent)))
    if state.again:
        after, then = world.run(*ask)
        assert after < code or (after == code and state.lack and state.lack not in then), then
