"""Which ports of a host are measured with the memory of a GPU too (GPUDirect RDMA), and why others are not. Reads only.

The GPU of a port is the one below the same PCIe switch, nearest; several NICs and GPUs there belong together in the
order of their addresses. A guest has such switches if its topology is mirrored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from hosttune.bench.guard import why_not
from hosttune.errors import CommandFailed, Unreadable
from hosttune.gpu import vendor_of
from hosttune.gpu.memory_tests import MemoryTest
from hosttune.gpu.vendor import Vendor
from hosttune.machine.reader import Reader
from hosttune.machine.system import System
from hosttune.model.host import Gpu, Host, Nic
from hosttune.model.pairs import GPU_RAIL, GpuMemory, Port
from hosttune.model.pcitree import shared_switch

_HELP = ("sh", "-c", "exec ib_write_bw --help 2>&1")  # its exit status is 1
_NOWHERE = "none of the GPUs is below a PCIe switch with a measured port (in a guest: is its topology mirrored?)"


def with_gpus(system: System, host: Host, ports: Sequence[Port]) -> tuple[Port, ...]:
    """Return the ports; behind each RDMA port whose GPU can be measured the same port with `gpu`.

    A port without a GPU says nothing of it, unless this is so of all ports though the host has GPUs.
    """
    rails = {port.rail: gpu for port in ports if (gpu := _gpu_of(host, port)) is not None}
    if not rails and _gpus(host):
        return tuple(replace(port, gpu_why=_NOWHERE if port.rdma and port.address else None) for port in ports)
    text = _help(system) if rails else None
    return tuple(one for port in ports for one in _beside(system, host, port, rails.get(port.rail), text))


def _beside(system: System, host: Host, port: Port, gpu: Gpu | None, text: str | None) -> Iterator[Port]:
    if gpu is None:
        yield port
        return
    memory = _usable(system, host, gpu, text)
    if isinstance(memory, GpuMemory):
        yield port
        yield replace(port, rail=f"{port.rail}{GPU_RAIL}", gpu=memory)
    else:
        yield replace(port, gpu_why=memory)


def _gpu_of(host: Host, port: Port) -> Gpu | None:
    """Return the GPU of a port's rail; None without one, or for a port that RDMA is not measured on."""
    nic = next((nic for nic in host.nics if port.rdma is not None and nic.rdma == port.rdma), None)
    if nic is None or port.address is None:
        return None
    gpus = _gpus(host)
    depths = {gpu.address: _common(host, nic, gpu) for gpu in gpus}
    most = max(depths.values(), default=0)
    near = [gpu for gpu in gpus if most and depths[gpu.address] == most]
    if not near:
        return None
    nics = [nic for nic in host.nics if nic.rdma and nic.physfn is None and _common(host, nic, near[0]) == most]
    return near[sorted({nic.address, *(nic.address for nic in nics)}).index(nic.address) % len(near)]


def _gpus(host: Host) -> list[Gpu]:
    """Return the GPUs by address, without those that carry the ports to other hosts themselves."""
    makers = {gpu.vendor: vendor_of(gpu.vendor) for gpu in host.index.accelerators}
    own = {name for name, vendor in makers.items() if vendor is not None and vendor.ports is not None}
    return sorted((gpu for gpu in host.index.accelerators if gpu.vendor not in own), key=lambda gpu: gpu.address)


def _common(host: Host, nic: Nic, gpu: Gpu) -> int:
    """Return how many bridges are above both, 0 unless the nearest of them is a switch."""
    if not shared_switch(host.index, gpu.address, nic.address):
        return 0
    return len(set(host.index.above(gpu.address)) & set(host.index.above(nic.address)))


def _help(system: System) -> str | None:
    def live() -> str:
        try:
            return system.run(_HELP, timeout=10.0)
        except CommandFailed as error:
            return error.output

    try:
        text = system.query("ib-write-bw-help", live)
    except Unreadable:
        return None
    return text if text and "--report_gbits" in text else None


def _usable(system: System, host: Host, gpu: Gpu, text: str | None) -> GpuMemory | str:
    """Return the GPU as an end uses it, or why its memory is not measured."""
    vendor = vendor_of(gpu.vendor)
    test = vendor.memory_test if vendor is not None else None
    if vendor is None or test is None:
        return f"no source says how ib_write_bw uses memory of GPUs of {gpu.vendor}"
    if text is None:
        return "whether ib_write_bw is built for its memory is unknown: ib_write_bw --help was not read"
    if test.option not in text:
        return f"ib_write_bw is built without {test.option} (packages of distributions are)"
    if test.chosen(gpu.address, gpu.uuid) is None:
        return "its UUID, by which it is chosen, is unknown"
    busy = why_not(system, host, gpu)
    if busy is not None:
        return busy
    dmabuf = _dmabuf(Reader(system), vendor, test, text)
    if isinstance(dmabuf, str):
        return dmabuf
    return GpuMemory(address=gpu.address, maker=gpu.vendor, uuid=gpu.uuid, dmabuf=dmabuf)


def _dmabuf(reader: Reader, vendor: Vendor, test: MemoryTest, text: str) -> bool | str:
    """Return whether its memory is reached by dma-buf, not by a peer memory module; or why by neither."""
    if any(reader.exists(f"/sys/module/{name}") for name in vendor.peer_memory):
        return False
    built, inside = test.dmabuf in text, vendor.inside
    if not vendor.peer_memory or inside.driver_text is None or inside.open_words is None:
        return built
    driver = reader.text(inside.driver_text)
    if built and driver and inside.open_words in driver:
        return True
    lacking = "its driver is not the open one, which dma-buf needs" if driver else f"{inside.driver_text} was not read"
    without = f"ib_write_bw is built without {test.dmabuf}"
    return f"{vendor.peer_memory[0]} is not loaded, and {lacking if built else without}"
