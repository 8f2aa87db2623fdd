"""System → how RoCE ports are set: GIDs, MTU, trust, flow control, congestion control, traffic class. Read only.

A capture must hold, of each RDMA device with a RoCE port: the first port's `gid_attrs/types`, `tc/1/traffic_class`,
the interface's `ecn/roce_np/enable` and `ecn/roce_rp/enable`, and the answers `mlnx-qos-NAME`, `dcb-pfc-NAME`,
`dcb-apptrust-NAME` and `ibv-devinfo-DEVICE` (without GUIDs). Sources: Documentation/ABI/stable/sysfs-class-infiniband;
iproute2, dcb(8); rdma-core, ibv_devinfo(1). ecn and tc are of NVIDIA's own driver (MLNX_OFED, DOCA-OFED): "ECN", "RoCE
traffic class" of its manual; the kernel's mlx5 has neither. mlnx_qos is of the same packages (Mellanox/mlnx-tools).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from hosttune.discovery.portfiles import NET, RDMA, tool_answer, unchanged
from hosttune.discovery.ports import represents
from hosttune.errors import BadInput
from hosttune.machine.reader import Reader
from hosttune.model.host import Host, Nic
from hosttune.model.jsontext import recorded_json
from hosttune.model.ports import RoceState

DEVINFO = "ibv-devinfo-"  # and the RDMA device: the name of the answer about it
V2 = "RoCE v2"  # drivers/infiniband/core/cache.c, gid_type_str
_PRIORITIES = tuple(str(number) for number in range(8))
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_MOST_GIDS = 1024
_TRUST = re.compile(r"^Priority trust state: (dscp|pcp)\s*$", re.MULTILINE)
_PFC = re.compile(r"PFC configuration:\s*\n\s*priority:?((?:\s+[0-9])+)\s*\n\s*enabled:?((?:\s+[01])+)\s*(?:\n|$)")
_CLASS = re.compile(r"Global tclass=([0-9]{1,3})")
_KEPT = re.compile(r"hca_id:|\s*(?:port:|state:|max_mtu:|active_mtu:|link_layer:)")
_ACTIVE = re.compile(r"port:\s*1\s*\n(?:(?!\s*port:).*\n){0,60}?\s*active_mtu:\s*([0-9]{3,4}) \([1-5]\)")


def read_roce(reader: Reader, host: Host) -> dict[str, RoceState]:
    """Return by address how the RoCE port of each physical NIC is set. NICs of which a guest or VFIO has the driver
    have no RDMA device here."""
    states: dict[str, RoceState] = {}
    for nic in host.nics:
        named = nic.rdma is not None and _NAME.fullmatch(nic.rdma)
        if named and nic.physfn is None and not nic.fabric_bridge and nic.link_layer == "Ethernet":
            states[nic.address] = _state(reader, nic, nic.rdma or "")
    return states


def _state(reader: Reader, nic: Nic, device: str) -> RoceState:
    own = [name for name in nic.interfaces if _NAME.fullmatch(name) and not represents(reader, name)]
    interface = own[0] if len(own) == 1 else None
    why: dict[str, str] = {}
    trust, pfc = _priorities(reader, interface, why)
    text, error = _answer(reader, f"{DEVINFO}{device}", ("ibv_devinfo", "-d", device), strip_devinfo)
    active_mtu = parse_active_mtu(text or "")
    if active_mtu is None:
        why["active_mtu"] = f"ibv_devinfo: {error or 'not understood'}"
    # The types of GIDs up to the first of RoCE v2. An index without a GID has no type: reading it fails.
    folder = f"{RDMA}/{device}/ports/1/gid_attrs/types"
    names = [name for name in reader.names(folder) if re.fullmatch("[0-9]{1,4}", name)]
    types: list[str] = []
    for name in sorted(names, key=int)[:_MOST_GIDS]:
        text = reader.text(f"{folder}/{name}")
        if text and text not in types:
            types.append(text)
        if text == V2:
            break
    path = f"{RDMA}/{device}/tc/1/traffic_class"
    text = reader.text(path)
    if text is None:
        why["traffic_class"] = f"no {path}: only NVIDIA's own driver shows it" if reader.lacks(path) else "not read"
        traffic_class = None
    else:
        match = _CLASS.match(text)
        traffic_class = int(match[1]) if match else -1 if not text else None
    return RoceState(
        device=device,
        interface=interface,
        active_mtu=active_mtu,
        gid_types=tuple(types) or None,
        trust=trust,
        pfc=pfc,
        ecn_np=_ecn(reader, interface, "np", why),
        ecn_rp=_ecn(reader, interface, "rp", why),
        traffic_class=traffic_class,
        why=why,
    )


def _ecn(reader: Reader, interface: str | None, end: str, why: dict[str, str]) -> tuple[int, ...] | None:
    if interface is None:
        why["ecn"] = "which interface is the port's is not known"
        return None
    folder = f"{NET}/{interface}/ecn/roce_{end}/enable"
    words = [reader.text(f"{folder}/{number}") for number in _PRIORITIES]
    if any(word not in ("0", "1") for word in words):
        why["ecn"] = f"no {folder}: only NVIDIA's own driver shows it" if reader.lacks(folder) else "not read"
        return None
    return tuple(number for number, word in enumerate(words) if word == "1")


# --- commands ------------------------------------------------------------------------------------------------------


def _priorities(
    reader: Reader, interface: str | None, why: dict[str, str]
) -> tuple[str | None, tuple[int, ...] | None]:
    """Return trust and priorities with flow control, of mlnx_qos or else of dcb."""
    if interface is None:
        why["trust"] = why["pfc"] = "which interface is the port's is not known"
        return None, None
    text, error = _answer(reader, f"mlnx-qos-{interface}", ("mlnx_qos", "-i", interface))
    rows, row_error = _answer(reader, f"dcb-pfc-{interface}", ("dcb", "-j", "pfc", "show", "dev", interface))
    order, _ = _answer(reader, f"dcb-apptrust-{interface}", ("dcb", "-j", "apptrust", "show", "dev", interface))
    trust = parse_trust(text or "") or parse_apptrust(order or "")
    pfc = parse_pfc(text or "")
    pfc = parse_dcb_pfc(rows or "") if pfc is None else pfc
    for name, value in (("trust", trust), ("pfc", pfc)):
        if value is None:
            why[name] = f"mlnx_qos: {error or 'not understood'}; dcb: {row_error or 'not understood'}"
    return trust, pfc


def parse_trust(text: str) -> str | None:
    """Return the trust state of `mlnx_qos -i NAME`; None if it is not there once."""
    words = set(_TRUST.findall(text))
    return words.pop() if len(words) == 1 else None


def parse_pfc(text: str) -> tuple[int, ...] | None:
    """Return the priorities that `mlnx_qos -i NAME` shows as enabled; None if it does not show all eight, once."""
    rows = _PFC.findall(text)
    if len(rows) != 1 or tuple(rows[0][0].split()) != _PRIORITIES or len(rows[0][1].split()) != len(_PRIORITIES):
        return None
    return tuple(number for number, word in enumerate(rows[0][1].split()) if word == "1")


def parse_dcb_pfc(text: str) -> tuple[int, ...] | None:
    """Return the priorities of `dcb -j pfc show`: {"prio_pfc": [eight booleans], …}."""
    states = _member(text, "prio_pfc")
    if (
        not isinstance(states, list)
        or len(states) != len(_PRIORITIES)
        or any(type(state) is not bool for state in states)
    ):
        return None
    return tuple(number for number, on in enumerate(states) if on)


def parse_apptrust(text: str) -> str | None:
    """Return what `dcb -j apptrust show` trusts first: {"order": ["dscp", "pcp"]}."""
    order = _member(text, "order")
    first = order[0] if isinstance(order, list) and order else None
    word = first.strip() if isinstance(first, str) else None
    return word if word in ("dscp", "pcp") else None


def parse_active_mtu(text: str) -> int | None:
    """Return the active MTU of the first port in `ibv_devinfo -d DEVICE`."""
    sizes = set(_ACTIVE.findall(text))
    return int(sizes.pop()) if len(sizes) == 1 else None


def _member(text: str, name: str) -> object:
    try:
        document = recorded_json(text, where="dcb") if text else None
    except BadInput:
        return None
    return document.get(name) if isinstance(document, dict) else None


def _answer(
    reader: Reader, query: str, argv: tuple[str, ...], keep: Callable[[str], str] = unchanged
) -> tuple[str | None, str | None]:
    """Return a command's text, or why there is none."""
    text, error = tool_answer(reader, query, argv, keep)
    return text, error if text is not None or error else "not recorded"


def strip_devinfo(text: str) -> str:
    """Return the answer of ibv_devinfo without GUIDs and what else is not read; an error as it is."""
    if text.startswith("{"):
        return text
    return "".join(line for line in text.splitlines(keepends=True) if _KEPT.match(line))
