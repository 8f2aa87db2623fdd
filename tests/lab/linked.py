"""Two small emulated hosts with links of their own between them, and the kernel's software RDMA on each link."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lab.hardware import kernel_loaded, small_command
from lab.machine import LabMachine, switched_off
from lab.product import install

LINKS = 5
RAILS = tuple(f"rail{number}" for number in range(LINKS))
LISTENS_SECONDS = 60
# A frame of 4300 bytes carries RDMA's largest packet (4096); what one costs to emulate does not grow with it.
_SET_UP = """
set -e
modprobe -a rdma_rxe ib_uverbs
for number in {numbers}; do
  nic=$(basename /sys/bus/pci/devices/0000:00:$(printf %02x $((16 + number))).0/net/*)
  ip link set "$nic" down
  ip link set "$nic" name rail$number mtu 4300
  ip address add 10.50.$number.{side}/24 dev rail$number
  ip link set rail$number up
  rdma link add rxe$number type rxe netdev rail$number
done
"""


@contextlib.contextmanager
def two_linked(image: Path) -> Iterator[tuple[LabMachine, LabMachine]]:
    """Two machines, on, with hosttune, LINKS links between them (10.50.LINK.1 and .2) and an RDMA device on each."""
    boot = kernel_loaded("")
    with tempfile.TemporaryDirectory(prefix="links-") as sockets, contextlib.ExitStack() as stack:
        paths = [f"{sockets}/{number}" for number in range(LINKS)]

        def command(port: int, side: int) -> list[str]:
            how = "on" if side == 1 else "off"
            return small_command(port, boot, side, [f"stream,server={how},addr.type=unix,addr.path={p}" for p in paths])

        # The kernel ends QEMU with the thread that started it: these threads must outlive the machines.
        pool = stack.enter_context(ThreadPoolExecutor(2))
        first = stack.enter_context(switched_off(image, lambda port: command(port, 1)))
        second = stack.enter_context(switched_off(image, lambda port: command(port, 2)))
        started = [pool.submit(first.start), pool.submit(_start_after, second, [Path(p) for p in paths])]
        for one in started:
            one.result()
        for side, machine in enumerate((first, second), 1):
            install(machine)
            machine.shell(_SET_UP.format(numbers=" ".join(map(str, range(LINKS))), side=side))
        yield first, second


def _start_after(machine: LabMachine, sockets: list[Path]) -> None:
    """Start a machine once the other one's QEMU listens at its ends of the links."""
    deadline = time.monotonic() + LISTENS_SECONDS
    while not all(path.exists() for path in sockets):
        assert time.monotonic() < deadline, "the first machine's QEMU did not make the links' sockets"
        time.sleep(0.1)
    machine.start()
