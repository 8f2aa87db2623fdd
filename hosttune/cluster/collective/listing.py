"""What a host has for collectives: its library, its GPUs and wiring for the prediction, where it meets others, and who
runs on it. Reads, writes nothing; one child process says what PyTorch has."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import msgspec

from hosttune.bench.baselines import shipped_peaks
from hosttune.cluster.collective.launch import own_program
from hosttune.cluster.collective.member import environment
from hosttune.cluster.pairs.ports import addresses_of, present, running_guests
from hosttune.discovery.portfiles import interface_gbps
from hosttune.errors import BadInput, CommandFailed, Refused, Unreadable
from hosttune.machine.reader import Reader
from hosttune.machine.system import System
from hosttune.model.collective import CollectiveJob, Library, Member, Place, Wiring
from hosttune.model.host import Host
from hosttune.model.jsontext import plain_json
from hosttune.model.pci import for_vfio
from hosttune.predicting.shape import of_host

_LOOK_SECONDS = 120.0
_ANYWHERE = "192.0.2.1"  # TEST-NET-1 (RFC 5737): where it leads, the default route leads
# NCCL: NCCL_CONF_FILE or ~/.nccl.conf, and /etc/nccl.conf (NVIDIA/nccl src/misc/param.cc); RCCL reads its own names.
_SETTINGS = ("/etc/nccl.conf", "/etc/rccl.conf")
_MOST_LINES, _MOST_TEXT = 60, 300


def listed(
    system: System,
    host: Host,
    job: CollectiveJob,
    *,
    version: str | None = None,
    variables: Mapping[str, str] = os.environ,
) -> Member:
    """Return what this host is and has, without measuring. Raises BadInput for an interface that it does not have.

    `variables`: its environment; of a captured host nothing is known of it, nor of its library.
    """
    notes: list[str] = []
    library = _library(system, job.python or sys.executable, notes)
    accelerators = [gpu.address for gpu in host.index.accelerators]
    shape = of_host(host, accelerators, shipped_peaks())
    names = Wiring.__struct_fields__
    # Whether the host has RDMA. None: an InfiniBand function of its own has no RDMA device, so TCP is no
    # measure.
    drivers = {device.address: device.driver for device in host.pci}
    silent = any(nic.kind == "infiniband" and not for_vfio(drivers.get(nic.address)) for nic in host.nics)
    return Member(
        host=host.hostname,
        version=version,
        machine=host.boot_id,
        guests=running_guests(host.guests, host.problems),
        library=library,
        wiring=Wiring(**{name: getattr(shape, name) for name in names}),
        place=_place(system, job.interface, notes),
        rdma=True if any(nic.rdma for nic in host.nics) else None if silent else False,
        gpus_present=len(accelerators),
        environment=environment(variables),
        settings=tuple(_settings(system, variables)),
        notes=tuple(notes),
    )


def answering(system: System, *, version: str | None = None) -> Member:
    """Return who answers and which guests run, read anew: it is asked before each measurement."""
    presence = present(system, version=version)
    return Member(host=presence.host, version=version, machine=presence.machine, guests=presence.guests)


def _library(system: System, python: str, notes: list[str]) -> Library | None:
    """Ask a child what PyTorch has. None: there is none, and `notes` says why."""
    try:
        with own_program() as folder:
            text = system.run((python, "-B", folder, "--look"), timeout=_LOOK_SECONDS)
        return msgspec.convert(plain_json(text, where=python), Library)
    except CommandFailed as error:
        lines = [line.strip() for line in error.output.splitlines() if line.strip()]
        notes.append(f"no PyTorch for {python}: {lines[-1] if lines else error.reason}"[:_MOST_TEXT])
    except Refused as error:
        notes.append(f"PyTorch was not looked for: {error.what}")
    except (BadInput, msgspec.ValidationError) as error:
        notes.append(f"what PyTorch has for {python} cannot be read: {error}"[:_MOST_TEXT])
    return None


def _place(system: System, interface: str | None, notes: list[str]) -> Place | None:
    """Return where this host meets others. Raises BadInput for an interface that is not there."""
    addresses = addresses_of(system)
    if addresses is None:
        notes.append("addresses are unknown: `ip -j address show` gave no answer")
        return None
    if interface is None:
        try:
            rows = plain_json(system.run(("ip", "-j", "route", "get", _ANYWHERE)), where="ip")
            interface = rows[0]["dev"]
        except (CommandFailed, Refused, BadInput, LookupError, TypeError):
            notes.append("there is no default route: name the interface where hosts meet by hosttune_interface")
            return None
    elif "/" in interface or not system.exists(f"/sys/class/net/{interface}"):
        what = f"no interface {interface[:40]!r} on this host"
        raise BadInput(what, where="hosttune_interface", hint="`ip link` lists the interfaces")
    if addresses.get(interface) is None:
        notes.append(f"{interface} has no address")
    rate = interface_gbps(Reader(system), interface)
    return Place(interface=interface, address=addresses.get(interface), rate_gbps=rate)


def _settings(system: System, variables: Mapping[str, str]) -> list[str]:
    """Return the lines of the files that the library reads by itself, each with its file."""
    home = variables.get("HOME", "/root")
    named = variables.get("NCCL_CONF_FILE") or f"{home}/.nccl.conf"
    settings = []
    for path in (named, *_SETTINGS):
        try:
            text = system.read(path)
        except Unreadable as error:
            text = f"# unreadable: {error.reason}"
        lines = [line for line in (text or "").splitlines() if line.strip()]
        settings += [f"{path}: {line[:_MOST_TEXT]}" for line in lines[:_MOST_LINES]]
    return settings
