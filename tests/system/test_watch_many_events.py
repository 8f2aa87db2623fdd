"""10,000 random events of one agent, a real process: no final state is missed, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import psutil
from applyroots import Root, root
from system.test_watch_agent import until, value

__all__ = ["root"]  # a fixture
GPUS = ("0000:18:00.0", "0000:41:00.0", "0000:9a:00.0")
EVENTS, BATCHES = 10_000, 10
WIDTH = "sys/bus/pci/devices/{}/current_link_width"
DRIVER = "sys/bus/pci/devices/{}/driver"
LOOKS = tuple(f'hosttune_watch_looks_total{{cause="{one}"}}' for one in ("event", "interval"))
OMITTED = "hosttune_series_omitted"
RECEIVED = 'hosttune_watch_events_total{source="replay"}', 'hosttune_watch_events_lost_total{source="replay"}'
_MORE_MEMORY = 8 << 20  # bytes: less than what the events themselves take


def line(chance: Random) -> str:
    """A random event of a device, a guest or the kernel log, or lost ones."""
    address = f"0000:{chance.randrange(256):02x}:00.0"
    device = f"pci /devices/pci0000:{chance.randrange(256):02x}/{address}"
    return chance.choice(
        [
            f"udev {chance.choice(['bind', 'unbind', 'add', 'remove', 'change'])} {device}",
            f"kmsg 3,{chance.randrange(10**6)},1,-;NVRM: Xid (PCI:{address[:-2]}): {chance.randrange(150)}, pid=1",
            f"kmsg 4,1,1,-;pcieport {address}: pciehp: Slot({chance.randrange(99)}): Link Down",
            f"libvirt {chance.choice(['started', 'stopped', 'device-added'])} guest-{chance.randrange(2000)}",
            "lost udev",
        ]
    )


class Watching:
    """An agent of a scratch root."""

    def __init__(self, root: Root, folder: Path) -> None:
        self.root, self.textfile = root, folder / "hosttune.prom"
        words = ["watch", "--root", str(root.path), "--textfile", str(self.textfile), "--interval", "600"]
        self.process = subprocess.Popen([sys.executable, "-m", "hosttune", *words], stderr=subprocess.DEVNULL)
        self.seen = psutil.Process(self.process.pid)

    def sum(self, names: tuple[str, ...]) -> float:
        """The sum of these series."""
        text = self.textfile.read_text() if self.textfile.exists() else ""
        return sum(value(text, one) or 0 for one in names)

    def next_look(self) -> None:
        """Wait until one more look has been written."""
        before = self.sum(LOOKS)
        until(lambda: self.sum(LOOKS) > before, 60)

    def left(self) -> tuple[int, int, int]:
        """Open files, threads and children between two looks."""
        until(lambda: not self.seen.children(), 60)
        return self.seen.num_fds(), self.seen.num_threads(), len(self.seen.children())


def facts(text: str) -> list[str]:
    """What a text says of the host, without what it says of the command that wrote it."""
    own = ("hosttune_run_", "hosttune_watch_", OMITTED)
    return sorted(one for one in text.splitlines() if not one.startswith(("#", *own)))


def test_ten_thousand_events_of_one_agent(root: Root, tmp_path: Path) -> None:
    chance, folder = Random(1), tmp_path / "textfiles"
    folder.mkdir()
    events = root.path / ".hosttune" / "events"
    events.touch()
    drivers = {gpu: os.readlink(root.path / DRIVER.format(gpu)) for gpu in GPUS}
    watching = Watching(root, folder)
    try:
        until(lambda: watching.sum(LOOKS) >= 1, 60)
        with events.open("a") as file:
            file.write("udev change pci /devices/pci0000:40/0000:41:00.0\n")
        watching.next_look()  # the second look imports no more
        before, memory = watching.left(), watching.seen.memory_info().rss
        widths = {}
        for batch in range(BATCHES):
            for gpu in GPUS:
                widths[gpu] = chance.choice(["1", "4", "8", "16"])
                root.put(WIDTH.format(gpu), f"{widths[gpu]}\n")
                driver = root.path / DRIVER.format(gpu)
                driver.unlink(missing_ok=True)
                if chance.random() < 0.5:
                    driver.symlink_to(drivers[gpu])
            with events.open("a") as file:
                file.writelines(f"{line(chance)}\n" for _ in range(EVENTS // BATCHES))
            if batch % 3 == 0:
                watching.next_look()
        until(lambda: watching.sum(RECEIVED) == EVENTS + 1, 60)
        now = [sys.executable, "-m", "hosttune", "metrics", "--root", str(root.path)]
        told = subprocess.run(now, capture_output=True, text=True, check=True).stdout
        until(lambda: set(facts(watching.textfile.read_text())) <= set(facts(told)), 60)
        text = watching.textfile.read_text()
        left_out = (value(text, OMITTED) or 0) - (value(told, OMITTED) or 0)  # the agent's own series take their place
        assert len(facts(told)) - len(facts(text)) == left_out
        for gpu, width in widths.items():
            assert value(text, _width(gpu)) == int(width)
        assert watching.left() == before
        assert watching.seen.memory_info().rss < memory + _MORE_MEMORY
        assert watching.sum(LOOKS) < EVENTS / 100, "storms are merged"
        watching.process.send_signal(signal.SIGTERM)
        assert watching.process.wait(30) == 0
    finally:
        watching.process.kill()
        watching.process.wait()
    assert list(folder.iterdir()) == [watching.textfile]


def _width(gpu: str) -> str:
    return f'hosttune_pcie_link_width{{address="{gpu}",end="device"}}'
