"""The agent: a process on a scratch root with events from a file, and its loop with sources and looks that fail."""

from __future__ import annotations

import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from applyroots import Root, root

from hosttune.cli import run
from hosttune.cli.watch import watch
from hosttune.errors import BadInput, Stuck
from hosttune.knobs import files
from hosttune.knobs.registry import all_knobs
from hosttune.metrics import CommandRun, Observed, exposition
from hosttune.transaction.keeping import Keeping, Kept
from hosttune.watch.agent import Agent, Notifier, keep_off
from hosttune.watch.core import LOST, Event, NoSource, Opener, OpenSource
from hosttune.watch.families import AgentState, families
from hosttune.watch.looking import LIMIT_SECONDS, Failed, Looker, LookResult, OlderLog, Remembering, still_hangs

__all__ = ["root"]  # a fixture
ROOT = Path(__file__).resolve().parents[2]
GPU = "0000:41:00.0"
FUNCTION = f"sys/bus/pci/devices/{GPU}"

# --- one real process ----------------------------------------------------------------------------------------


def value(text: str, series: str) -> float | None:
    found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else None


def until(ready: Callable[[], object], seconds: float = 30.0) -> float:
    """Wait until something is so; return how long that took."""
    start = time.monotonic()
    while not ready():
        assert time.monotonic() < start + seconds, "it did not happen"
        time.sleep(0.02)
    return time.monotonic() - start


