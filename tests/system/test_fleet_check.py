"""What an operator sees of a dry run on many hosts, and of warnings, with ansible-playbook itself on scratch roots."""

from __future__ import annotations

import subprocess

import fleethosts
from fleethosts import HOSTTUNE, Fleet

fleet = fleethosts.fleet
lone = fleethosts.lone

PREFERENCE = "sys/devices/system/cpu/cpu4/cpufreq/energy_performance_preference"
WARNED = "validate: 3 warnings: cpu-frequency, numa-balancing, monitoring-baseline"


def run(fleet: Fleet, verb: str, *options: str) -> subprocess.CompletedProcess[str]:
    """`hosttune fleet VERB` on the hosts."""
    command = [HOSTTUNE, "fleet", verb, "-i", str(fleet.inventory()), "--results", str(fleet.results), *options]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=fleet.folder, env=fleet.environment(), timeout=300
    )


def test_a_dry_run_shows_counts_and_distinct_changes_first(fleet: Fleet) -> None:
    other = fleet.root("h2").path / PREFERENCE
    other.unlink()  # a hard link
    other.write_text("power\n")
    before = {host: (fleet.root(host).path / PREFERENCE).read_text() for host in fleet.hosts}
    done = run(fleet, "apply", "--check")
    lines = done.stdout.partition("\nwhat would change on ")[2].splitlines()
    kept = [fleet.document(host, "apply.check") for host in fleet.hosts]
    writes = sum(len(document["writes"]) for document in kept)
    assert lines[0] == f"all 2 hosts: {len(lines) - 2} distinct changes, {writes} writes; nothing was written"
    assert lines[-1] == f"-v prints each write; {fleet.results}/HOST/apply.check.json holds them"
    assert "  all 2 hosts: driver 0000:41:00.0: nvidia -> vfio-pci" in lines
    assert "  1 host (h2): energy-preference cpus 4: power -> performance" in lines
    assert not any("<domain" in line or "/sys/devices/system/cpu/cpu4/" in line for line in lines)
    assert "WARNING" not in done.stdout + done.stderr  # of the validations before: the report has them
    assert {host: (fleet.root(host).path / PREFERENCE).read_text() for host in fleet.hosts} == before
    assert not (fleet.root("h1").path / "var/lib/hosttune/transactions").exists()


def test_ansible_shows_warnings_of_a_host_that_passed(lone: Fleet) -> None:
    played = lone.play("validate").out
    assert [line for line in played.splitlines() if "WARNING" in line] == [f"[WARNING]: h1: {WARNED}"]
    answer = lone.document("h1", "validate")
    assert (answer["verdict"], answer["fleet"]["outcome"]) == ("warn", "ok")
    assert "warnings" not in answer["fleet"]
