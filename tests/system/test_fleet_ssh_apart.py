"""Hosts that cannot answer, each for its own reason: told apart, all others visited, mended and asked again.

`make test` has each outcome of commands that stand in for hosttune (test_fleet_playbooks_outcomes).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from applyroots import GPU, ROOT, STATE
from namespaces import full
from sshhosts import SshHost, keygen, ssh_fleet
from sshruns import IMPATIENT, Runs, copy_root
from sweeps import FULL

# Host: (outcome, what `why` must say) of a phase that keeps something on the host.
EXPECTED: dict[str, tuple[str, str | None]] = {
    "well": ("ok", None),
    "wrong-key": ("unreachable", "Permission denied"),
    "host-key-changed": ("unreachable", "Host key verification failed"),
    "no-sshd": ("unreachable", "Connection refused"),
    "silent": ("unreachable", "timed out"),
    "unplugged": ("unreachable", "timed out|No route to host"),
    "other-version": ("wrong-version", r"hosttune 0\.0\.1 is installed"),
    "not-installed": ("not-installed", "no command /nowhere/hosttune on this host"),
    "state-full": ("disk-full", "No space left on device"),
    "tmp-full": ("ok", None),  # nothing of a phase goes through the host's disk
    "too-slow": ("slow", "no answer within 1 s"),
    "state-filling": ("ok", None),  # there is room for a plan, not for a journal
    "lossy": ("ok", None),
    "slow-link": ("ok", None),
}
WELL = [name for name, (outcome, _) in EXPECTED.items() if outcome == "ok"]
ILL = [name for name in EXPECTED if name not in WELL]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, pristine: Path) -> Iterator[Runs]:
    """A host of each kind, before anything is wrong with it but its mounts."""
    folder = tmp_path_factory.mktemp("ssh")
    with ssh_fleet(folder) as fleet:
        for name in EXPECTED:
            root = copy_root(pristine, folder / f"{name}-root").path
            fleet.host(name, root, mounts=mounts_of(name, folder / name, root))
        yield Runs(fleet, folder)


def mounts_of(name: str, folder: Path, root: Path) -> str:
    """What is full on a host."""
    if name == "state-full":
        return full(root / STATE)
    if name == "state-filling":
        return full(root / STATE / "transactions", room=20 << 10)
    if name == "tmp-full":
        keep = (ROOT, Path(sys.prefix), Path(sys.base_prefix), root.parent)
        return "".join(full(place, keep=keep) for place in ("/tmp", "/var/tmp", "/dev/shm", "/root", folder / "tmp"))
    return ""


def old_version(folder: Path) -> str:
    """A command that belongs to a package of another version."""
    (folder / "old/lib/python3.11/site-packages/hosttune-0.0.1.dist-info").mkdir(parents=True)
    (folder / "old/bin").mkdir()
    program = folder / "old/bin/hosttune"
    program.write_text(f"#!{folder}/old/bin/python\nraise SystemExit('not to be run')\n")
    program.chmod(0o755)
    return str(program)


def spoil(runs: Runs) -> None:
    """Make each host what its name says; mounts were made at its start."""
    (runs.host("wrong-key").folder / "authorized_keys").write_text("")
    anew(runs.host("host-key-changed"))
    runs.host("no-sshd").kill_sshd()
    runs.host("silent").filter("-A", "INPUT", "-j", "DROP")
    runs.host("unplugged").unplug()
    runs.hold("too-slow", "plan")
    runs.host("lossy").lose(0.05)
    runs.host("slow-link").slow("512kbit")
    runs.inventory(
        {
            "other-version": {"hosttune_command": old_version(runs.host("other-version").folder)},
            "not-installed": {"hosttune_command": "/nowhere/hosttune"},
            "too-slow": {**runs.held("too-slow"), "hosttune_timeout": 1},
            "lossy": {"ansible_timeout": 30},
        },
        **IMPATIENT,
    )


def anew(host: SshHost) -> None:
    """A new key for a host, as after a new installation."""
    keygen(host.folder / "host_key")
    host.stop()
    host.start()


def mend(runs: Runs) -> None:
    """Put right what `spoil` did."""
    key = (runs.host("well").folder / "authorized_keys").read_text()
    (runs.host("wrong-key").folder / "authorized_keys").write_text(key)
    runs.fleet.know(runs.host("host-key-changed"))
    runs.host("silent").filter("-F")
    runs.host("unplugged").plug()
    runs.let_go("too-slow")
    for name in ("no-sshd", "state-full"):
        host = runs.host(name)
        host.stop()
        host.mounts = ""
        host.start()
    runs.inventory({name: {"ansible_timeout": 30} for name in EXPECTED}, **IMPATIENT)


def check_apart(runs: Runs, report: dict[str, object], record: str) -> None:
    """Every host stands in the report and in its file as what it is, and none passes that did not answer."""
    assert runs.outcomes(record) == {name: outcome for name, (outcome, _) in EXPECTED.items()}
    for name, (_, words) in EXPECTED.items():
        why = str(runs.answer(name, record).get("why"))
        assert re.search("^None$" if words is None else words, why), (name, why)
    hosts = report["hosts"]
    assert isinstance(hosts, list)
    told = {host["host"]: host for host in hosts}
    assert list(told) == list(EXPECTED)
    assert {name: host["answers"][0]["outcome"] for name, host in told.items()} == runs.outcomes(record)
    assert [name for name, host in told.items() if host["verdict"] in ("pass", "warn")] == WELL


def told_apart_and_all_others_visited(runs: Runs) -> None:
    """What is wrong with a host is told; nothing is written on one that cannot answer."""
    untouched = [name for name in ILL if name != "too-slow"]
    before = {name: runs.host(name).tree() for name in untouched}
    spoil(runs)
    check_apart(runs, runs.command("plan", code=1), "plan")
    assert {name: runs.host(name).tree() for name in untouched} == before
    assert [name for name in EXPECTED if (runs.host(name).root / STATE / "plan.json").exists()] == WELL


def mended_and_asked_again(runs: Runs) -> None:
    """`--retry` asks those that did not answer, and nobody else."""
    mend(runs)
    asked = runs.executions(lambda: runs.command("plan", "--retry"))
    assert asked == {name: int(name in ILL) for name in EXPECTED}
    assert set(runs.outcomes("plan").values()) == {"ok"}


def changes_over_bad_links_and_on_a_disk_that_fills_up(runs: Runs, pristine: Path) -> None:
    """Loss, slowness and a full /tmp cost time, no more; where the disk of the journal fills up, all is taken back."""
    asked = [*WELL]
    report = runs.command("apply", "--waves", "100%", "--limit", ",".join(asked), code=1)
    told = {host["host"]: host["verdict"] for host in report["hosts"]}
    filling = "state-filling"
    assert runs.outcomes("apply") == {name: "disk-full" if name == filling else "ok" for name in asked}
    assert {name for name, verdict in told.items() if verdict in ("pass", "warn")} == {*asked} - {filling}
    for name in asked:
        assert (runs.root(name).driver(GPU) == "vfio-pci") is (name != filling)
    assert runs.root(filling).differences(pristine) == set()


@pytest.mark.skipif(not FULL, reason="14 hosts over ssh: part of the full sweep (HOSTTUNE_SWEEP=full)")
def test_the_whole_story(runs: Runs, pristine: Path) -> None:
    """One test, for each step stands on the one before: pytest's processes share out single tests."""
    told_apart_and_all_others_visited(runs)
    mended_and_asked_again(runs)
    changes_over_bad_links_and_on_a_disk_that_fills_up(runs, pristine)