@pytest.fixture(name="manager")
def listening(tmp_path: Path) -> Iterator[socket.socket]:
    """A socket in place of systemd's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        yield manager


def test_a_whole_life_on_a_scratch_root(tmp_path: Path, root: Root, manager: socket.socket) -> None:
    """Ready, a device that is unbound, a storm of one line of the log, a second agent refused, SIGHUP, the end by
    SIGTERM; and nothing but the textfile and the lock is written.
    """
    here, folder = root.path, tmp_path / "textfiles"
    folder.mkdir()
    textfile, events = folder / "hosttune.prom", here / ".hosttune" / "events"
    events.touch()
    before = {path for path in here.rglob("*") if path.is_file()}
    argv = ["watch", "--root", str(here), "--textfile", str(textfile), "--interval", "600"]
    environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
    process = subprocess.Popen(
        [sys.executable, "-m", "hosttune", *argv], env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        told = b""
        while b"READY=1" not in told:
            told = manager.recv(4096)
            assert told.startswith((b"WATCHDOG=1", b"READY=1", b"STATUS=verdict ")), told
        text = textfile.read_text()
        assert value(text, 'hosttune_watch_source_up{source="replay"}') == 1
        assert f"{textfile.stat().st_mode & 0o777:o}" == "644"
        driver = here / FUNCTION / "driver"
        was = os.readlink(driver)
        driver.unlink()
        with events.open("a") as file:
            file.write(f"udev unbind pci /devices/pci0000:40/{GPU}\n")
        until(lambda: textfile.read_text() != text)  # long before the interval: the event did it
        after = textfile.read_text()
        assert value(after, 'hosttune_watch_events_total{source="replay"}') == 1
        assert value(after, 'hosttune_watch_looks_total{cause="event"}') == 2  # the source, and the device
        driver.symlink_to(was)
        with events.open("a") as file:
            file.write("kmsg 4,1,1,-;pcieport 0000:40:01.1: pciehp: Slot(12): Link Down\n" * 500)
        until(lambda: value(textfile.read_text(), 'hosttune_watch_events_total{source="replay"}') == 501)
        assert run(argv) == 3  # a second one
        process.send_signal(signal.SIGHUP)
        until(lambda: b"WATCHDOG=1" in manager.recv(4096))
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    for line in (
        "replay: opened",
        f"udev: unbind device {GPU}",
        "kernel-log: slot-event device 0000:40:01.1 (500 times)",
    ):
        assert line in said
    assert "SIGHUP: there is nothing to read again" in said
    assert f"ended: SIGTERM; {textfile} stays and grows old" in said
    state = here / "var/lib/hosttune"
    assert {path for path in here.rglob("*") if path.is_file()} - before == {state / "watch.lock"}
    assert list(folder.iterdir()) == [textfile]


# --- bad input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--root", "{here}/capture", "--textfile", "{here}/a.prom"], 3, "a captured host"),
        (["--root", "{here}/capture", "--keep"], 3, "a captured host cannot be changed"),
        (["--root", "{scratch}"], 2, "no textfile"),
        (["--root", "{scratch}", "--textfile", "{here}/no/a.prom"], 2, "no such folder"),
        (["--root", "{scratch}", "--textfile", "{here}/a.txt"], 2, "end in .prom"),
        (["--root", "{scratch}", "--textfile", "{here}/theirs.prom"], 2, "theirs.prom"),
        (["--root", "{scratch}", "--interval", "0.5", "--textfile", "{here}/a.prom"], 2, "0.5"),
        (["--root", "{scratch}", "--interval", "nan", "--textfile", "{here}/a.prom"], 2, "nan"),
    ],
)
def test_what_cannot_be_watched_is_refused_at_once(
    arguments: list[str], code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scratch = tmp_path / "scratch"
    (scratch / ".hosttune").mkdir(parents=True)
    (scratch / ".hosttune" / "scratch").touch()
    (scratch / "sys").mkdir()
    (tmp_path / "capture" / "sys").mkdir(parents=True)
    (tmp_path / "theirs.prom").write_text("# HELP other_metric of another program\nother_metric 1\n")
    before = {path for path in tmp_path.rglob("*") if "var/lib" not in str(path)}
    argv = [word.format(here=tmp_path, scratch=scratch) for word in arguments]
    assert run(["watch", *argv]) == code
    assert words in capsys.readouterr().err
    left = {path for path in tmp_path.rglob("*") if "var" not in path.parts}
    assert left == {path for path in before if "var" not in path.parts}


# --- the loop, with what fails -------------------------------------------------------------------------------


class Script(OpenSource):
    """A source that gives the next row each time it is asked: events, or the reason why it has ended; then it stops
    the agent.
    """

    name = "script"

    def __init__(self, rows: list[list[Event] | str]) -> None:
        self.rows = rows

    def fileno(self) -> None:
        """None: it is asked several times a second."""

    def take(self) -> list[Event]:
        if not self.rows:
            os.kill(os.getpid(), signal.SIGTERM)
            return []
        row = self.rows.pop(0)
        if isinstance(row, str):
            raise NoSource(self.name, row)
        return row


class Looks(Looker):
    """Looks that give these answers, the last one again and again."""

    def __init__(self, answers: list[LookResult | Failed]) -> None:
        super().__init__(None, None)
        self.answers = answers
        self.states: list[AgentState] = []

    def look(self, state: AgentState, foreign: Mapping[str, float | None]) -> LookResult | Failed:
        self.states.append(state)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


GOOD = LookResult(text="good\n", verdict="pass")


class Clock:
    """A clock that goes on by what the agent would wait, and does not wait."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def wait(self, descriptors: Sequence[int], seconds: float) -> None:
        self.now += seconds + 0.001


def agent(looks: Looks, opener: Opener, said: list[str], **more: object) -> Agent:
    clock = more.pop("clock", None) or Clock()
    assert isinstance(clock, Clock)
    given: dict[str, object] = {
        "looker": looks, "textfile": "/nowhere/a.prom", "interval": 60.0, "openers": {"script": opener},
        "say": said.append, "foreign": False, "notifier": Notifier({}), "clock": clock,
        "wait": clock.wait, "write": lambda path, text: None, **more,
    }  # fmt: skip
    return Agent(**given)  # type: ignore[arg-type]


def test_a_source_that_ends_is_opened_again_and_everything_is_read_anew() -> None:
    scripts = [Script([[], [Event("script", LOST)], "the daemon went"]), Script([[], [], [], []])]
    looks, said = Looks([GOOD]), list[str]()
    assert agent(looks, lambda: scripts.pop(0), said).run() == 0
    words = "\n".join(said)
    assert "no events of script: the daemon went" in words
    assert words.index("script: lost") < words.index("script: closed")
    assert said.count("script: opened") == 2
    assert looks.states[-1].lost == {"script": 1}


