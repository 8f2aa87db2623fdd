"""Check what a guest's collectives library needs: the settings of the plan alone, RDMA nodes, a way to GPU memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from hosttune.gpu import VENDORS
from hosttune.model.evidence import UNLIMITED, Evidence, RdmaAccess
from hosttune.model.guestplan import OWN_FILES, UCX_FILE, ExpectedLibrary
from hosttune.rules.checks.on import On, check
from hosttune.rules.checks.subjects import guest_plan
from hosttune.rules.engine import Finding, NoValue, inapplicable

_DMABUF = (5, 12)  # Linux: dma-buf of other drivers in RDMA memory regions (ib_umem_dmabuf)
_AGAIN = (
    "systemctl restart hosttune-guest writes it again; a file without its first line is left alone: move it away first"
)
_LOAD = "load the NIC's RDMA driver, then systemctl restart hosttune-guest"


def _files(evidence: Evidence) -> Iterator[tuple[str, ExpectedLibrary]]:
    """Yield the library's settings file, and that of UCX's devices if the guest's plan names NICs."""
    library = guest_plan(evidence).library
    if library is None:
        raise inapplicable("its plan has no settings for a collectives library")
    yield library.path, library
    if library.nics:
        yield UCX_FILE, library


@check(
    "guest-library-file",
    title="The collectives library has the plan's settings",
    about="the library's settings file and that of UCX's devices, where the guest's plan names them",
    why="a setting in this file holds for every program",
    source="the guest's plan (docs/guest.md); NVIDIA/nccl, src/misc/param.cc",
    expected="what its plan says",
    remedy=_AGAIN,
    each=_files,
    inside=True,
)
def guest_library_file(on: On, library: ExpectedLibrary) -> Finding:
    """Compare a file with the plan's settings; nothing reads that of UCX's devices by itself."""
    if on.subject == UCX_FILE:
        on, ports = on.reading(UCX_FILE, "UCX_NET_DEVICES with each port of the planned NICs"), on.evidence.ports or {}
        for address in library.nics:
            if address not in ports or not ports[address].rdma:
                on.give_up(f"the RDMA ports of {address} are unknown", _LOAD)
        devices = [f"{port.device}:{port.number}" for address in library.nics for port in ports[address].rdma or ()]
        expected = f"UCX_NET_DEVICES={','.join(devices)}"
        on = on.reading(UCX_FILE, expected)
        text = _text(on)
        actual = _settings_text(settings_of(text or ""))
        if actual != expected:
            return on.failed(actual or ("no such file" if text is None else "no setting"))
        return on.passed(actual)
    return _nccl(on, library)


def _text(on: On) -> str | None:
    """Return the file's text; None: it is proven absent. The check ends if it was not read."""
    files = on.evidence.library_files or {}
    return files[on.subject] if on.subject in files else on.need(None, "it", on.subject)


