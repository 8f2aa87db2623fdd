"""What the host's tools say of a network function: interfaces, versions and configuration of its firmware. Reads only.

Sources of the forms: iproute2 6.x, ip/ipaddress.c (print_linkinfo, print_vfinfo) and devlink/devlink.c
(cmd_dev_info_cb, pr_out_param); Mellanox/mstflint, mlxconfig/mlxcfg_ui.cpp (printConfHeader, printSingleParam);
ethtool(8); Documentation/networking/devlink/devlink-info.rst (fixed, running, stored) and devlink-params.rst
(permanent: kept in the device). A capture has the answers as `.hosttune/commands/NAME-…`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hosttune.machine.iplink import ask, json_of, link_of
from hosttune.machine.system import System
from hosttune.model import sysfs
from hosttune.model.values import INTERFACE, FrozenMap, Value

_COLUMNS = ("Default", "Current", "Next Boot")
_ROW = re.compile(r"(?P<changed>[* ])(?P<read_only>RO|  ) +(?P<name>[A-Za-z][\w.\[\]]*)\s+(?P<values>\S.*)")
# Below the table. Parameters that could not be read make the command fail.
_REMARKS = ("The '*' shows", "The 'RO' shows", "Device Firmware does not support reading ")
_ARRAY = re.compile(r"Array(\[[0-9]{1,5}\.\.[0-9]{1,5}\])")
_ADDRESS = re.compile(r"^Permanent address: ([0-9a-f]{2}(?::[0-9a-f]{2})+)$", re.MULTILINE)
_FIRMWARE = re.compile(r"^firmware-version: *(\S.*)$", re.MULTILINE)
_NONE = ("", "N/A")
# Drivers whose devices have hundreds of parameters, of which devlink shows a few: only their own tool shows them.
_OWN_TOOL = ("mlx4_core", "mlx5_core")


class Configuration(Value, frozen=True, kw_only=True):
    """The firmware configuration of a function, by parameter.

    - `values`: what counts after the next boot of the firmware. `current`: what counts now; a name that it lacks is not
      told. `default`: the maker's. `hidden`: arrays whose elements are not shown ("NAME[0..15]").
    - `source`: the command that said so.
    """

    values: Mapping[str, str]
    current: Mapping[str, str] = FrozenMap({})
    default: Mapping[str, str] = FrozenMap({})
    hidden: tuple[str, ...] = ()
    source: str

    @property
    def pending(self) -> tuple[str, ...]:
        """The parameters that will have another value after the next boot of the firmware."""
        return tuple(sorted(name for name, value in self.current.items() if value != self.values.get(name)))

    @property
    def changed_from_default(self) -> tuple[str, ...]:
        """The parameters that are not as the maker set them."""
        return tuple(sorted(name for name, value in self.default.items() if value != self.values.get(name)))


class KernelInterface(Value, frozen=True, kw_only=True):
    """A network interface: number, addresses, the address burnt in (None: unknown), and ids of XDP programs on it."""

    name: str
    index: int
    kind: str | None
    address: str | None
    permanent: str | None
    xdp: tuple[int, ...] = ()


def names_of(system: System, address: str, kind: str) -> tuple[str, ...]:
    """Return the names of a function's interfaces (`net`) or RDMA devices (`infiniband`). Raises Unreadable."""
    return tuple(system.list(sysfs.function(address, kind)))


def interface_of(system: System, name: str) -> KernelInterface | None:
    """Return an interface as it is now; None if that cannot be told."""
    link = link_of(system, name)
    index = link.get("ifindex") if link is not None else None
    if link is None or type(index) is not int:
        return None
    address = link.get("address")
    address = address if isinstance(address, str) else None
    return KernelInterface(
        name=name,
        index=index,
        kind=link.get("link_type") if isinstance(link.get("link_type"), str) else None,
        address=address,
        permanent=_permanent(system, name, link, address),
        xdp=_programs(link.get("xdp")),
    )