def test_a_source_that_cannot_be_opened_is_told_once_and_the_interval_goes_on() -> None:
    tries: list[float] = []
    looks, said, clock = Looks([GOOD]), list[str](), Clock()

    def missing() -> OpenSource:
        tries.append(clock.now)
        if len(tries) == 7:
            os.kill(os.getpid(), signal.SIGTERM)
        raise NoSource("script", "not installed")

    assert agent(looks, missing, said, clock=clock, interval=20.0).run() == 0
    assert sum("not installed" in line for line in said) == 1
    assert looks.states[-1].up == {"script": False}
    assert len(looks.states) > 3
    assert tries[-1] - tries[-2] > 30, "asked less and less often"


def test_a_source_of_something_that_the_host_does_not_have_is_not_missed() -> None:
    """Else HosttuneEventsMissed would fire for ever on a host without libvirt; once it is installed, it counts."""
    rows: list[list[Event] | str] = [[] for _ in range(400)]
    openers: list[OpenSource | NoSource] = [NoSource("script", "not installed", absent=True), Script(rows)]

    def opener() -> OpenSource:
        one = openers.pop(0)
        if isinstance(one, NoSource):
            raise one
        return one

    looks, said = Looks([GOOD]), list[str]()
    assert agent(looks, opener, said).run() == 0
    assert looks.states[0].up == {}
    assert looks.states[-1].up == {"script": True}
    assert sum("not installed" in line for line in said) == 1


def test_a_textfile_that_cannot_be_written_later_is_told_once_and_tried_again() -> None:
    written: list[str] = []
    answers = iter([None, "full", "full", "read-only", None])

    def write(path: str, text: str) -> None:
        if (why := next(answers, None)) is not None:
            raise BadInput(f"cannot write {path}: {why}", where=path, hint="free space on that disk")
        written.append(text)

    said: list[str] = []
    rows: list[list[Event] | str] = [[Event("script", "x", f"device {n}")] if n % 8 == 0 else [] for n in range(60)]
    looks = Looks([GOOD])
    agent(looks, lambda: Script(rows), said, write=write).run()
    assert [sum(why in line for line in said) for why in ("full", "read-only")] == [1, 1]
    assert said.count("/nowhere/a.prom is written again") == 1
    assert len(written) >= 2


def test_a_textfile_that_cannot_be_written_at_first_is_an_error() -> None:
    def write(path: str, text: str) -> None:
        raise BadInput("cannot write", where=path, hint="choose another one")

    with pytest.raises(BadInput, match="cannot write"):
        agent(Looks([GOOD]), lambda: Script([[]]), [], write=write).run()


def test_a_look_that_fails_makes_everything_unknown_and_the_next_one_mends_it() -> None:
    texts: list[str] = []
    failed = Failed("no answer within 60 s", "unknown\n")
    rows: list[list[Event] | str] = [[Event("script", "x", f"device {n}")] if n % 8 == 0 else [] for n in range(40)]
    said: list[str] = []
    looks = Looks([GOOD, failed, GOOD])
    agent(looks, lambda: Script(rows), said, write=lambda path, text: texts.append(text)).run()
    assert texts[:3] == ["good\n", "unknown\n", "good\n"]
    assert "the host could not be read: no answer within 60 s; its state is unknown" in said


def test_changes_are_told_and_nothing_else() -> None:
    bad = LookResult(text="bad\n", verdict="fail", bad={"pcie-link 0000:41:00.0": "fail"})
    said: list[str] = []
    rows: list[list[Event] | str] = [[Event("script", "x", f"device {n}")] if n % 8 == 0 else [] for n in range(50)]
    agent(Looks([GOOD, bad, bad, GOOD]), lambda: Script(rows), said).run()
    told = [line for line in said if not line.startswith(("script:", "ended"))]
    assert told == [
        "verdict pass", "pcie-link 0000:41:00.0: fail", "verdict fail, was pass",
        "no longer: pcie-link 0000:41:00.0", "verdict pass, was fail",
    ]  # fmt: skip


