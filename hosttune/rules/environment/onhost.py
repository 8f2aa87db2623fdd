"""Facts of a host that sharpen a verdict: each True, False, or None where the host document does not say. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from hosttune.model.host import Host


def has_maker(host: Host, makers: Iterable[str]) -> bool | None:
    """Return whether the host has a GPU of one of the makers; None if it shows no GPU of a known maker."""
    seen = {gpu.vendor for gpu in host.index.accelerators}
    return bool(seen & set(makers)) if seen else None


def _rdma(host: Host) -> bool | None:
    names = _devices(host)
    return None if names is None else bool(names)


def _devices(host: Host) -> set[str] | None:
    """Return the names of RDMA devices; None if no NIC is known, or one is held for a guest and shows no name."""
    nics = host.nics or ()
    hidden = any(not nic.rdma and not nic.interfaces for nic in nics)
    return {nic.rdma for nic in nics if nic.rdma} if nics and not hidden else None


def _interfaces(host: Host) -> set[str] | None:
    nics = host.nics or ()
    names = {name for nic in nics for name in nic.interfaces}
    return names if names and all(nic.interfaces or nic.rdma for nic in nics) else None


def _no(fact: bool | None) -> bool | None:
    return None if fact is None else not fact


def _names(value: str) -> list[str]:
    return [part.partition(":")[0] for part in value.removeprefix("=").split(",") if part]


def _all_there(host: Host, value: str) -> bool | None:
    there = _devices(host)
    return None if there is None or not _names(value) else set(_names(value)) <= there


def _all_named(host: Host, value: str) -> bool | None:
    """Return whether the names are those of every RDMA device that does not carry the GPUs' own fabric."""
    there = _all_there(host, value)
    bridges = {nic.rdma for nic in host.nics or () if nic.fabric_bridge}
    return there and not (_devices(host) or set()) - bridges - set(_names(value))


def _one_each(host: Host, value: str) -> bool | None:
    """Return whether each name, which is a prefix, fits one RDMA device and no other."""
    there = _devices(host)
    if there is None or value.startswith(("=", "^")) or not _names(value):
        return None
    return all(sum(device.startswith(name) for device in there) == 1 for name in _names(value))


def _ucx_all(host: Host, value: str) -> bool | None:
    devices = _devices(host)
    named = ",".join(name for name in _names(value) if name in (devices or ()))
    return _ucx_there(host, value) and _all_named(host, named)


def _ucx_there(host: Host, value: str) -> bool | None:
    there, interfaces = _devices(host), _interfaces(host)
    if there is None or interfaces is None or not _names(value):
        return None
    return set(_names(value)) <= there | interfaces


def _interface_there(host: Host, value: str) -> bool | None:
    """Return whether each name of the list fits an interface, as NCCL compares: a prefix, with = the whole name.

    None for a list that leaves out. Interfaces that are no PCI function (bonds, bridges) are not in the document: a
    name is missing only if it cannot be one of those, so a name that fits nothing is unknown unless it looks like one
    of the kernel's names of Ethernet or InfiniBand functions.
    """
    there = _interfaces(host)
    if there is None or value.startswith("^"):
        return None
    exact = value.startswith("=")
    wanted = [prefix for prefix in value.removeprefix("=").split(",") if prefix]
    fits = [any(name == prefix if exact else name.startswith(prefix) for name in there) for prefix in wanted]
    if wanted and all(fits):
        return True
    lost = (prefix for prefix, fit in zip(wanted, fits, strict=True) if not fit)
    return False if any(re.match(r"en[opsx]|eth|ib", prefix) for prefix in lost) else None


def _whole_names_there(host: Host, value: str) -> bool | None:
    """As `_interface_there`, of a list that is compared by whole names."""
    return _interface_there(host, f"={value}")


def _cpus(host: Host) -> set[int] | None:
    return {cpu.id for cpu in host.cpus} or None


def _cpu_missing(host: Host, value: str) -> bool | None:
    there = _cpus(host)
    numbers = [int(number) for number in re.findall(r"[0-9]{1,6}", value)]
    return None if there is None or not numbers or ":" in value else max(numbers) > max(there)


def _too_many_threads(host: Host, value: str) -> bool | None:
    there = _cpus(host)
    return int(value) > len(there) if there is not None and re.fullmatch(r"[0-9]{1,6}", value) else None


def _nvswitch(host: Host) -> bool | None:
    """Return whether the GPUs are on NVSwitches; None if nothing says so or says otherwise."""
    if host.nvswitches:
        return True
    gpus = host.index.accelerators
    alone = gpus and all(gpu.peers is not None and not any(peer.links for peer in gpu.peers) for gpu in gpus)
    return False if alone else None


# A fact that rules.toml names: (host, value of the variable) → whether it holds.
FACTS: Mapping[str, Callable[[Host, str], bool | None]] = {
    "rdma": lambda host, value: _rdma(host),
    "no-rdma": lambda host, value: _no(_rdma(host)),
    "one-gpu": lambda host, value: len(host.index.accelerators) == 1 or None,
    "one-nic": lambda host, value: len(host.nics or ()) == 1 or None,
    "no-nvswitch": lambda host, value: _no(_nvswitch(host)),
    "xgmi": lambda host, value: (
        True if any(peer.kind == "xgmi" for gpu in host.index.accelerators for peer in gpu.peers or ()) else None
    ),
    "hca-all": _all_named,
    "hca-there": _all_there,
    "hca-one-each": _one_each,
    "hca-missing": lambda host, value: _no(_all_there(host, value)),
    "ucx-all": _ucx_all,
    "ucx-there": _ucx_there,
    "ucx-missing": lambda host, value: _no(_ucx_there(host, value)),
    "interface-there": _interface_there,
    "interface-missing": lambda host, value: _no(_interface_there(host, value)),
    "whole-interface-there": _whole_names_there,
    "whole-interface-missing": lambda host, value: _no(_whole_names_there(host, value)),
    "cpu-missing": _cpu_missing,
    "too-many-threads": _too_many_threads,
}
