"""Run one ansible-playbook process over some hosts through ansible-runner. Its events are passed on, but not kept.

Events only show progress. The outcome of a host is only in its result files: an event can have an empty result
(ansible-runner#1381), and after a lost connection there is no event at all.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from hosttune.assets import folder
from hosttune.errors import BadInput
from hosttune.fleet.inventory import environment, not_installed, options_in_config, tool
from hosttune.fleet.record import NOT_CONTACTED
from hosttune.fleet.results import ASKING, limit_file

_GRACE_SECONDS = 15.0  # time for ansible to end its workers after an interrupt, before it is killed
_PLAYBOOKS = {"course": "handover"}  # where it is not named as the verb
_POLL_SECONDS = 1  # how often ansible-runner calls the function that can stop it
_MOST_LINES = 12  # of ansible's messages outside of tasks
_ERRORS = ("[ERROR]", "ERROR!", "fatal:", "Traceback", "ansible-playbook: error:")
_TASK_EVENTS = frozenset(("runner_on_ok", "runner_on_failed", "runner_on_unreachable", "runner_on_skipped"))


class PlaybookOrder(msgspec.Struct, frozen=True):
    """The work of one ansible-playbook: the shipped playbook of the verb, for `hosts` of these inventories."""

    verb: str
    inventories: tuple[str, ...]
    hosts: tuple[str, ...]
    results: str
    variables: Mapping[str, Any] = msgspec.field(default_factory=dict)
    options: tuple[str, ...] = ()
    forks: int | None = None
    check: bool = False
    playbooks: str = msgspec.field(default_factory=lambda: folder("playbooks"))


class TaskEvent(msgspec.Struct, frozen=True):
    """An event of ansible: a task of a host begins (`kind` start) or ends (ok, failed, unreachable, skipped).

    `phase` and `outcome` are set for hosttune's own tasks. They are None for other tasks, or if the event lacks them.
    """

    kind: str
    host: str
    task: str = ""
    phase: str | None = None
    outcome: str | None = None
    why: str | None = None


class Played(msgspec.Struct, frozen=True):
    """The end of an ansible-playbook: its exit code, whether it was stopped, and its messages outside of tasks.

    `begun`: a task has begun on a host.
    """

    code: int | None
    stopped: bool
    messages: tuple[str, ...]
    begun: bool = False

    @property
    def contacted_none(self) -> bool:
        """Whether it is known that no host was contacted: ansible told an error, and no task had begun."""
        return not self.begun and any(line.startswith(_ERRORS) for line in self.messages)

    def why_unanswered(self, results: str) -> str:
        """Return why no host has an answer. Hosts that were contacted may have been changed: say no more."""
        if self.contacted_none:
            return f"{NOT_CONTACTED}: {first_error(self.messages)}"
        error = first_error(self.messages) if any(line.startswith(_ERRORS) for line in self.messages) else None
        ended = f"ansible ended with {self.code}" + (f" ({error})" if error is not None else "")
        return f"no host's answer is in {results}: {ended}; see whether files can be written there"


class Stop:
    """A request to stop the run. Signal handlers set it, the run polls it. `now` also interrupts a running ansible."""

    def __init__(self) -> None:
        self.asked = False
        self.process: int | None = None
        self._since: float | None = None

    def now(self) -> None:
        """Request the stop. A second call makes ansible overdue, so that it is killed at once."""
        self._since = float("-inf") if self.asked else self._since
        self.asked = True
        self._interrupt()

    def overdue(self) -> bool:
        """Return whether ansible must be killed: it was interrupted and did not end within _GRACE_SECONDS."""
        if not self.asked:
            return False
        if self._since is None:
            self._interrupt()
            return self.process is None
        return time.monotonic() - self._since > _GRACE_SECONDS

    def _interrupt(self) -> None:
        if self.process is not None and self._since is None:
            self._since = time.monotonic()
            with suppress(ProcessLookupError):
                os.kill(self.process, signal.SIGINT)

    def over(self) -> None:
        """Note that the running ansible has ended: another process may get its process id from now on."""
        self.process = None
        self._since = None


def playbook(order: PlaybookOrder) -> str:
    """Return the path of the order's playbook. Raises BadInput if it is missing from the installation."""
    path = os.path.join(order.playbooks, f"{_PLAYBOOKS.get(order.verb, order.verb)}.yml")
    if not os.path.isfile(path):
        raise BadInput("the playbook is missing", where=path, hint="install hosttune again")
    return path


