"""Check what a guest's collectives library needs: the settings of the plan alone, RDMA nodes, a way to GPU memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from hosttune.gpu import VENDORS
from hosttune.model.evidence import UNLIMITED, Evidence, RdmaAccess
from hosttune.model.guestplan import OWN_FILES, PLACE, UCX_FILE, UNREADABLE, ExpectedLibrary
from hosttune.model.host import Host
from hosttune.model.validation import CheckResult
from hosttune.rules.checks.check import Check, failed, passed, skipped, unknown, warned
from hosttune.rules.checks.facts import HOST

_ID = "guest-library-file"
_NODES_ID = "guest-rdma-nodes"
_DIRECT_ID = "guest-gpudirect"
_LOCK_ID = "guest-memlock"
_DMABUF = (5, 12)  # Linux: dma-buf of other drivers in RDMA memory regions (ib_umem_dmabuf)
_AGAIN = (
    "systemctl restart hosttune-guest writes it again; a file without its first line is left alone: move it away first"
)


def guest_library_file(evidence: Evidence) -> Iterable[CheckResult]:
    """Yield one result for the library's settings file."""
    plan = evidence.guest_plan
    if plan is None:
        broken = next((problem for problem in evidence.problems if problem.what == UNREADABLE), None)
        if broken is None:
            yield skipped(_ID, HOST, f"no plan of a guest is here: a planned guest's seed or bundle brings {PLACE}")
            return
        hint = "write the guest's seed or bundle again (hosttune apply on its host) and install it"
        yield unknown(_ID, HOST, expected="what its plan says", why=broken.why, hint=hint, source=PLACE)
    elif plan.library is None:
        yield skipped(_ID, HOST, "its plan has no settings for a collectives library")
    else:
        yield _file(evidence, plan.library)
        if plan.library.nics:
            yield _ucx(evidence, plan.library)


def _file(evidence: Evidence, library: ExpectedLibrary) -> CheckResult:
    path = library.path
    names = _names(evidence.host, library.nics)
    networks = _own_networks(evidence.host)
    files = evidence.library_files or {}
    wanted = _wanted(library, names, networks)
    expected = ", ".join(f"{name}={value}" for name, value in wanted.items())
    if path not in files:
        return unknown(_ID, path, expected=expected, why="it could not be read", hint=f"read {path}", source=path)
    text = files[path]
    if text is None:
        return failed(_ID, path, expected=expected, actual="no such file", source=path, hint=_AGAIN)
    found = settings_of(text)
    actual = ", ".join(f"{name}={value}" for name, value in found.items()) or "no setting"
    lost = [address for address, name in names.items() if name is None]
    if lost:
        why = f"the RDMA device of {', '.join(lost)} is unknown"
        hint = "load the NIC's RDMA driver, then systemctl restart hosttune-guest"
        return unknown(_ID, path, expected=expected, why=why, hint=hint, source=path)
    if library.own_network and len(networks) != 1:
        why = f"which interface is the guest's own network is not known: {len(networks)} of virtio"
        return unknown(_ID, path, expected=expected, why=why, hint="ls /sys/bus/virtio/drivers/virtio_net", source=path)
    if found != wanted:
        return failed(_ID, path, expected=expected, actual=actual, source=path, hint=_AGAIN)
    first = OWN_FILES.get(path, path)
    if first not in files:
        why = f"whether {first}, which the library reads before it, replaces a setting is not known"
        return unknown(_ID, path, expected=expected, why=why, hint=f"as root: cat {first}", source=path)
    replaced = settings_of(files[first] or "")
    if first != path and any(wanted.get(name) != value for name, value in replaced.items()):
        actual += f"; {first} comes first for root: {', '.join(f'{name}={value}' for name, value in replaced.items())}"
        hint = f"take out of {first} what the plan does not say; hosttune lint-env {first} judges its lines"
        return warned(_ID, path, expected=expected, actual=actual, source=first, hint=hint)
    return passed(_ID, path, expected=expected, actual=actual, source=path)