def test_what_is_kept_and_what_is_given_up() -> None:
    turns = [
        Keeping((Kept("resume-latency", "cpus 0-3", "corrected"),)),
        Keeping((Kept("resume-latency", "cpus 0-3", "given-up", "corrected 2 times within 10 minutes"),)),
        Keeping(refused="another hosttune (process 7) is changing this host"),
    ]
    drifted = LookResult(text="d\n", verdict="fail", drifted=True)
    looks, said = Looks([drifted]), list[str]()
    rows: list[list[Event] | str] = [[Event("script", "x", f"device {n}")] if n % 8 == 0 else [] for n in range(50)]
    agent(looks, lambda: Script(rows), said, keep=lambda: turns.pop(0) if len(turns) > 1 else turns[0]).run()
    assert "resume-latency cpus 0-3: corrected" in said
    assert sum("given-up" in line for line in said) == 1
    assert sum("nothing is kept: another hosttune (process 7)" in line for line in said) == 1
    assert looks.states[2].corrections == {"corrected": 1, "failed": 0}
    assert any(state.given_up == (("resume-latency", "cpus 0-3"),) for state in looks.states)
    assert looks.states[-1].refused


def test_systemd_hears_of_the_agent_before_each_look_and_each_correction() -> None:
    """Each of the three may take a minute, and WatchdogSec= is three."""
    done: list[str] = []

    class Told(Notifier):
        def send(self, *lines: str) -> None:
            done.extend(line for line in lines if line == "WATCHDOG=1")

    class Noted(Looks):
        def look(self, state: AgentState, foreign: Mapping[str, float | None]) -> LookResult | Failed:
            done.append("look")
            return super().look(state, foreign)

    def keep() -> Keeping:
        done.append("keep")
        return Keeping((Kept("thp", "host", "corrected"),))

    looks = Noted([LookResult(text="d\n", verdict="fail", drifted=True), GOOD])
    agent(looks, lambda: Script([[], []]), [], keep=keep, notifier=Told({})).run()
    assert [one for one in done if one != "WATCHDOG=1"][:3] == ["look", "keep", "look"]
    assert all(before == "WATCHDOG=1" for before, one in itertools.pairwise(done) if one != "WATCHDOG=1")


def test_what_was_given_up_and_is_as_applied_again_is_no_longer_told() -> None:
    """Else HosttuneKeepGaveUp would fire until the agent is restarted: with nothing drifted, nothing is kept anew."""
    given_up = Keeping((Kept("thp", "host", "given-up", "corrected 2 times within 10 minutes"),), refused="lock held")
    looks = Looks([LookResult(text="d\n", verdict="fail", drifted=True), GOOD])
    rows: list[list[Event] | str] = [[Event("script", "x", f"device {n}")] if n % 8 == 0 else [] for n in range(40)]
    agent(looks, lambda: Script(rows), [], keep=lambda: given_up).run()
    assert looks.states[1].given_up == (("thp", "host"),)
    assert looks.states[1].refused
    assert looks.states[-1].given_up == ()
    assert not looks.states[-1].refused


def test_a_signal_ends_a_look_that_takes_long_and_nothing_is_written() -> None:
    class Slow(Looker):
        def _seen(self, state: AgentState, foreign: Mapping[str, float | None]) -> str:
            os.kill(os.getppid(), signal.SIGTERM)
            time.sleep(600)
            return ""

    written: list[str] = []
    said: list[str] = []
    start = time.monotonic()
    slow = agent(Looks([GOOD]), lambda: Script([[]]), said, write=lambda path, text: written.append(text))
    slow.looker = Slow("@example", None)
    assert slow.run() == 0
    assert time.monotonic() - start < 20
    assert written == []
    assert said[-1] == "ended: SIGTERM; /nowhere/a.prom stays and grows old"


