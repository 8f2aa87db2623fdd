"""Hosts, statements and keys of hand-overs, for tests. Everything here is synthetic."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from planhosts import Card, build_host

from hosttune.handover.statement import handed_device
from hosttune.handover.verify import Live
from hosttune.model.handover import STEPS, HandoverStep, Predicate, Statement
from hosttune.model.host import Host
from hosttune.model.quarantine import DeviceRecord, HandoverState, StartRecording
from hosttune.model.values import to_json

GPU, DRIVE = "0000:41:00.0", "0000:c1:00.0"
FIRMWARE: Mapping[str, Mapping[str, str]] = {GPU: {"vbios": "96.00.61"}, DRIVE: {"firmware_rev": "GDC5602Q"}}
APPLIED: Mapping[str, Any] = {"driver:0000:41:00.0": "vfio-pci", "ksm:/sys/kernel/mm/ksm/run": 2}
BOOT, ISSUED, SIGNER = "3f0c6d3e-0000-4000-8000-000000000001", "2026-01-01T00:00:00+00:00", "ops@example.com"
DONE = tuple(HandoverStep(step=step, outcome="done", method="tried", evidence={"read": [1, 2]}) for step in STEPS)


def host(**changes: Any) -> Host:
    """A host whose two devices were returned clean, with starts recorded; its handover and fields can be changed."""
    document = build_host(cards=[Card(GPU, 0, group=1), Card(DRIVE, 0, "nvme", group=9)])
    found = Host.from_json(to_json({**document, "hostname": "node1", "boot_id": BOOT, "digest": "d" * 64}))
    state = HandoverState(
        devices=tuple(record(address) for address in (GPU, DRIVE)),
        epochs={GPU: 3, DRIVE: 0},
        recording=StartRecording(active=True),
    )
    return msgspec.structs.replace(found, **{"handover": state, "guests": (), **changes})


def record(address: str, **changes: Any) -> DeviceRecord:
    """A device of the register that was returned clean."""
    facts: dict[str, Any] = {
        "address": address, "identity": f"{address} 10de:2335", "state": "clean", "since": ISSUED, "why": "hand-over",
        "boot_id": BOOT, "epoch": {GPU: 3, DRIVE: 0}[address], "driver": "vfio-pci", "firmware": FIRMWARE[address],
    }  # fmt: skip
    return DeviceRecord(**{**facts, **changes})


def with_state(found: Host, **changes: Any) -> Host:
    """The host with another state of its register."""
    assert found.handover is not None
    return msgspec.structs.replace(found, handover=msgspec.structs.replace(found.handover, **changes))


def live(found: Host, **changes: Any) -> Live:
    """The host as it is now."""
    return Live(**{"host": found, "applied": APPLIED, "firmware": FIRMWARE, **changes})


def statement(found: Host | None = None, **changes: Any) -> Statement:
    """The statement of the two devices; fields of its predicate can be changed."""
    there = found or host()
    facts: dict[str, Any] = {
        "host": there.hostname, "boot_id": there.boot_id, "machine": there.digest, "applied": APPLIED,
        "devices": tuple(handed_device(there, address, DONE, FIRMWARE[address]) for address in (GPU, DRIVE)),
        "issued_at": ISSUED,
    }  # fmt: skip
    return Statement.of(Predicate(**{**facts, **changes}))


class Keys:
    """A signer's key with its list of allowed signers, a key of another signer, and an empty list of revoked keys."""

    def __init__(self, folder: Path) -> None:
        self.key, self.other = folder / "key", folder / "other"
        for path in (self.key, self.other):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
        self.signers = folder / "allowed_signers"
        self.allow(self.key)
        self.revoked = folder / "krl"
        self.revoke()

    def allow(self, key: Path, options: str = 'namespaces="hosttune-handover"') -> None:
        """Make a key the only allowed one, under the signer's name."""
        kind, data, *_ = key.with_suffix(".pub").read_text().split()
        self.signers.write_text(f"{SIGNER} {options} {kind} {data}\n")

    def revoke(self, *keys: Path) -> None:
        """Make these the revoked keys."""
        paths = [str(key.with_suffix(".pub")) for key in keys]
        self.revoked.unlink(missing_ok=True)
        subprocess.run(["ssh-keygen", "-q", "-k", "-f", str(self.revoked), *paths], check=True)
