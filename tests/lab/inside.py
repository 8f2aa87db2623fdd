"""Run inside the emulated host, from the shared working tree, by its own Python: what ends in the middle.

inside.py cuts PLAN NUMBER   apply the plan so often, each time killed at another point, then recover; JSON
inside.py pause PLAN POINT   apply, and stand still for good at the first point that begins so; PAUSED says so
inside.py settle              take back what is applied, past the guard that looks for who uses it; JSON
inside.py hold GROUP BDF     have a device open by way of VFIO, as QEMU has, and sleep
inside.py running             each QEMU that runs, as hosttune reads it: a guest by its name; JSON
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAUSED = "/run/hosttune-test-paused"
# linux/vfio.h
_VFIO = ord(";") << 8
_SET_IOMMU, _SET_CONTAINER, _GET_DEVICE = _VFIO | 102, _VFIO | 104, _VFIO | 106
_TYPE1 = 1
_VALUES = (
    "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/proc/sys/kernel/numa_balancing",
    "/proc/sys/vm/compaction_proactiveness",
    "/sys/devices/system/cpu/cpu2/power/pm_qos_resume_latency_us",
)


def main(arguments: list[str]) -> None:
    """See the module."""
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    if arguments[0] == "hold":
        _hold(arguments[1], arguments[2])
    elif arguments[0] == "running":
        print(json.dumps(_running()))
    elif arguments[0] == "settle":
        print(json.dumps(_settle()))
    elif arguments[0] == "cuts":
        print(json.dumps(_cuts(arguments[1], int(arguments[2]))))
    else:
        _apply(arguments[1], lambda count, what: what.startswith(arguments[2]), _stand_still)


# --- a holder ------------------------------------------------------------------------------------------------


def _hold(group: str, address: str) -> None:
    container, opened = os.open("/dev/vfio/vfio", os.O_RDWR), os.open(f"/dev/vfio/{group}", os.O_RDWR)
    fcntl.ioctl(opened, _SET_CONTAINER, struct.pack("i", container))
    fcntl.ioctl(container, _SET_IOMMU, _TYPE1)
    fcntl.ioctl(opened, _GET_DEVICE, address.encode() + b"\0")
    print("held", flush=True)
    time.sleep(3600)


def _running() -> dict[str, Any]:
    import msgspec

    from hosttune.discovery import discover
    from hosttune.discovery.running import read_running
    from hosttune.domain.reader import read_domain
    from hosttune.domain.running import definition
    from hosttune.machine.live import LiveMachine
    from hosttune.machine.reader import Reader

    host, machine = discover(LiveMachine()), LiveMachine()
    guests = [read_domain(definition(running, host)) for _, running in read_running(Reader(machine)) or ()]
    return {str(guest.name): msgspec.to_builtins(guest) for guest in guests}


def _settle() -> dict[str, str]:
    """Outcome by setting, as of a revert whose guard looked just before somebody opened a device."""
    from hosttune.machine.live import LiveMachine
    from hosttune.transaction.rollback import settle

    site = _site(LiveMachine(), None)
    newest = site.transactions()[-1]  # earlier ones are taken back: that left journals of their own
    journal = site.store.reopen(newest)
    undone, _ = settle(site.system, journal, newest, lambda text: None, same_boot=True)
    journal.close()
    records = {record.step: f"{record.kind} {record.target}" for record in newest.records}
    return {records[step]: made.outcome for step, made in undone.items()}


# --- cuts ----------------------------------------------------------------------------------------------------


Chosen = Callable[[int, str], bool]  # the number of a point, what it is about
End = Callable[["Points", str], None]


class Points:
    """Counts what it passes, in this process and in its children; at the one that `chosen` says it calls `end`."""

    def __init__(self, chosen: Chosen, end: End) -> None:
        self.engine = os.getpid()
        self._chosen, self._end = chosen, end
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    @property
    def count(self) -> int:
        """How many were passed."""
        return int(struct.unpack_from("q", self._memory)[0])

    def reach(self, what: str) -> None:
        """One more."""
        struct.pack_into("q", self._memory, 0, self.count + 1)
        if self._chosen(self.count, what):
            self._end(self, what)

    def sync(self, fd: int) -> None:
        """The journal's fsync: a point before, when the line may be lost, and one after."""
        self.reach("journal, not synced")
        os.fsync(fd)
        self.reach("journal, synced")