def _permanent(system: System, name: str, link: Mapping[str, Any], address: str | None) -> str | None:
    """Return the address that is burnt in. `permaddr` is only shown where the address differs from it.

    The kernel says 0 in `addr_assign_type` for an interface that has its permanent address (NET_ADDR_PERM).
    """
    if isinstance(link.get("permaddr"), str):
        return str(link["permaddr"])
    match = _ADDRESS.search(ask(system, f"ethtool-P-{name}", ("ethtool", "-P", name)) or "")
    if match:
        return match[1]
    return address if (system.read(f"/sys/class/net/{name}/addr_assign_type") or "").strip() == "0" else None


def _programs(xdp: object) -> tuple[int, ...]:
    """Return the ids of an interface's XDP programs (`xdp` of ip: one `prog`, or several in `attached`); 0: no id."""
    if not isinstance(xdp, dict):
        return ()
    listed = xdp.get("attached")
    each = listed if isinstance(listed, list) and listed else [xdp]
    programs = [entry.get("prog") for entry in each if isinstance(entry, dict)]
    ids = [program.get("id") if isinstance(program, dict) else None for program in programs]
    return tuple(entry if type(entry) is int else 0 for entry in ids)


# --- firmware ------------------------------------------------------------------------------------------------------


def versions(system: System, address: str) -> Mapping[str, str] | None:
    """Return the firmware versions of a function that its own driver has; None if nothing tells them.

    `fw_ver`: Documentation/ABI/stable/sysfs-class-infiniband. `fw…`: devlink's running ones. `firmware-version`:
    ethtool's. Raises Unreadable.
    """
    names = names_of(system, address, "infiniband")
    texts = [system.read(sysfs.function(address, f"infiniband/{name}/fw_ver")) for name in names]
    if texts and all(texts):
        return FrozenMap({"fw_ver": " ".join(sorted({text.strip() for text in texts if text}))})
    running = _info(system, address).get("running")
    found = {name: text for name, text in (running or {}).items() if name == "fw" or name.startswith("fw.")}
    if found:
        return FrozenMap(found)
    for interface in names_of(system, address, "net"):
        if INTERFACE.fullmatch(interface):
            answer = _FIRMWARE.search(ask(system, f"ethtool-i-{interface}", ("ethtool", "-i", interface)) or "")
            if answer and answer[1].strip() not in _NONE:
                return FrozenMap({"firmware-version": answer[1].strip()})
    return None


def waiting(system: System, address: str) -> Mapping[str, str]:
    """Return the firmware that is stored to run after the next reset and is not what runs now, by component."""
    info = _info(system, address)
    running, stored = info.get("running") or {}, info.get("stored") or {}
    return {name: text for name, text in sorted(stored.items()) if name in running and running[name] != text}


def _info(system: System, address: str) -> Mapping[str, Mapping[str, str]]:
    """Return devlink's versions of a function, by their kind; empty if it tells none."""
    handle = f"pci/{address}"
    info = json_of(ask(system, f"devlink-info-{address}", ("devlink", "-j", "dev", "info", handle)))
    try:
        kinds = info["info"][handle]["versions"]
        return {kind: {str(name): str(text) for name, text in rows.items()} for kind, rows in kinds.items()}
    except (KeyError, TypeError, AttributeError):
        return {}


def configuration(system: System, address: str, driver: str | None) -> tuple[Configuration | None, str]:
    """Return (the firmware configuration of a function, ""), or (None, why it is unknown).

    `mstconfig` (or `mlxconfig`) reads it whichever driver has the function; devlink only while its own driver has it.
    """
    for program in ("mstconfig", "mlxconfig"):
        argv = (program, "-e", "-d", address, "q")
        text = ask(system, f"{program}-{address}", argv)
        if text is not None:
            try:
                found = parse_configuration(text, " ".join(argv))
                return _with_arrays(system, address, argv, found), ""
            except ValueError as error:
                return None, f"the answer of {program} is not understood: {error}"
    if driver in _OWN_TOOL:
        return None, "mstconfig cannot read it: install mstflint (package mstflint), and run it as root"
    handle = f"pci/{address}"
    text = ask(system, f"devlink-param-{address}", ("devlink", "-j", "dev", "param", "show", handle))
    values = _permanent_parameters(json_of(text), handle)
    if values:
        return Configuration(values=FrozenMap(values), source=f"devlink dev param show {handle}"), ""
    return None, "neither mstconfig nor devlink (parameters that the device keeps) tells it"


