"""System → Host: reads CPUs, memory, PCI, devices, platform and guests. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from hosttune.discovery.cpu import read_cpus
from hosttune.discovery.devices import read_nics, read_nvme, read_nvswitches
from hosttune.discovery.fabric import read_fabric, recall_modules
from hosttune.discovery.guests import read_guests
from hosttune.discovery.handover import read_handover
from hosttune.discovery.memory import read_memory_settings, read_nodes
from hosttune.discovery.pci import judged_links, read_pci
from hosttune.discovery.pci_names import load as load_pci_ids
from hosttune.discovery.platform import read_digest, read_identity, read_iommu, read_platform
from hosttune.discovery.settings import read_settings, read_tuned
from hosttune.discovery.sources import problems, read_sources
from hosttune.disks import read_nodes as read_device_nodes
from hosttune.errors import BadInput, Unreadable
from hosttune.gpu import begin, read_gpus
from hosttune.gpu.vgpu import read_vgpu
from hosttune.linux.tuned import ACTIVE
from hosttune.machine.capture import Capture
from hosttune.machine.reader import Reader
from hosttune.machine.system import COMMANDS, NODES, System
from hosttune.model import sysfs
from hosttune.model.devices import functions_under
from hosttune.model.host import Host, Nic, Nvme, RunningGuest
from hosttune.model.index import DeviceIndex
from hosttune.model.jsontext import typed_json
from hosttune.model.values import to_json


def discover(system: System) -> Host:
    """Return the host document of the machine behind `system`. Whatever could not be read is listed in `problems`.

    Raises BadInput if the system is not a host (it has neither /sys nor /proc) or if a capture is hostile.
    """
    reader = Reader(system)
    begin(reader)
    return read(reader)


def read(reader: Reader) -> Host:
    """Return the same of a reader for which `gpu.begin` was called."""
    if not (reader.system.exists("/sys") or reader.system.exists("/proc")):
        hint = "give the directory that holds them, or a tar of it (hosttune capture writes one)"
        raise BadInput("no host: it holds neither sys/ nor proc/", where=reader.system.origin, hint=hint)
    host = _read_host(reader)
    host = msgspec.structs.replace(host, pci=judged_links(reader, host.index))
    host = msgspec.structs.replace(host, fabric=read_fabric(reader, host), sources=read_sources(reader, host))
    functions = [host.index.pci.get(gpu.address) for gpu in host.gpus]
    if host.hypervisor and functions and all(function is None or function.numa_node is None for function in functions):
        reader.problem(
            "topology hidden",
            sysfs.PCI_DEVICES,
            "this machine is a guest and its hypervisor shows no NUMA node for any GPU: their affinity is unknown",
        )
    for problem in problems(host):
        reader.problem(problem.what, problem.where, problem.why)
    return msgspec.structs.replace(host, problems=tuple(reader.problems))


def _read_host(reader: Reader) -> Host:
    """Return the host document, without what is read by comparing its parts: fabric, sources and problems."""
    identity = read_identity(reader)
    platform, hypervisor = read_platform(reader)
    nodes = read_nodes(reader)
    cpus, cpu_model = read_cpus(reader, nodes)
    pci = read_pci(reader, nodes, fallback_ids=_own_pci_ids)
    alive = tuple(device for device in pci if device.responds is not False)
    guests, virtualization = read_guests(reader)
    settings = read_settings(reader, pci)
    nics, nvme = read_nics(reader, alive), read_nvme(reader, alive)
    return Host(
        **msgspec.structs.asdict(identity),
        hypervisor=hypervisor,
        digest=read_digest(reader, nodes),
        platform=platform,
        cpu_model=cpu_model,
        cpus=cpus,
        numa_nodes=nodes,
        memory_settings=read_memory_settings(reader),
        iommu=read_iommu(reader, pci),
        pci=pci,
        nics=nics,
        nvme=nvme,
        nvswitches=read_nvswitches(reader, alive),
        virtualization=virtualization,
        guests=guests,
        settings=settings,
        tuned=read_tuned(reader, settings.get(ACTIVE)),
        handover=read_handover(reader, pci),
        nodes=_read_nodes(reader, guests or (), (*nics, *nvme)),
        # Last: this waits for the answers that `begin` asked for.
        gpus=(gpus := recall_modules(reader, alive, read_gpus(reader, alive))),
        vgpu=read_vgpu(reader, alive, gpus),
    )


def _read_nodes(
    reader: Reader, guests: Iterable[RunningGuest], known: Iterable[Nic | Nvme]
) -> dict[str, tuple[str, ...]]:
    """Return `HostFields.nodes`. A capture has them as an answer, because names of links have serial numbers."""
    paths = [path for guest in guests for path in guest.host_paths]
    try:
        text = reader.system.derive(NODES, lambda: to_json(read_device_nodes(reader, paths)))
        nodes_of = typed_json(text, dict[str, tuple[str, ...]])
    except (Unreadable, BadInput) as error:
        reader.problem("nodes of devices not understood", f"{COMMANDS}{NODES}", str(error))
        return {}
    named = DeviceIndex((), used=known).nodes
    return {path: on for path, on in nodes_of.items() if on != functions_under(named, path)}


def strip_nodes(text: str, scrubbed: Callable[[str], str]) -> str | None:
    """Return the recorded answer with scrubbed paths; None if it is no such answer."""
    try:
        nodes_of = typed_json(text, dict[str, tuple[str, ...]])
    except BadInput:
        return None
    return to_json(
        {
            scrubbed(path): [scrubbed(path_of_node) if "/" in path_of_node else path_of_node for path_of_node in on]
            for path, on in nodes_of.items()
        }
    )


def _own_pci_ids() -> bytes | None:
    """Return pci.ids of the machine that runs hosttune, for captures of other tools. No decision depends on names."""
    return load_pci_ids(Capture("/"))