def test_the_agent_keeps_off_pinned_cpus() -> None:
    before = os.sched_getaffinity(0)
    try:
        keep_off(set(before))  # no other is left
        assert os.sched_getaffinity(0) == before
        if len(before) > 1:
            keep_off({min(before)})
            assert os.sched_getaffinity(0) == before - {min(before)}
            keep_off(())
            assert os.sched_getaffinity(0) >= before
    finally:
        os.sched_setaffinity(0, before)


def test_the_interval_is_not_moved_by_a_clock_that_people_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop asks the clock since boot alone: a wall clock that jumps is not asked at all."""

    def wall() -> float:
        raise AssertionError("the wall clock decides nothing")

    monkeypatch.setattr(time, "time", wall)
    assert agent(Looks([GOOD]), lambda: Script([[], []]), []).run() == 0


# --- a look --------------------------------------------------------------------------------------------------

STATE = AgentState(interval=60, looks={}, failed=False, events={}, lost={}, up={})


def test_a_look_that_hangs_is_ended_and_reported_as_unknown() -> None:
    class Hanging(Looker):
        def _seen(self, state: AgentState, foreign: Mapping[str, float | None]) -> str:
            time.sleep(600)
            return ""

    start = time.monotonic()
    found = Hanging("@example", None, limit=0.3).look(STATE, {})
    assert isinstance(found, Failed)
    assert time.monotonic() - start < 5
    assert "no answer within 0.3 s" in found.why
    assert value(found.text, "hosttune_watch_look_failed") == 1
    assert value(found.text, 'hosttune_validation_verdict{verdict="unknown"}') == 1
    assert "hosttune_check_status{" not in found.text


def test_no_further_look_is_begun_while_one_hangs_in_the_kernel() -> None:
    begun: list[int] = []

    def leaving(work: Callable[[], str | None], seconds: float, what: str) -> str | None:
        """As a child that no signal ends: it is still there when the wait is over."""
        begun.append(os.posix_spawn("/bin/sleep", ["sleep", "600"], {}))
        raise Stuck(what, seconds)

    looker = Looker("@example", None, child=leaving)
    assert isinstance(looker.look(STATE, {}), Failed)
    second = looker.look(STATE, {})
    assert isinstance(second, Failed)
    assert "still hangs" in second.why
    assert len(begun) == 1
    assert still_hangs(begun[0])
    os.kill(begun[0], signal.SIGKILL)
    until(lambda: not still_hangs(begun[0]))
    looker.look(STATE, {})
    assert len(begun) == 2
    os.kill(begun[1], signal.SIGKILL)
    os.waitpid(begun[1], 0)


@pytest.mark.parametrize("error", [RuntimeError("a defect"), MemoryError("much"), BadInput("bad", where="x", hint="y")])
def test_a_look_that_fails_is_reported_as_unknown(error: Exception) -> None:
    class Failing(Looker):
        def _seen(self, state: AgentState, foreign: Mapping[str, float | None]) -> str:
            raise error

    found = Failing("@example", None).look(STATE, {})
    assert isinstance(found, Failed)
    assert value(found.text, 'hosttune_validation_verdict{verdict="unknown"}') == 1


def test_the_journal_is_asked_again_only_where_the_two_logs_would_have_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    first = '{"dmesg": [{"pri": 6, "time":   %s, "msg": "x"}]}'

    def answer(begins: float) -> Callable[..., str]:
        def run_command(argv: tuple[str, ...], timeout: float) -> str:
            asked.append(argv[0])
            return first % f"{begins:.6f}" if argv[0] == "dmesg" else "older\n"

        return run_command

    for begins, known, again in ((500.0, None, True), (500.0, 1000.0, False), (990.0, 1000.0, True)):
        monkeypatch.setattr("hosttune.machine.live.run_command", answer(begins))
        system = Remembering(OlderLog(known, "older\n") if known is not None else None)
        asked.clear()
        system.run(("dmesg", "--kernel", "--json"))
        assert system.run(("journalctl", "--boot")) == "older\n"
        assert asked == ["dmesg", *(["journalctl"] if again else [])], (begins, known)
        assert system.older is not None


# --- metrics -------------------------------------------------------------------------------------------------


def test_the_agents_own_metrics_are_few_and_unknown_is_no_zero() -> None:
    state = AgentState(
        interval=60, looks={"event": 3, "interval": 9}, failed=False, events={"udev": 4, "libvirt": 0},
        lost={"udev": 1}, up={"udev": True, "libvirt": False}, keeping=True, corrections={"corrected": 1, "failed": 0},
        given_up=tuple(("resume-latency", f"cpus {n}") for n in range(40)), refused=True,
    )  # fmt: skip
    text = exposition(Observed(run=CommandRun(verb="watch", at=1.0, exit_code=0), extra=families(state)))
    own = [line for line in text.splitlines() if line.startswith("hosttune_watch_")]
    assert len(own) <= 30
    assert value(text, "hosttune_watch_cpu_seconds_total") != 0
    assert "hosttune_watch_cpu_seconds_total NaN" in text
    assert value(text, 'hosttune_watch_keep_given_up{kind="resume-latency",subject="cpus 0"}') == 1
    assert value(text, 'hosttune_watch_source_up{source="libvirt"}') == 0


def test_systemd_is_told_only_where_it_asks(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0hosttune-test-" + tmp_path.name)
        manager.settimeout(5)
        pid = str(os.getpid())
        notifier = Notifier({"NOTIFY_SOCKET": f"@hosttune-test-{tmp_path.name}", "WATCHDOG_USEC": "3000000",
                             "WATCHDOG_PID": pid})  # fmt: skip
        notifier.send("READY=1", "STATUS=x")
        assert manager.recv(100) == b"READY=1\nSTATUS=x"
        assert notifier.ping_seconds == 1.5
    notifier.send("WATCHDOG=1")  # nobody listens any more
    assert Notifier({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}).ping_seconds is None
    assert Notifier({"WATCHDOG_USEC": "soon"}).ping_seconds is None
    Notifier({"NOTIFY_SOCKET": "vsock:2:1"}).send("READY=1")


# --- what ships ----------------------------------------------------------------------------------------------


def test_the_unit_calls_the_agent_as_it_can_be_called_and_waits_for_its_looks() -> None:
    lines = (ROOT / "playbooks/files/hosttune-watch.service").read_text().splitlines()
    unit = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    program, verb, *options = unit["ExecStart"].split()
    assert (program, verb) == ("/opt/hosttune/bin/hosttune", "watch")
    given = watch.make_context("watch", options).params
    assert f"-{os.path.dirname(given['textfile'])}" == unit["ReadWritePaths"]
    assert (unit["Type"], unit["KillMode"], unit["Restart"]) == ("notify", "mixed", "always")
    assert int(unit["WatchdogSec"]) >= 2 * LIMIT_SECONDS + 60  # a look, a turn of --keep, one more look
    assert int(unit["TimeoutStartSec"]) > LIMIT_SECONDS


def test_the_manual_lists_the_knobs_that_are_kept() -> None:
    text = (ROOT / "docs/watch.md").read_text()
    (row,) = re.findall(r"Only these settings are kept: ([^.]+)\.", text)
    kept = {name for name, knob in all_knobs().items() if knob.kept}
    assert set(re.findall(r"`([^`]+)`", row)) == {name for name in kept if "." not in name}
    assert "and the sysctl settings" in row
    assert {name for name in kept if "." in name} == {knob.name for knob in files.SYSCTLS}


def test_the_manual_lists_the_agents_metrics() -> None:
    state = AgentState(interval=1, looks={}, failed=False, events={}, lost={}, up={}, keeping=True)
    text = (ROOT / "docs/watch.md").read_text()
    for family, _ in families(state):
        labels = f"{{{','.join(family.labels)}}}" if family.labels else ""
        assert f"| `{family.name}{labels}` |" in text