def _with_arrays(system: System, address: str, argv: tuple[str, ...], found: Configuration) -> Configuration:
    """Return a configuration with the elements of its arrays, which are shown only if they are asked for by name.

    (`q NAME[0..15]`: mlxcfg_utils.cpp, extractIndexes.) Arrays that are not shown stay hidden. Raises ValueError.
    """
    if not found.hidden:
        return found
    text = ask(system, f"{argv[0]}-arrays-{address}", (*argv, *found.hidden))
    if text is None:
        return found
    more = parse_configuration(text, found.source)
    shown = {name.partition("[")[0] for name in more.values}
    asked = [name for name in found.hidden if name.partition("[")[0] in shown]
    elements = {f"{name.partition('[')[0]}[{number}]" for name in asked for number in _numbers(name)}
    if more.hidden or elements != more.values.keys():
        raise ValueError("other elements of arrays than those asked for")
    return Configuration(
        values=FrozenMap({**found.values, **more.values}),
        current=FrozenMap({**found.current, **more.current}),
        default=FrozenMap({**found.default, **more.default}),
        hidden=tuple(name for name in found.hidden if name.partition("[")[0] not in shown),
        source=found.source,
    )


def _numbers(array: str) -> range:
    """Return the numbers of the elements of an array ("NAME[0..15]")."""
    first, last = (int(word) for word in array.partition("[")[2].removesuffix("]").split(".."))
    return range(first, min(last, first + 9999) + 1)


def _permanent_parameters(parameters: Any, handle: str) -> dict[str, str]:
    """Return the parameters that the device itself keeps; empty if none is told."""
    try:
        return {
            str(row["name"]): str(value["value"])
            for row in parameters["param"][handle]
            for value in row["values"]
            if value.get("cmode") == "permanent"
        }
    except (KeyError, TypeError, AttributeError):
        return {}


def parse_configuration(text: str, source: str) -> Configuration:
    """Return the table that `mstconfig -e query` prints for one device. Raises ValueError for anything else.

    A row has one word for each column: `Default`, `Current` and `Next Boot`, or only some of them.
    """
    heads = [line for line in text.splitlines() if line.startswith("Configurations:")]
    if len(heads) != 1:
        raise ValueError(f"{len(heads)} tables in place of one")
    columns = [name for name in _COLUMNS if re.search(rf" {name}(?: |$)", heads[0])]
    if columns[-1:] != ["Next Boot"] or " ".join(heads[0].split()[1:]) != " ".join(columns):
        raise ValueError(f"columns {heads[0][:80]!r}")
    rows: dict[str, list[str]] = {}
    for line in text.partition(heads[0])[2].splitlines():
        if line.startswith(_REMARKS):
            continue
        match = _ROW.fullmatch(line.rstrip())
        if match is None and line.strip():
            raise ValueError(f"line {line.strip()[:80]!r}")
        if match is not None:
            values = match["values"].split()
            if len(values) != len(columns) or match["name"] in rows:
                raise ValueError(f"line {line.strip()[:80]!r}")
            rows[match["name"]] = values
    if not rows:
        raise ValueError("no parameter")
    arrays = {name: found for name, values in rows.items() if (found := _ARRAY.fullmatch(values[-1]))}
    shown = {name: values for name, values in rows.items() if name not in arrays}

    def column(name: str) -> FrozenMap[str, str]:
        if name not in columns:
            return FrozenMap({})
        return FrozenMap({row: values[columns.index(name)] for row, values in sorted(shown.items())})

    return Configuration(
        values=column("Next Boot"), current=column("Current"), default=column("Default"), source=source,
        hidden=tuple(sorted(f"{name}{match[1]}" for name, match in arrays.items())),
    )  # fmt: skip