def _settings_text(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def _nccl(on: On, library: ExpectedLibrary) -> Finding:
    path, files = on.subject, on.evidence.library_files or {}
    rdma = {nic.address: nic.rdma for nic in on.host.nics}
    names = {address: rdma.get(address) for address in library.nics}
    own = {at for at, device in on.host.index.pci.items() if device.driver == "virtio-pci"}
    networks = [name for nic in on.host.nics if nic.address in own for name in nic.interfaces]
    wanted = _wanted(library, names, networks)
    on = on.reading(path, _settings_text(wanted))
    text = _text(on)
    if text is None:
        return on.failed("no such file")
    if lost := [address for address, name in names.items() if name is None]:
        on.give_up(f"the RDMA device of {', '.join(lost)} is unknown", _LOAD)
    if library.own_network and len(networks) != 1:
        why = f"which interface is the guest's own network is not known: {len(networks)} of virtio"
        on.give_up(why, "ls /sys/bus/virtio/drivers/virtio_net")
    settings = settings_of(text)
    actual = _settings_text(settings) or "no setting"
    if settings != wanted:
        return on.failed(actual)
    first = OWN_FILES.get(path, path)
    if first not in files:
        why = f"whether {first}, which the library reads before it, replaces a setting is not known"
        on.give_up(why, f"as root: cat {first}")
    replaced = settings_of(files[first] or "")
    if first != path and any(wanted.get(name) != value for name, value in replaced.items()):
        hint = f"take out of {first} what the plan does not say; hosttune lint-env {first} judges its lines"
        return on.warned(f"{actual}; {first} comes first for root: {_settings_text(replaced)}", hint, first)
    return on.passed(actual)


def _nics(evidence: Evidence) -> tuple[str, ...]:
    """Return the NICs that the guest's plan names for a collectives library; the check ends if there are none."""
    plan = evidence.guest_plan
    if plan is None or plan.library is None or not plan.library.nics:
        raise inapplicable("no plan of a guest is here that names NICs for a collectives library")
    return plan.library.nics


@check(
    "guest-rdma-nodes",
    title="Programs reach the RDMA devices",
    about="the guest, where its plan names NICs for a collectives library",
    why="without its node in /dev/infiniband a NIC is not used, and everything goes through TCP sockets",
    source="Linux Documentation/infiniband/user_verbs.rst",
    remedy="load ib_uverbs and the NICs' RDMA driver (modprobe ib_uverbs; rdma link shows the devices)",
    inside=True,
)
def guest_rdma_nodes(on: On) -> Finding:
    nics, path = _nics(on.evidence), "/dev/infiniband"
    on = on.reading(path, f"{len(nics)} uverbs nodes or more")
    access = on.evidence.rdma_access or RdmaAccess()
    nodes = sorted(
        name for name in on.need(access.nodes, "the list of them", look=f"ls {path}") if name.startswith("uverbs")
    )
    actual = ", ".join(nodes) or "none"
    return on.passed(actual) if len(nodes) >= len(nics) else on.failed(actual)


def _makers(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yield each maker of the guest's GPUs, where its plan names NICs; the guest if it has no GPU."""
    _nics(evidence)
    makers = {gpu.vendor for gpu in evidence.host.index.accelerators}
    yield from ((maker, maker) for maker in sorted(makers))
    if not makers:
        why, remedy = "which GPUs the guest has is unknown", "read /sys/bus/pci/devices"
        raise NoValue(Finding(outcome="unknown", text=why, remedy=remedy))


@check(
    "guest-gpudirect",
    title="NICs reach the memory of the GPUs",
    about="each maker of the guest's GPUs, where its plan names NICs for a collectives library",
    why="otherwise every message between hosts is copied through the guest's memory",
    source="NVIDIA GPU Operator, GPUDirect RDMA: nvidia-peermem, or DMA-BUF with the open kernel modules",
    expected="a way for NICs to GPU memory",
    each=_makers,
    inside=True,
)
def guest_gpudirect(on: On, maker: str) -> Finding:
    known = next(vendor.inside for vendor in VENDORS if vendor.name == maker)
    if known.peer_module is None:
        on.skip("no source says what its driver needs for GPUDirect RDMA")
    access = on.evidence.rdma_access or RdmaAccess()
    loaded, opened = access.peer_modules.get(maker), access.open_drivers.get(maker)
    on = on.reading(
        f"/sys/module/{known.peer_module}, {known.driver_text}",
        f"{known.peer_module} loaded, or dma-buf: the open driver on Linux 5.12 or newer",
    )
    if loaded:
        return on.passed(f"{known.peer_module} is loaded")
    version = re.match(r"([0-9]{1,4})\.([0-9]{1,4})", on.host.kernel or "")
    new = None if version is None else (int(version[1]), int(version[2])) >= _DMABUF
    if opened and new:
        return on.passed(f"dma-buf: the open driver on {on.host.kernel}")
    hint = f"modprobe {known.peer_module}, or install the open kernel modules"
    if loaded is False and (opened is False or new is False):
        return on.failed("neither", hint)
    return on.unknown("whether the module is loaded, or the driver is the open one, could not be read", hint)


@check(
    "guest-memlock",
    title="Programs may lock memory for RDMA",
    about="the guest, where its plan names NICs for a collectives library",
    why="RDMA locks memory: with a small limit the library falls back to TCP sockets or fails",
    source="rdma-core, Documentation/libibverbs.md; Linux getrlimit(2), RLIMIT_MEMLOCK",
    expected="unlimited",
    remedy="memlock unlimited in /etc/security/limits.d, LimitMEMLOCK=infinity of a service, --ulimit memlock=-1 of"
    " docker",
    reads="/proc/self/limits",
    inside=True,
)
def guest_memlock(on: On) -> Finding:
    _nics(on.evidence)
    access = on.evidence.rdma_access or RdmaAccess()
    limit = on.need(access.memlock, "the limit of locked memory", look="ulimit -l")
    if limit == UNLIMITED:
        return on.passed("unlimited, for programs that are started as this one")
    return on.warned(f"{limit} bytes, for programs that are started as this one and have no CAP_IPC_LOCK")


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
    settings: dict[str, str] = {}
    for name, equals, value in lines:
        if equals:
            settings.setdefault(name, value)  # setenv(3), without overwriting
    return settings
