"""The agent as systemd runs it on a real kernel: what happens is looked at within two seconds, and an alert follows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.machine import LabMachine
from lab.watching import (
    GUEST,
    IDLE_SECONDS,
    UNIT,
    WITHIN_SECONDS,
    WRONG_CPU,
    Agent,
    Monitoring,
    Wanted,
    agent_runs,
    exporter_runs,
    move_thread,
    needs_monitoring,
    seconds_of_validate,
    start_guest,
)

pytestmark = [pytest.mark.lab, needs_monitoring]

DRIVE, NIC, ABOVE_NIC = "0000:47:00.0", "0000:c3:00.0", "0000:c0:02.0"
PLACED = f'hosttune_guest_placement_violations{{guest="{GUEST}",kind="pins"}}'
FOREIGN = f'hosttune_foreign_cpu_seconds_total{{guest="{GUEST}"}}'
FROM_LOG = 'hosttune_watch_events_total{source="kernel-log"}'


@pytest.fixture(scope="module")
def agent(lab: LabMachine) -> Iterator[Agent]:
    """Its interval is an hour: what changes, an event has changed."""
    with agent_runs(lab, 3600) as found:
        yield found


def test_what_happens_is_looked_at_within_two_seconds(
    lab: LabMachine, agent: Agent, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Steps of one life: a drive is unbound and bound, a guest starts, its thread is moved, hardware reports an error,
    two alerts arrive, and systemd ends the agent. A line that a program writes into the kernel log is no event.
    """
    with exporter_runs(lab), Monitoring.runs(tmp_path_factory.mktemp("prometheus"), lab) as monitoring:
        for source in ("udev", "kernel-log", "libvirt"):
            agent.until(source, lambda: agent.value(f'hosttune_watch_source_up{{source="{source}"}}') == 1)  # noqa: B023
        before = seconds_of_validate(lab)
        agent.at_rest()
        answers = {}
        for word in ("unbind", "bind"):
            at = now(lab, f"echo {DRIVE} >/sys/bus/pci/drivers/nvme/{word}")
            answers[word] = agent.answered(f"{word} of a drive", f"udev: {word} device {DRIVE}", at)
            agent.at_rest()

        at = start_guest(lab)
        answers["start"] = agent.answered("the start of a guest", f"libvirt: started guest {GUEST}", at)
        assert agent.value(PLACED) == 0
        agent.at_rest()

        move_thread(lab, WRONG_CPU)
        counted = agent.value(FROM_LOG)
        lab.shell("echo '<2>NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.' >/dev/kmsg")
        at = now(lab, f"virsh emulatorpin {GUEST} 0-1 --live")
        answers["pins"] = agent.answered("other pins of a guest", f"libvirt: tunable guest {GUEST}", at)
        assert agent.value(PLACED) == 1
        assert agent.value(FOREIGN) is not None
        assert agent.value(FROM_LOG) == counted, "what a program writes into the log is not the kernel's"
        moved = Wanted("HosttuneGuestMisplaced", {"guest": GUEST, "kind": "pins"})
        monitoring.raised(moved, 2 * monitoring.STEP_SECONDS + 1)

        agent.at_rest()
        at = now(lab, "true")
        lab.hardware("pcie_aer_inject_error portc3 0x4000")  # completion timeout, not fatal
        answers["aer"] = agent.answered("an error of a port", f"kernel-log: aer device {ABOVE_NIC}", at)
        assert agent.value(f'hosttune_aer_errors_total{{address="{ABOVE_NIC}",severity="nonfatal"}}') == 1
        monitoring.raised(Wanted("HosttuneCheckFailed", {"check": "aer", "subject": NIC}), 2 * monitoring.STEP_SECONDS)

        after = seconds_of_validate(lab)
        print(f"lab: a whole `hosttune validate` takes {before:.1f} s before and {after:.1f} s after")
        slow = max(before, after)
        limit = WITHIN_SECONDS if slow < IDLE_SECONDS else slow
        assert {name: one.begun for name, one in answers.items() if not 0 < one.begun < limit} == {}
    lab.shell(f"systemctl stop {UNIT}", timeout=120)
    ended = lab.shell(f"systemctl show {UNIT} -p Result -p ExecMainStatus -p NRestarts")
    assert sorted(ended.split()) == ["ExecMainStatus=0", "NRestarts=0", "Result=success"]
    lab.shell(f"journalctl -u {UNIT} -o cat | grep -F 'ended: SIGTERM'")
    memory, cpu = agent.value("hosttune_watch_resident_bytes"), agent.value("hosttune_watch_cpu_seconds_total")
    print(f"lab: the agent used {(memory or 0) / (1 << 20):.0f} MiB, {cpu:.1f} s of CPU time")


def now(lab: LabMachine, event: str) -> float:
    """The host's clock just before an event, which a command makes."""
    return float(lab.shell(f"date +%s.%N; {event}").split()[0])