def _ucx(evidence: Evidence, library: ExpectedLibrary) -> CheckResult:
    """Return the result for the file of UCX's devices, which nothing reads by itself: all ports of the planned NICs."""
    files, ports = evidence.library_files or {}, []
    expected = "UCX_NET_DEVICES with each port of the planned NICs"
    for address in library.nics:
        found = (evidence.ports or {}).get(address)
        if found is None or not found.rdma:
            why = f"the RDMA ports of {address} are unknown"
            hint = "load the NIC's RDMA driver, then systemctl restart hosttune-guest"
            return unknown(_ID, UCX_FILE, expected=expected, why=why, hint=hint, source=UCX_FILE)
        ports += [f"{port.device}:{port.number}" for port in found.rdma]
    expected = f"UCX_NET_DEVICES={','.join(ports)}"
    if UCX_FILE not in files:
        why, hint = "it could not be read", f"read {UCX_FILE}"
        return unknown(_ID, UCX_FILE, expected=expected, why=why, hint=hint, source=UCX_FILE)
    text = files[UCX_FILE]
    actual = ", ".join(f"{name}={value}" for name, value in settings_of(text or "").items())
    if actual != expected:
        actual = actual or ("no such file" if text is None else "no setting")
        return failed(_ID, UCX_FILE, expected=expected, actual=actual, source=UCX_FILE, hint=_AGAIN)
    return passed(_ID, UCX_FILE, expected=expected, actual=actual, source=UCX_FILE)


def guest_rdma_nodes(evidence: Evidence) -> Iterable[CheckResult]:
    """Yield one result: programs reach each planned NIC through its node in /dev/infiniband."""
    nics = _planned_nics(evidence)
    if not nics:
        yield skipped(_NODES_ID, HOST, "no plan of a guest is here that names NICs for a collectives library")
        return
    expected = f"{len(nics)} uverbs nodes or more"
    source = "/dev/infiniband"
    nodes = evidence.rdma_access.nodes if evidence.rdma_access is not None else None
    if nodes is None:
        yield unknown(
            _NODES_ID, HOST, expected=expected, why="they could not be read", hint=f"ls {source}", source=source
        )
        return
    found = [name for name in nodes if name.startswith("uverbs")]
    actual = ", ".join(sorted(found)) or "none"
    if len(found) >= len(nics):
        yield passed(_NODES_ID, HOST, expected=expected, actual=actual, source=source)
    else:
        hint = "load ib_uverbs and the NICs' RDMA driver (modprobe ib_uverbs; rdma link shows the devices)"
        yield failed(_NODES_ID, HOST, expected=expected, actual=actual, source=source, hint=hint)


def guest_gpudirect(evidence: Evidence) -> Iterable[CheckResult]:
    """Yield one result for each maker of the guest's GPUs: NICs can reach their memory."""
    makers = sorted({gpu.vendor for gpu in evidence.host.index.accelerators})
    if not _planned_nics(evidence):
        yield skipped(_DIRECT_ID, HOST, "no plan of a guest is here that names NICs for a collectives library")
    elif not makers:
        why, hint = "which GPUs the guest has is unknown", "read /sys/bus/pci/devices"
        yield unknown(_DIRECT_ID, HOST, expected="a way for NICs to GPU memory", why=why, hint=hint)
    for maker in makers if _planned_nics(evidence) else ():
        yield _direct(evidence, maker)


def _direct(evidence: Evidence, maker: str) -> CheckResult:
    known = next(vendor.inside for vendor in VENDORS if vendor.name == maker)
    if known.peer_module is None:
        return skipped(_DIRECT_ID, maker, "no source says what its driver needs for GPUDirect RDMA")
    access = evidence.rdma_access or RdmaAccess()
    loaded, opened = access.peer_modules.get(maker), access.open_drivers.get(maker)
    expected = f"{known.peer_module} loaded, or dma-buf: the open driver on Linux 5.12 or newer"
    source = f"/sys/module/{known.peer_module}, {known.driver_text}"
    hint = f"modprobe {known.peer_module}, or install the open kernel modules"
    if loaded:
        return passed(_DIRECT_ID, maker, expected=expected, actual=f"{known.peer_module} is loaded", source=source)
    new = _at_least(evidence.host.kernel, _DMABUF)
    if opened and new:
        actual = f"dma-buf: the open driver on {evidence.host.kernel}"
        return passed(_DIRECT_ID, maker, expected=expected, actual=actual, source=source)
    if loaded is False and (opened is False or new is False):
        return failed(_DIRECT_ID, maker, expected=expected, actual="neither", source=source, hint=hint)
    why = "whether the module is loaded, or the driver is the open one, could not be read"
    return unknown(_DIRECT_ID, maker, expected=expected, why=why, hint=hint, source=source)


