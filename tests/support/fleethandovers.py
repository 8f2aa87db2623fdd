"""Simulated hosts between two tenants, for tests of the fleet: the hand-over was made before, and a stand-in tells it.

Everything after it is real: the signature on the controller, and the verification on the host's scratch root.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coursekills import ASKED, DRIVE, NIC, passing_all, root_of
from courses import Wiped, handed
from fleethosts import HOSTTUNE, Fleet, script
from handovers import SIGNER, Keys

from hosttune.model.verification import VERIFICATION_SCHEMA

COMMAND = """echo "$1 $2" >> {log}
case "$*" in *--dry-run*) exec {hosttune} "$@" ;; esac
case "$1 $2" in
  "handover verify") {verify} ;;
  "handover "*) cat {statement}; exit {code} ;;
  *) {other} ;;
esac"""


class Between:
    """One host that hands its drive and NIC over, in a folder; `outcome`: that of their erasure."""

    def __init__(self, folder: Path, name: str, outcome: str = "done") -> None:
        self.folder, self.name = folder, name
        self.root = folder / "handed" / name
        self.done = folder / f"{name}-done.json"
        self.log, self.verify = folder / f"{name}-log", f'exec {HOSTTUNE} "$@"'
        self.clean = handed(root_of(self.root), ASKED, Wiped(outcome), passing_all, out=str(self.done)).clean

    def variables(self, other: str = "exit 9") -> dict[str, Any]:
        """The variables of the host in an inventory; `other`: shell for any other command."""
        code = 0 if self.clean else 1
        text = COMMAND.format(log=self.log, hosttune=HOSTTUNE, statement=self.done, code=code, other=other,
                              verify=self.verify)  # fmt: skip
        return {
            "hosttune_root": str(self.root), "hosttune_handover": [DRIVE, NIC], "hosttune_erase": ["S1"],
            "hosttune_command": script(self.folder / f"{self.name}-command", text),
        }  # fmt: skip

    def asked(self) -> list[str]:
        """The commands that reached the host, in order."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    def verifies(self, answer: Mapping[str, object]) -> None:
        """The host says of any statement that this one is valid."""
        kept = self.folder / f"{self.name}-verified"
        kept.write_text(json.dumps({"schema": VERIFICATION_SCHEMA, "verdict": "valid", "about": "host", **answer}))
        self.verify = f"cat {kept}"

    def states(self, issued_at: str) -> None:
        """The host states what it has done as issued at another time."""
        document = json.loads(self.done.read_text())
        document["predicate"]["issued_at"] = issued_at
        self.done.write_text(json.dumps(document))

    def boots(self) -> None:
        """The host boots: every statement about it is void."""
        path = self.root / "proc/sys/kernel/random/boot_id"
        path.write_text("00000000-0000-4000-8000-00000000000b\n")


def signing(folder: Path) -> dict[str, str]:
    """The variables that sign and verify, with keys of their own."""
    (folder / "keys").mkdir(exist_ok=True)
    keys = Keys(folder / "keys")
    return {"hosttune_key": str(keys.key), "hosttune_signers": str(keys.signers), "hosttune_identity": SIGNER,
            "hosttune_revoked": str(keys.revoked)}  # fmt: skip


def fleet_of(folder: Path, hosts: list[Between], **others: dict[str, Any]) -> Fleet:
    """The hosts that hand over, others with variables of their own, and the keys."""
    return Fleet(folder, {**{one.name: one.variables() for one in hosts}, **others}, signing(folder))


def statement(fleet: Fleet, host: str) -> dict[str, Any]:
    """The statement that is kept beside the answers of a host."""
    found: dict[str, Any] = json.loads((fleet.results / host / "statement.json").read_text())
    return found