def play(order: PlaybookOrder, heard: Callable[[TaskEvent], None], stop: Stop) -> Played:
    """Run ansible-playbook until it ends; `heard` gets each event as it arrives. Raises BadInput if it cannot start."""
    try:
        import ansible_runner  # type: ignore[import-untyped]
    except ImportError as error:
        raise not_installed() from error
    messages: deque[str] = deque(maxlen=_MOST_LINES)
    begun = False

    def hear(event: TaskEvent) -> None:
        nonlocal begun
        begun = True
        heard(event)

    with tempfile.TemporaryDirectory(prefix="hosttune-fleet-") as private:  # 0700: it holds the variables
        limit = limit_file(private, order.hosts)
        done = ansible_runner.run(
            private_data_dir=private,
            project_dir=os.getcwd(),  # ansible's working directory: the user's ansible.cfg and relative paths work
            binary=sys.executable,
            cmdline=shlex.join(command(order, limit)),
            forks=order.forks,
            extravars=dict(order.variables),
            envvars=environment(os.environ, options_in_config(os.environ)),
            settings={"pexpect_timeout": _POLL_SECONDS, "suppress_output_file": True},
            event_handler=lambda event: _pass_event(event, hear, messages, stop),
            status_handler=lambda _, runner_config: _forget_command(runner_config.artifact_dir),
            cancel_callback=stop.overdue,
            quiet=True,
        )
    stop.over()
    return Played(done.rc, stop.asked, tuple(messages), begun)


def _forget_command(folder: str) -> None:
    """Remove the file `command`, where ansible-runner saves the environment: a killed run must not leave it behind."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, "command"))


def command(order: PlaybookOrder, limit: str) -> list[str]:
    """Return the arguments for this Python that start ansible-playbook for an order (see `launch`)."""
    launcher = os.path.join(os.path.dirname(os.path.abspath(__file__)), "launch.py")
    words = ["-P", launcher, str(os.getpid()), os.path.join(order.results, ASKING), tool("ansible-playbook")]
    words += [playbook(order), *(word for source in order.inventories for word in ("-i", source))]
    words += ["--limit", f"@{limit}", *(("--check", "--diff") if order.check else ()), *order.options]
    return words


def _pass_event(event: Mapping[str, Any], heard: Callable[[TaskEvent], None], messages: deque[str], stop: Stop) -> bool:
    """Pass an event on. Returns False, so that ansible-runner does not keep it in a file."""
    kind = str(event.get("event", ""))
    data = event.get("event_data") or {}
    if stop.process is None and isinstance(data.get("pid") or event.get("pid"), int):
        stop.process = data.get("pid") or event["pid"]
    if kind in ("verbose", "warning", "error", "system_warning"):
        messages.extend(line for line in str(event.get("stdout", "")).splitlines() if line.strip())
    elif kind == "runner_on_start":
        heard(TaskEvent("start", str(data.get("host", "")), str(data.get("task", ""))))
    elif kind in _TASK_EVENTS:
        result = data.get("res")
        result = result if isinstance(result, Mapping) else {}
        phase, outcome, why = (result.get(name) for name in ("phase", "outcome", "why"))
        heard(
            TaskEvent(
                kind.removeprefix("runner_on_"),
                str(data.get("host", "")),
                str(data.get("task", "")),
                phase if isinstance(phase, str) else None,
                outcome if isinstance(outcome, str) else None,
                why if isinstance(why, str) else None,
            )
        )
    return False


def first_error(messages: Sequence[str]) -> str | None:
    """Return the first error among ansible's messages outside of tasks, else the last message, None without any."""
    return next((line for line in messages if line.startswith(_ERRORS)), messages[-1] if messages else None)
