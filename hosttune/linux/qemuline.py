"""QEMU's command line, and its configuration files, as options with named values. The input is not trusted.

Sources: QEMU's qemu-options.hx (which options take a value), util/keyval.c and qemu-option.c (key=value; a doubled
comma is one comma; the name of a first value without a key), system/vl.c (-readconfig, -set).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

MOST = 4096  # options of one process
# Options without a value; every other one takes the next word, whatever it is.
_ALONE = frozenset(
    ["S", "s", "h", "help", "version", "snapshot", "nographic", "nodefaults", "no-user-config", "no-shutdown",
     "no-reboot", "no-acpi", "no-hpet", "daemonize", "enable-kvm", "full-screen", "no-fd-bootchk", "preconfig",
     "singlestep", "one-insn-per-tb", "usb", "mem-prealloc", "only-migratable", "xen-attach", "portrait", "no-quit",
     "win2k-hack", "alt-grab", "ctrl-grab", "curses", "semihosting", "enable-fips", "old-param",
     "enable-sync-profile", "no-kvm", "no-kvm-irqchip", "no-frame", "sdl"]
)  # fmt: skip
# The key of a first value that has none.
_FIRST = {
    **{"device": "driver", "object": "qom-type", "netdev": "type", "nic": "type", "net": "type", "numa": "type"},
    **{"blockdev": "driver", "machine": "type", "accel": "accel", "cpu": "model", "smp": "cpus", "m": "size"},
    **{"name": "guest", "fw_cfg": "name"},
}
_ALIASES = {"M": "machine", "memory": "m", "smp-opts": "smp"}  # an option's second name; groups of -readconfig
_PLAIN = ("global", "set", "bios", "pflash", "kernel", "initrd", "append", "mem-path", "uuid", "hda", "hdb", "cdrom")
_SEVERAL = re.compile(r"(cpus|host-nodes)(?:\.[0-9]+)?")  # keys that may be there more than once, or with a number
_UNITS = {"": 20, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_GROUP = re.compile(r'\s*\[([\w.-]{1,64})(?:\s+"([^"]{0,256})")?\]\s*')
_PAIR = re.compile(r'\s*([\w.-]{1,128})\s*=\s*"(.*)"\s*')


class Option(NamedTuple):
    """An option: its name without the dash, and its values by key. The key "" is the text of one without keys."""

    name: str
    values: dict[str, str]

    def get(self, key: str, default: str = "") -> str:
        """Return a value."""
        return self.values.get(key, default)

    def on(self, key: str) -> bool | None:
        """Return whether a switch is on; None if it is not written."""
        value = self.values.get(key)
        return None if value is None else value in ("on", "yes", "true", "y")


def read_options(
    arguments: Sequence[str], config: Callable[[str], str | None]
) -> tuple[tuple[Option, ...], tuple[str, ...]]:
    """Return the options in their order, and what of them could not be read, in words.

    `arguments`: without the program. `config`: the text of a file that -readconfig names; None if it cannot be read.
    """
    options: list[Option] = []
    unread: list[str] = []
    words = iter(arguments)
    for word in words:
        if len(options) >= MOST:
            return tuple(options), (*unread, f"more than {MOST} options")
        name = word.lstrip("-")
        name = _ALIASES.get(name, name)
        if not word.startswith("-") or name in _ALONE:
            options.append(Option(name, {}) if word.startswith("-") else Option("hda", {"": word}))
            continue
        value = next(words, None)
        if value is None:
            unread.append(f"-{name[:40]} without its value")
        elif name == "readconfig":
            text = config(value)
            options += () if text is None else _groups(text)
            unread += [f"-readconfig {value[:200]}: the file cannot be read"] if text is None else []
        elif (values := _values(name, value)) is None:
            unread.append(f"-{name[:40]} {value[:200]}")
        else:
            options.append(Option(name, values))
    by_id = {(option.name, option.get("id")): option for option in options}
    for option in options:
        place, _, value = option.get("").partition("=")
        group, _, rest = place.partition(".")
        name, _, key = rest.rpartition(".")
        if option.name == "set" and (group, name) in by_id:
            by_id[group, name].values[key] = value
    return tuple(options), tuple(unread)


def _values(name: str, text: str) -> dict[str, str] | None:
    if name in _PLAIN:
        return {"": text}
    if text.startswith("{"):
        try:
            return dict(_flat("", json.loads(text)))
        except (ValueError, RecursionError):
            return None
    values: dict[str, str] = {}
    for place, part in enumerate(text.replace(",,", "\0").split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            first = _FIRST.get(name, "") if not place else None
            key, value = (part, "on") if first is None else (first, part)
        _add(values, key, value.replace("\0", ","))
    return values


def _add(values: dict[str, str], key: str, value: str) -> None:
    several = _SEVERAL.fullmatch(key)
    key = several[1] if several else key
    values[key] = f"{values[key]},{value}" if several and key in values else value


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the values of the JSON form under the keys of the other form: {"cache": {"direct": true}}: cache.direct."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else key, inner)
    elif isinstance(value, list) and not any(isinstance(one, dict) for one in value):
        yield prefix, ",".join(map(str, value))
    elif isinstance(value, bool):
        yield prefix, "on" if value else "off"
    elif not isinstance(value, list):
        yield prefix, str(value)


def _groups(text: str) -> Iterator[Option]:
    """Yield the groups of a configuration file: [device "id"], then lines key = "value"."""
    values: dict[str, str] = {}
    for line in text.splitlines()[:MOST]:
        if group := _GROUP.fullmatch(line):
            values = {"id": group[2]} if group[2] else {}
            yield Option(_ALIASES.get(group[1], group[1]), values)
        elif pair := _PAIR.fullmatch(line):
            _add(values, pair[1], pair[2])


def size_of(text: str, unit: str = "") -> int | None:
    """Return the bytes of a size ("4G", "0x1000"); a number without a suffix has `unit` ("": MiB)."""
    match = re.fullmatch(r"(0x[0-9a-f]{1,16}|[0-9]{1,18})([bkmgt]?)(?:ib)?", text.lower())
    if match is None:
        return None
    return int(match[1], 16 if match[1].startswith("0x") else 10) << _UNITS[match[2] or unit]