def guest_memlock(evidence: Evidence) -> Iterable[CheckResult]:
    """Yield one result: how much memory a program that was started as this one may lock for RDMA."""
    if not _planned_nics(evidence):
        yield skipped(_LOCK_ID, HOST, "no plan of a guest is here that names NICs for a collectives library")
        return
    expected, source = "unlimited", "/proc/self/limits"
    limit = evidence.rdma_access.memlock if evidence.rdma_access is not None else None
    hint = (
        "memlock unlimited in /etc/security/limits.d, LimitMEMLOCK=infinity of a service, --ulimit memlock=-1 of docker"
    )
    if limit is None:
        why = "the limit of locked memory could not be read"
        yield unknown(_LOCK_ID, HOST, expected=expected, why=why, hint="ulimit -l", source=source)
    elif limit == UNLIMITED:
        actual = "unlimited, for programs that are started as this one"
        yield passed(_LOCK_ID, HOST, expected=expected, actual=actual, source=source)
    else:
        actual = f"{limit} bytes, for programs that are started as this one and have no CAP_IPC_LOCK"
        yield warned(_LOCK_ID, HOST, expected=expected, actual=actual, source=source, hint=hint)


def _at_least(kernel: str | None, least: tuple[int, int]) -> bool | None:
    found = re.match(r"([0-9]{1,4})\.([0-9]{1,4})", kernel or "")
    return None if found is None else (int(found[1]), int(found[2])) >= least


def _planned_nics(evidence: Evidence) -> tuple[str, ...]:
    plan = evidence.guest_plan
    return plan.library.nics if plan is not None and plan.library is not None else ()


def _names(host: Host, nics: Iterable[str]) -> Mapping[str, str | None]:
    rdma = {nic.address: nic.rdma for nic in host.nics or ()}
    return {address: rdma.get(address) for address in nics}


def _own_networks(host: Host) -> list[str]:
    """Return the network interfaces of virtio: those of the guest's own networks."""
    drivers = {nic.address: device.driver for nic in host.nics if (device := host.index.pci.get(nic.address))}
    return [name for nic in host.nics if drivers.get(nic.address) == "virtio-pci" for name in nic.interfaces]


def _wanted(library: ExpectedLibrary, names: Mapping[str, str | None], networks: Sequence[str]) -> Mapping[str, str]:
    known = [name for name in names.values() if name is not None]
    wanted = {"NCCL_TOPO_FILE": library.topology}
    if known:
        wanted["NCCL_IB_HCA"] = f"={','.join(known)}"
    if library.own_network and len(networks) == 1:
        wanted["NCCL_SOCKET_IFNAME"] = f"={networks[0]}"
    if known and library.traffic_class is not None:
        wanted["NCCL_IB_TC"] = str(library.traffic_class)
    return wanted


def settings_of(text: str) -> Mapping[str, str]:
    """Return the settings of a file as the library reads it: # in column 1 only, nothing trimmed, the first one counts.

    Source: NVIDIA/nccl, src/misc/param.cc, setEnvFile.
    """
    lines = (line.partition("=") for line in text.split("\n") if line and not line.startswith("#"))
    found: dict[str, str] = {}
    for name, equals, value in lines:
        if equals:
            found.setdefault(name, value)  # setenv(3), without overwriting
    return found


CHECKS = (
    Check(
        id=_ID,
        title="The collectives library has the plan's settings",
        subjects="the library's settings file and that of UCX's devices, where the guest's plan names them",
        why="a setting of a guide in this file holds for every program: NICs unused, or an algorithm forced",
        source="the guest's plan (docs/guest.md); NVIDIA/nccl, src/misc/param.cc",
        judge=guest_library_file,
        inside=True,
    ),
    Check(
        id=_NODES_ID,
        title="Programs reach the RDMA devices",
        subjects="the guest, where its plan names NICs for a collectives library",
        why="without its node in /dev/infiniband a NIC is not used, and everything goes through TCP sockets",
        source="Linux Documentation/infiniband/user_verbs.rst",
        judge=guest_rdma_nodes,
        inside=True,
    ),
    Check(
        id=_DIRECT_ID,
        title="NICs reach the memory of the GPUs",
        subjects="each maker of the guest's GPUs, where its plan names NICs for a collectives library",
        why="otherwise every message between hosts is copied through the guest's memory",
        source="NVIDIA GPU Operator, GPUDirect RDMA: nvidia-peermem, or DMA-BUF with the open kernel modules",
        judge=guest_gpudirect,
        inside=True,
    ),
    Check(
        id=_LOCK_ID,
        title="Programs may lock memory for RDMA",
        subjects="the guest, where its plan names NICs for a collectives library",
        why="registering memory with a NIC locks it: with a small limit the library falls back to TCP sockets or fails",
        source="rdma-core, Documentation/libibverbs.md; Linux getrlimit(2), RLIMIT_MEMLOCK",
        judge=guest_memlock,
        inside=True,
    ),
)
