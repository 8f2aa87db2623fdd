"""The rule of a QEMU that runs: what of it could not be read; and the settings of those who start it, for remedies."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

from hosttune.assets import read_table
from hosttune.domain.definitions import managers_in
from hosttune.domain.running import UNREAD
from hosttune.rules.engine import Finding
from hosttune.rules.lint.guest_on_host import GuestOnHost
from hosttune.rules.lint.rule import INFO, rule, unknown

# They ask for what is libvirt's alone, for what neither an option nor /proc says, or for what QEMU does not start with.
NOT_ASKED = (
    *("managed", "hugetlbfs-mount", "memory-locking", "secure-boot", "qemu-arguments", "qemu-set", "confidential-type"),
    *("device-place", "hypervisor-offers", "confidential-devices", "guest-arch", "topology", "device-twice"),
    *(
        "libvirt-knows",
        "address-twice",
        "address-slot",
        "port-chassis",
    ),  # beside the chassis a port has a slot, which no XML has
)
BY_HAND = "started by hand"
RUNNING_READ = "running-read"
_METADATA = "/domain/metadata"


class Manager(msgspec.Struct, frozen=True):
    """Who started a QEMU, and by which id its commands know it."""

    name: str = BY_HAND
    id: str | None = None


class _Settings(msgspec.Struct, frozen=True):
    """`managers.toml`: how each manager passes on QEMU's options or XML; of each rule its own setting, or QEMU's."""

    through: dict[str, str]
    written: dict[str, str]
    rules: dict[str, dict[str, str]]


@cache
def _settings() -> _Settings:
    return msgspec.convert(read_table(Path(__file__).with_name("managers.toml")), _Settings)


def author_of(scene: GuestOnHost) -> Manager | None:
    """Return the program whose metadata a definition has, and that writes it anew."""
    names = managers_in([str(element.tag)[1:] for element in scene.root.iterfind("metadata/*")])
    return Manager(names[0], (scene.guest.name or "").removeprefix("one-")) if names else None


def remedy_of(manager: Manager, rule_id: str, written: str) -> str:
    """Return what to do about a finding with the manager's own setting, or with QEMU's option. `written`: for XML."""
    if manager.name == "libvirt":
        return written
    settings, text = _settings(), written
    known = settings.rules.get(rule_id, {})
    if manager.name in known:
        text = known[manager.name]
    elif "qemu" in known and manager.name not in settings.written:
        text = f"{settings.through.get(manager.name, '')}{known['qemu']}"
    elif "<" in written:
        text = settings.written.get(manager.name, "in libvirt's words: ") + written
    return text.replace("{id}", manager.id or "ID")


@rule(
    RUNNING_READ,
    INFO,
    _METADATA,
    right="all options and threads of a QEMU that runs can be read",
    why="what is not read is not judged, and other findings may not hold",
    source="QEMU docs/system/invocation; proc(5)",
    remedy="run hosttune as root, on the host itself",
    applies=lambda scene: scene.written(f"metadata/{UNREAD}"),
)
def running_read(scene: GuestOnHost) -> Iterator[Finding]:
    """Say each option, file and thread that could not be read."""
    for element in scene.root.iterfind(f"metadata/{UNREAD}"):
        yield unknown(element.text or "", _METADATA)
