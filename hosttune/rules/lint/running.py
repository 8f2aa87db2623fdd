"""The rule of a QEMU that runs: what of it could not be read; and the settings of those who start it, for remedies."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

from hosttune.assets import read_table
from hosttune.domain.running import UNREAD
from hosttune.rules.engine import Finding
from hosttune.rules.lint.guest_on_host import GuestOnHost
from hosttune.rules.lint.rule import INFO, rule, unknown

# They ask for what is libvirt's alone, or for what neither an option nor /proc says.
NOT_ASKED = ("managed", "hugetlbfs-mount", "memory-locking", "secure-boot", "qemu-arguments")
BY_HAND = "started by hand"
RUNNING_READ = "running-read"
_METADATA = "/domain/metadata"


class Manager(msgspec.Struct, frozen=True):
    """Who started a QEMU, and by which id its commands know it."""

    name: str = BY_HAND
    id: str | None = None


class _Settings(msgspec.Struct, frozen=True):
    """`managers.toml`: how each manager passes an option to QEMU; of each rule its own setting, or QEMU's option."""

    through: dict[str, str]
    rules: dict[str, dict[str, str]]


@cache
def _settings() -> _Settings:
    return msgspec.convert(read_table(Path(__file__).with_name("managers.toml")), _Settings)


def remedy_of(manager: Manager, rule_id: str, written: str) -> str:
    """Return what to do about a finding with the manager's own setting, or with QEMU's option. `written`: for XML."""
    if manager.name == "libvirt":
        return written
    known, through = _settings().rules.get(rule_id, {}), _settings().through.get(manager.name, "")
    text = known.get(manager.name) or (
        f"{through}{known['qemu']}" if "qemu" in known else f"in libvirt's words: {written}"
    )
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
