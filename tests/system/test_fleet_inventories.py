"""The shipped inventories: each parses, each host's intent is one, and is planned where there is a host to plan on."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from applyroots import EXAMPLE
from examplehosts import discovered
from fleethosts import BIN, PLAYBOOKS, ROOT, Fleet

from hosttune import plan
from hosttune.model.host import Host
from hosttune.model.intent import Intent

INVENTORIES = ROOT / "inventories"
HOSTS = {
    "example": ["example"],
    "lab-2": ["lab-1", "lab-2"],
    "hgx-h200-8": ["h200-01", "h200-02", "h200-03", "h200-04"],
    "h100-16-ib": ["h100-01", "h100-02"],
    "gaudi3": ["gaudi-01", "gaudi-02"],
    "mi300x": ["mi300x-01", "mi300x-02"],
}
KNOWN = {
    "command", "root", "intent", "level", "results", "record", "against", "gate", "floors", "timeout", "version", "run",
    "start", "no_guests", "prune", "disrupt", "force", "keep", "waves", "forks", "drain", "undrain", "reboot",
    "reboot_guests", "reboot_with", "templates",
}  # fmt: skip


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, dict[str, Any]]]:
    """Inventory → host → its variables; the intents of its groups and its own as one."""
    environment = Fleet(tmp_path_factory.mktemp("listed"), {}).environment()
    found = {}
    for name in HOSTS:
        command = [str(BIN / "ansible-inventory"), "-i", str(INVENTORIES / name), "--list", "--export"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=ROOT)
        assert done.stderr == ""
        found[name] = variables_of("all", json.loads(done.stdout), name, {})
    return found


def variables_of(
    group: str, exported: dict[str, Any], inventory: str, above: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """Host → variables, of a group and those below it. Each host of these inventories is in one group of a level."""
    told = exported.get(group, {})
    here = laid_over(above, told.get("vars", {}), inventory)
    own = exported["_meta"]["hostvars"]
    found = {host: laid_over(here, own.get(host, {}), inventory) for host in told.get("hosts", ())}
    for child in told.get("children", ()):
        found |= variables_of(child, exported, inventory, here)
    return found


def laid_over(below: dict[str, Any], above: dict[str, Any], inventory: str) -> dict[str, Any]:
    intents = [as_mapping(one["hosttune_intent"], inventory) for one in (below, above) if "hosttune_intent" in one]
    if not intents:
        return below | above
    guests: dict[str, Any] = {}
    for guest in (guest for intent in intents for guest in intent.get("guests", ())):
        guests[guest["name"]] = guest
    settings = {key: value for intent in intents for key, value in intent.get("settings", {}).items()}
    rest = {key: value for intent in intents for key, value in intent.items()}
    return {**below, **above, "hosttune_intent": {**rest, "settings": settings, "guests": list(guests.values())}}


def as_mapping(given: Any, inventory: str) -> dict[str, Any]:
    """A mapping, or the file that it names."""
    if isinstance(given, dict):
        return given
    path = given.replace("{{ inventory_dir }}", str(INVENTORIES / inventory))
    found: dict[str, Any] = yaml.safe_load(Path(path).read_text())
    return found


def intent_of(variables: dict[str, Any], name: str) -> Intent:
    """A host's intent."""
    return Intent.from_json(json.dumps(variables["hosttune_intent"]), where=name)


@pytest.fixture(scope="module")
def example() -> Host:
    """The bundled host: eight H200, NVSwitches, InfiniBand."""
    return discovered()


def as_h100(host: Host) -> Host:
    """The same host with H100 on its board: a host document as an operator would keep one."""
    document = json.loads(host.to_json())
    for gpu in document["gpus"]:
        gpu["model"] = gpu["model"].replace("NVIDIA H200", "NVIDIA H100 80GB HBM3")
    for function in document["pci"]:
        function["device_id"] = "2330" if function["device_id"] == "2335" else function["device_id"]
    return Host.from_json(json.dumps(document))


def test_every_inventory_is_here() -> None:
    assert {path.name for path in INVENTORIES.iterdir() if (path / "hosts.yml").exists()} == set(HOSTS)


@pytest.mark.parametrize("name", HOSTS)
def test_hosts_and_variables(listed: dict[str, dict[str, dict[str, Any]]], name: str) -> None:
    assert sorted(listed[name]) == HOSTS[name]
    for host, variables in listed[name].items():
        ours = {key.removeprefix("hosttune_") for key in variables if key.startswith("hosttune_")}
        assert ours <= KNOWN, host  # a misspelt variable would be ignored
        assert intent_of(variables, name).guests
        assert not [key for key in variables if "pass" in key]  # no secret in plain text


@pytest.mark.parametrize("name", ["example", "hgx-h200-8", "h100-16-ib"])
def test_intents_fit_their_hosts(listed: dict[str, dict[str, dict[str, Any]]], example: Host, name: str) -> None:
    host = as_h100(example) if name == "h100-16-ib" else example
    seen = set()
    for variables in listed[name].values():
        intent = intent_of(variables, name)
        if intent.to_json() in seen:
            continue
        seen.add(intent.to_json())
        decided = plan(host, intent)
        assert decided.unplaced == ()
        assert [guest.name for guest in decided.guests] == [
            guest.name for guest in intent.guests if guest.state == "present"
        ]
    assert len(seen) == {"example": 1, "hgx-h200-8": 3, "h100-16-ib": 2}[name]  # groups and hosts differ


def test_the_example_is_a_harmless_trial(tmp_path: Path) -> None:
    """That it is validated with a page is in test_fleet_cli; nothing of it can be changed."""
    fleet, before = Fleet(tmp_path, {}), EXAMPLE.stat()
    command = [str(BIN / "ansible-playbook"), "-i", str(INVENTORIES / "example"), str(PLAYBOOKS / "apply.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=fleet.environment(), cwd=tmp_path)
    assert done.returncode == 2
    answer = json.loads((tmp_path / "hosttune-results/example/apply.json").read_text())["fleet"]
    assert answer["outcome"] == "refused"
    after = EXAMPLE.stat()
    assert (after.st_mtime_ns, after.st_size) == (before.st_mtime_ns, before.st_size)
