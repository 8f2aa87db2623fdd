"""Facts that a host lacks, or that are not understood: what the checks say then."""

from __future__ import annotations

from functools import cache

import pytest
from damage import Files, Found, as_captured, improvements, load, read_by_discovery, validated
from sickhosts import EXAMPLE, VM, with_guest

from hosttune.machine.system import COMMANDS, COMPLETE

DRIVE = "0000:1a:00.0"


def _real(host: Files, path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{host.links.get(folder, folder)}/{name}"


def _put(host: Files, texts: dict[str, str]) -> Files:
    return host.put({_real(host, path): text for path, text in texts.items()})


def _without(host: Files, *paths: str) -> Files:
    gone = {_real(host, path) for path in paths}
    files = {path: data for path, data in host.files.items() if path not in gone}
    links = {path: target for path, target in host.links.items() if path not in gone}
    assert len(files) + len(links) == len(host.files) + len(host.links) - len(gone)
    return Files(files, links, host.dirs, host.origin)


def _text(host: Files, path: str) -> str:
    return host.files[_real(host, path)].decode()


def _alarm(host: Files, drive: int, word: str, number: int = 3) -> dict[str, str]:
    folder = f"{host.links[f'/sys/class/nvme/nvme{drive}']}/hwmon{number}/temp1_"
    return {f"{folder}input": "45000\n", f"{folder}alarm": word}


@pytest.mark.parametrize("row", [" 1    a      laufend", " 1    a      no state"])
def test_a_state_that_is_not_understood_is_no_guest_that_rests(row: str) -> None:
    host = with_guest()
    listed = _text(host, COMMANDS + "virsh-list")
    before = _guests(host)
    after = _guests(_put(host, {COMMANDS + "virsh-list": listed.replace(" 1    a      running", row)}))
    assert list(improvements(before, after)) == []
    assert {after.outcomes[(check, "a")] for check in ("guest-pins", "guest-memory", "guest-definition")} == {"unknown"}


@cache
def _guests_before() -> Found:
    return validated(with_guest())


def _guests(host: Files) -> Found:
    return _guests_before() if host is with_guest() else validated(host)


def test_a_monitor_without_its_alarm_is_no_healthy_drive() -> None:
    host = load(EXAMPLE)
    calm = host.put(_alarm(host, 1, "0\n"))
    lost = next(path for path in _alarm(host, 1, "") if path.endswith("alarm"))
    found = [validated(one).outcomes["disk-health", DRIVE] for one in (calm, _without(calm, lost))]
    assert found == ["pass", "unknown"]


def test_links_without_aer_counters_are_known_for_such() -> None:
    whole = load(EXAMPLE)
    files = {path: data for path, data in whole.files.items() if "/aer_dev_" not in path}
    host = Files(files, whole.links, whole.dirs, "a host whose firmware handles errors of links")
    found = validated(as_captured(host, read_by_discovery(host)))
    assert {outcome for (check, _), outcome in found.outcomes.items() if check == "aer"} == {"skip"}


def test_the_matrix_alone_says_nothing_of_links() -> None:
    """A capture of another tool with the matrix: NVML's answer lost, beside it nvidia-smi's, and its list of links."""
    cases = VM.parents[1] / "h200"
    tools = {
        "nvidia-smi-topo-m": "topo-m-x4.txt",
        "nvidia-smi-q-x": "nvidia-smi-q-x4.xml",
        "nvidia-smi-nvlink-s": "nvlink-s-x4.txt",
    }
    whole = _without(load(VM), COMPLETE)
    whole = whole.put({COMMANDS + name: (cases / file).read_text() for name, file in tools.items()})
    gpu = ("nvlink", "0000:00:07.0")
    lost = [_without(whole, *(COMMANDS + name for name in names)) for names in ((), tuple(tools)[1:], tuple(tools)[2:])]
    assert [validated(host).outcomes[gpu] for host in lost] == ["pass"] * 3
    assert [validated(_without(host, COMMANDS + "nvml.json")).outcomes[gpu] for host in lost[1:]] == ["unknown"] * 2
