"""The states of devices between tenants: each row of the table in docs/validate.md is one case here, a small change of
the example host, and each case a row."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from applyroots import BOOT_ID, EXAMPLE, STATE, Root, copied, unpack
from fabricroots import CONFIG, activate, with_mode

from hosttune.cli import run
from hosttune.discovery.looks import LOGS
from hosttune.discovery.recording import write_capture
from hosttune.machine.opening import open_root
from hosttune.machine.scratch import Scratch
from hosttune.model.validation import Validation, verdict_of
from hosttune.settings.drivers import Driver
from hosttune.validating import ValidationRequest, validate

DOCS = Path(__file__).parents[3] / "docs" / "validate.md"
SMI, LOG, GUESTS = (f".hosttune/commands/{name}" for name in ("nvidia-smi-q-x", "kernel-log", "virsh-list"))
GPU, NIC, DRIVE = "0000:18:00.0", "0000:19:00.0", "0000:1a:00.0"
UUID = "GPU-00000000-0000-4000-8000-000000000018"
OF_THE_HOST = ("cpu-frequency", "numa-balancing", "monitoring-baseline", "irqbalance")  # of no device
INSTANCE = "<mig_device><index>0</index><gpu_instance_id>1</gpu_instance_id></mig_device>"
OFF = "shut off"
XID = "NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


class State(Root):
    """The base, and what happens to it, one sentence a method."""

    def validated(self) -> Validation:
        return validate(Scratch(str(self.path)), ValidationRequest()).validation

    def bound(self, address: str = GPU, driver: str | None = "vfio-pci") -> State:
        Driver.of(address).write(Scratch(str(self.path)), driver)
        return self

    def smi(self, pattern: str, new: str) -> State:
        """Change what the driver reports, in the first place that matches: that of GPU."""
        self.put(SMI, re.sub(pattern, new, self.get(SMI), count=1, flags=re.DOTALL))
        return self

    def runs(self, name: str, state: str = "running") -> State:
        bus = GPU.split(":")[1]
        for path in (self.path / ".hosttune/commands").glob("virsh-dumpxml-*"):
            path.unlink()
        self.put(GUESTS, f" Id   Name   State\n----\n {'1' if state == 'running' else '-'}   {name}   {state}\n")
        self.put(
            f".hosttune/commands/virsh-dumpxml-{name}",
            f"<domain type='kvm'><name>{name}</name><memory>1048576</memory><vcpu>2</vcpu><devices>"
            "<hostdev mode='subsystem' type='pci' managed='no'><source>"
            f"<address domain='0x0000' bus='0x{bus}' slot='0x00' function='0x0'/>"
            "</source></hostdev></devices></domain>",
        )
        return self

    def looked(self) -> State:
        self.validated()
        return self

    def completed(self, *, every: bool = False) -> State:
        for _ in range(8 if every else 1):
            self.smi("<state>In Progress</state>\\s*<status>N/A<", "<state>Completed</state><status>Success<")
        return self

    def mode(self, mode: int) -> State:
        with_mode(self.path, mode)
        return self

    def active(self, partition: int = 8) -> State:
        activate(self.path, partition)
        return self

    def after_a_guest(self) -> State:
        return self.looked().bound().runs("alice").looked().runs("alice", OFF)

    def logged(self, name: str) -> State:
        """What libvirt writes when a guest starts."""
        device = json.dumps({"driver": "vfio-pci", "host": GPU, "id": "hostdev0"}, separators=(",", ":"))
        text = f"2099-01-01 10:00:00.123+0000: starting up libvirt version: 9.0.0\n-device '{device}' \\\n"
        self.put(f"{LOGS[1:]}/{name}.log", text)
        return self

    def applied(self) -> State:
        intent = {
            "version": 1,
            "profile": "none",
            "guests": [{"name": "a", "gpus": [GPU], "vcpus": 2, "memory": "1GiB", "hugepages": "none"}],
        }
        self.put("intent.json", json.dumps(intent))
        words = ("--intent", str(self.path / "intent.json"), "--yes", "--no-guests")
        assert run(["apply", "--root", str(self.path), *words]) == 0
        return self

    def lost(self) -> State:
        shutil.rmtree(self.path / STATE)
        return self

    def swapped(self) -> State:
        kept = json.loads(self.get(f"{STATE}/gpus.json"))
        kept[GPU]["look"]["device"] = "10de:2330:10de:16c1"
        self.put(f"{STATE}/gpus.json", json.dumps(kept))
        return self

    def log(self, *lines: str) -> State:
        self.put(
            LOG, json.dumps({"since": 0.0, "source": "dmesg", "links": True, "lines": [[9.0, one] for one in lines]})
        )
        return self

    def rebooted(self) -> State:
        self.put(BOOT_ID, "11111111-2222-4333-8444-555555555555\n")
        return self.log()

    def dead(self) -> State:
        path = self.path / "sys/bus/pci/devices" / GPU / "config"
        path.unlink()
        path.write_bytes(b"\xff" * 256)
        return self

    def mig(self, pending: str) -> State:
        self.smi("<current_mig>Disabled</current_mig>\\s*<pending_mig>Disabled<",
                 f"<current_mig>Enabled</current_mig><pending_mig>{pending}<")  # fmt: skip
        return self.smi("<mig_devices>.*?</mig_devices>", f"<mig_devices>{INSTANCE}</mig_devices>")


Change = Callable[[State], object]

CASES: dict[str, Change] = {
    "mode 0: on `nvidia`, registered": lambda one: one.mode(0).completed(every=True),
    "mode 0: on `nvidia`, in progress": lambda one: one.mode(0),
    "mode 1: on `nvidia`, in no active partition": lambda one: one,
    "mode 1: on `nvidia`, in an active partition, registered": lambda one: one.active().completed(),
    "mode 1: on `nvidia`, in an active partition, in progress": lambda one: one.active(),
    "mode 2: on `nvidia`, in no active partition": lambda one: one.mode(2),
    "mode not known: on `nvidia`, in progress": lambda one: (one.path / CONFIG).unlink(),
    "on `vfio-pci`, idle, looked at before": lambda one: one.looked().bound(),
    "on `vfio-pci`, idle, looked at by `hosttune apply`": lambda one: one.applied(),
    "on `vfio-pci`, looked at before a reboot, no guest since": lambda one: one.looked().bound().rebooted(),
    "on `vfio-pci`, never looked at": lambda one: one.bound(),
    "on `vfio-pci`, looked at, state directory lost": lambda one: one.looked().bound().lost(),
    "on `vfio-pci`, another GPU than the one looked at": lambda one: one.looked().bound().swapped(),
    "on `vfio-pci`, an XID 79 in the last look": lambda one: one.log(XID).looked().rebooted().bound(),
    "on `vfio-pci`, its configuration space reads ff": lambda one: one.looked().bound().dead(),
    "in the first guest since the look, in its partition": lambda one: one.looked().bound().runs("alice").active(),
    "in the first guest since the look, in no active partition": lambda one: one.looked().bound().runs("alice"),
    "on `vfio-pci`, that guest was seen and has ended": lambda one: one.after_a_guest(),
    "on `vfio-pci`, a guest has had it by libvirt's log": lambda one: one.looked().bound().logged("alice"),
    "in the second guest since the look": lambda one: one.after_a_guest().runs("bob").active(),
    "on `vfio-pci`, looked at since that guest": lambda one: (
        one.after_a_guest().bound(driver="nvidia").looked().bound()
    ),
    "MIG on, with instances, on `nvidia`": lambda one: one.mig("Enabled"),
    "MIG on, off with the next reset, on `nvidia`": lambda one: one.mig("Disabled"),
    "a NIC and a drive on `vfio-pci`": lambda one: one.bound(NIC).bound(DRIVE),
}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(EXAMPLE, tmp_path_factory.mktemp("base") / "root")


@pytest.fixture
def one(pristine: Path, tmp_path: Path) -> Iterator[State]:
    with copied(pristine, tmp_path / "root") as root:
        yield State(root.path, root.lower, root.upper)


def rows() -> dict[str, tuple[str, dict[str, str]]]:
    """The table in the docs: the verdict and the outcomes of each state."""
    text = DOCS.read_text().partition("## States between tenants")[2].partition("\n## ")[0]
    cells = (line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| "))
    return {name: (verdict, dict(re.findall(r"`([a-z-]+)`: ([a-z]+)", told))) for name, verdict, told in cells}


def test_each_row_is_a_case_and_each_case_a_row() -> None:
    assert list(rows())[1:] == list(CASES)
    assert len(CASES) <= 24


@pytest.mark.parametrize("name", CASES)
def test_a_state_has_the_verdict_of_its_row(name: str, one: State) -> None:
    verdict, told = rows()[name]
    CASES[name](one)
    found = one.validated()
    of_devices = [r for r in found.results if r.check not in OF_THE_HOST and not r.check.startswith("guest-")]
    assert verdict_of(of_devices) == verdict, [r for r in of_devices if r.outcome in ("fail", "unknown", "warn")]
    for check, outcome in told.items():
        mine = {r.subject: r.outcome for r in of_devices if r.check == check}
        first = next(mine[name] for name in (GPU, NIC, DRIVE, "alice", "bob") if name in mine)
        assert first == outcome, check
    if verdict == "unknown" and "ecc-errors" in told:
        assert f"7 of 8 GPUs looked at now; 1 {WHY[name]}" in (found.looked or "")
        assert f"hosttune handover --device {GPU}" in (found.looked or "")


WHY = {
    "on `vfio-pci`, never looked at": "never looked at",
    "on `vfio-pci`, looked at, state directory lost": "never looked at",
    "on `vfio-pci`, another GPU than the one looked at": "another GPU is there since the look of",
    "on `vfio-pci`, that guest was seen and has ended": "not looked at since guest alice",
    "on `vfio-pci`, a guest has had it by libvirt's log": "not looked at since guest alice",
    "in the second guest since the look": "not looked at since guest alice",
}


def test_a_capture_has_the_look_and_the_starts_of_guests(one: State, tmp_path: Path) -> None:
    """As `hosttune capture` records them of a machine: answers of queries, since the state is not in a capture."""
    one.looked().bound()
    one.put(".hosttune/commands/kept-gpus", one.get(f"{STATE}/gpus.json"))
    one.put(".hosttune/commands/guest-runs", "[]")
    (one.path / ".hosttune/scratch").unlink()
    write_capture(open_root(str(one.path)), str(tmp_path / "again.tar.gz"))
    assert ecc(one.path) == ecc(tmp_path / "again.tar.gz") == ("pass", True)
    (one.path / ".hosttune/commands/guest-runs").unlink()
    assert ecc(one.path) == ("unknown", True)


def ecc(place: Path) -> tuple[str, bool]:
    """The outcome of a captured GPU's ECC errors, and whether a look is named."""
    found = validate(open_root(str(place)), ValidationRequest()).validation.results
    (told,) = (result for result in found if (result.check, result.subject) == ("ecc-errors", GPU))
    return told.outcome, "looked at" in (told.actual or "")
