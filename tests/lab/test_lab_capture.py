"""A capture taken on a real kernel replays elsewhere to the same host document."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.machine import LabMachine
from lab.product import discover_capture, document_of, outside

pytestmark = pytest.mark.lab

# Replaced or left out by design: what identifies the machine, and the digest that ties a plan to it.
# A guest's UUID is made from the host's name.
SCRUBBED = {"digest", "hostname", "boot_id", "uuid", "dsn"}
# Counted by the kernel between the two readings.
MOVING = {"free_bytes", "cache_bytes", "effective"}


@pytest.fixture(scope="module")
def archive(lab: LabMachine) -> Iterator[Path]:
    """The capture, brought here."""
    lab.shell("hosttune capture /root/lab.tar.gz")
    path = lab.folder / "lab.tar.gz"  # goes with the machine
    path.write_bytes(lab.fetch("/root/lab.tar.gz"))
    yield path
    lab.shell("rm /root/lab.tar.gz")


def test_a_capture_replays_to_the_same_document(archive: Path, document: dict[str, Any]) -> None:
    replayed = discover_capture(archive)
    assert replayed["digest"] is None
    assert _settled(replayed) == _settled(document | {"in_force": None})  # a capture does not say it


def test_a_capture_does_not_name_the_machine(archive: Path, document: dict[str, Any], lab: LabMachine) -> None:
    machine_id = lab.shell("cat /etc/machine-id").strip()
    secrets = (document["boot_id"], machine_id, "52:54:00:00:46:01")
    with tarfile.open(archive) as tar:
        for member in tar:
            stream = tar.extractfile(member) if member.isfile() else None
            contents = stream.read() if stream else b""
            for secret in secrets:
                assert secret.encode() not in contents, f"{secret} in {member.name}"


def test_a_plan_from_the_capture_is_the_one_of_the_host(archive: Path, lab: LabMachine) -> None:
    arguments = ("plan", "--gpu", "0000:41:00.0", "--memory", "512MiB", "--hugepages", "2MiB", "-o", "json")
    there = document_of(lab.shell(f"hosttune {' '.join(arguments)} --out /root/plan.json"))
    here = document_of(outside(*arguments, "--root", str(archive)))
    lab.shell("rm /root/plan.json")
    assert here["host_digest"] is None
    assert re.fullmatch("[0-9a-f]{64}", there["host_digest"])
    for field in ("guests", "actions", "unplaced", "housekeeping_cpus"):
        assert _settled(here[field]) == _settled(there[field]), field


def _settled(value: Any) -> Any:
    """A document without what is scrubbed or moves by itself."""
    if isinstance(value, dict) and "nodes" in value:
        links = ("/dev/disk/", "/dev/scrubbed-")
        nodes = sorted(("a link" if name.startswith(links) else name, on) for name, on in value["nodes"].items())
        value = {**value, "nodes": nodes}
    if isinstance(value, dict):
        return {key: _settled(item) for key, item in value.items() if key not in SCRUBBED | MOVING}
    if isinstance(value, list):
        return [_settled(item) for item in value]
    return value