def _kill(points: Points, what: str) -> None:
    os.kill(points.engine, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _stand_still(points: Points, what: str) -> None:
    Path(PAUSED).write_text(what)
    time.sleep(3600)


def _with_points(points: Points) -> Any:
    """This machine, each change of which is a point before and a point after."""
    from hosttune.machine.live import LiveMachine

    def changing(name: str) -> Callable[..., Any]:
        original = getattr(LiveMachine, name)

        def change(self: LiveMachine, *arguments: Any, **named: Any) -> Any:
            points.reach(f"before {name} {arguments[0]}")
            answer = original(self, *arguments, **named)
            points.reach(f"after {name} {arguments[0]}")
            return answer

        return change

    names = ("write", "write_register", "replace", "remove", "change", "tell")
    return type("CutShort", (LiveMachine,), {name: changing(name) for name in names})()


def _site(system: Any, points: Points | None) -> Any:
    from hosttune.journal import Store
    from hosttune.machine.system import state_directory
    from hosttune.transaction.site import Site

    store = Store(state_directory(), sync=points.sync) if points else Store(state_directory())
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return Site(system=system, store=store, boot_id=boot_id, hostname="lab-host")


def _apply(path: str, chosen: Chosen, end: End, host: Any = None) -> tuple[int, int]:
    """(exit code, points passed) of an apply that may come to an `end`."""
    from hosttune.discovery import discover
    from hosttune.machine.live import LiveMachine
    from hosttune.model.plan import Plan
    from hosttune.transaction import ApplyOptions, apply_plan

    found = discover(LiveMachine()) if host is None else host
    points = Points(chosen, end)
    plan = Plan.from_json(Path(path).read_bytes(), where=path)
    site = _site(_with_points(points), points)
    _, code = apply_plan(site, plan, ApplyOptions(), lambda: found, lambda todo: True, lambda text: None)
    return code, points.count


def _cuts(path: str, samples: int) -> dict[str, Any]:
    """So many cuts, evenly spread: where each was, what it left unfinished, how it was settled, what then differed."""
    from hosttune.discovery import discover
    from hosttune.machine.live import LiveMachine
    from hosttune.transaction import recover, revert

    host = discover(LiveMachine())
    before = _state()
    code, count = _apply(path, lambda count, what: False, _kill, host)
    changed = _difference(before, _state())
    reverted = revert(_site(LiveMachine(), None), lambda text: None)[1]
    whole = {"apply": code, "points": count, "changed": changed, "revert": reverted}
    cuts = []
    for number in range(samples):
        at = 1 + number * (count - 1) // (samples - 1)
        cut = _cut(path, at, host)
        site = _site(LiveMachine(), None)
        states = [one.state for one in site.transactions() if one.is_open]
        result, settled = recover(site, lambda text: None)
        settled += revert(_site(LiveMachine(), None), lambda text: None)[1]  # one that was cut off after its last line
        outcomes = sorted({entry.outcome for entry in result.entries})
        left = _difference(before, _state())
        cuts.append({**cut, "open": states, "recover": settled, "outcomes": outcomes, "left": left})
    return {**whole, "left": _difference(before, _state()), "cuts": cuts}


def _cut(path: str, at: int, host: Any) -> dict[str, Any]:
    """An apply in a child that ends itself at a point."""
    note = Path("/run/hosttune-test-cut")
    note.unlink(missing_ok=True)

    def end(points: Points, what: str) -> None:
        note.write_text(what)
        _kill(points, what)

    child = os.fork()
    if child == 0:
        try:
            _apply(path, lambda count, what: count == at, end, host)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    where = note.read_text() if note.exists() else ""
    note.unlink(missing_ok=True)
    return {"at": at, "where": where, "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None}


def _state() -> dict[str, str]:
    """What a plan of the tests may change, by name: values, drivers, files, definitions of guests."""
    found = {path: Path(path).read_text() for path in _VALUES}
    for device in Path("/sys/bus/pci/devices").iterdir():
        driver = device / "driver"
        found[f"driver {device.name}"] = os.readlink(driver).rpartition("/")[2] if driver.is_symlink() else ""
        found[f"override {device.name}"] = (device / "driver_override").read_text()
        # Control registers of capabilities; status bits come and go, and the header's have their own writers.
        found[f"acs {device.name}"] = _acs(device.name)
    for queue in Path("/sys/block").glob("nvme*/queue/rq_affinity"):
        found[str(queue)] = queue.read_text()
    for top in ("/etc", "/var/lib/hosttune/guests"):
        for folder, _, names in os.walk(top):
            for name in names:
                file = Path(folder) / name
                text = os.readlink(file) if file.is_symlink() else hashlib.sha256(file.read_bytes()).hexdigest()
                found[str(file)] = text
    return found


def _acs(address: str) -> str:
    asked = subprocess.run(
        ("setpci", "-s", address, "ECAP_ACS+6.w"), capture_output=True, text=True, timeout=20, check=False
    )
    return asked.stdout.strip()


def _difference(one: dict[str, str], other: dict[str, str]) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


if __name__ == "__main__":
    main(sys.argv[1:])
