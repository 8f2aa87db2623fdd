"""Base class of settings: one value of a host that can be read, written, read back and restored.

A setting is a frozen value: two settings of one class and one target are equal. It can only `read` and `write` itself
through a System. The transaction uses these to apply, verify, revert, rehearse and recover it. Values are JSON: text, a
number, a truth value, None, or a mapping of parts for a setting with several similar parts (one per CPU), which are
handled one by one. Features that only some settings need are in `traits`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Self

from hosttune.errors import BadInput
from hosttune.machine.system import System

RUNTIME, FILE, BOOT = "runtime", "file", "boot"

# Stages: the order of settings within a transaction; within one stage the plan's order counts. What isolates devices is
# set before any device changes its driver, and is reverted after all devices are back.
ISOLATION_STAGE, HOST_STAGE, KEEP_STAGE, GUEST_STAGE, START_STAGE, AFTER_START_STAGE = range(6)
OF_GUESTS: Final = (GUEST_STAGE, START_STAGE)  # only libvirt knows these


class Setting(ABC):
    """One setting. `target` is its identity within its kind, as written in a plan.

    `scope`: "runtime" (lost at a reboot), "file" (stays), "boot" (staged in a file, takes effect at the next boot).
    `limit_seconds`: how long a write may take; the write is then made in a child process, because it can hang in the
    kernel.
    """

    kind: ClassVar[str] = ""
    scope: ClassVar[str] = RUNTIME
    stage: ClassVar[int] = HOST_STAGE
    limit_seconds: ClassVar[float | None] = None
    none_is_value: ClassVar[bool] = False  # None is a state (no driver, no file), not "does not exist here"
    disruptive: ClassVar[bool] = False  # needs its target's name in --disrupt
    may_stop_midway: ClassVar[bool] = False  # an interrupted write can leave a value that is neither old nor new
    undone_later: ClassVar[bool] = True  # False: rolled back within its own transaction, never by a later revert
    rehearsed_briefly: ClassVar[bool] = False  # a rehearsal shows size and digest of its files, not their text

    def __init__(self, target: str) -> None:
        self.target: Final = target

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Setting) and type(other) is type(self) and other.target == self.target

    def __hash__(self) -> int:
        return hash((type(self), self.target))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.target!r})"

    @classmethod
    @abstractmethod
    def of(cls, target: str) -> Self:
        """Return the setting of a target.

        Raises BadInput for a target that this kind cannot have: plans are untrusted.
        """

    @classmethod
    def restored(cls, target: str) -> Setting:
        """Return the setting of a target in a journal: as `of`, but also for a merged setting. Raises BadInput."""
        return cls.of(target)

    @abstractmethod
    def check(self, value: Any) -> None:
        """Raise BadInput for a value that the setting cannot have. Called before anything is written."""

    @abstractmethod
    def read(self, system: System) -> Any:
        """Return the present value in normal form: equal values mean the same.

        None: there is none. Raises Unreadable.
        """

    @abstractmethod
    def write(self, system: System, value: Any) -> str | None:
        """Set it to `value` (one that `check` accepts or `read` returned). Raises WriteFailed, CommandFailed.

        If the machine keeps the value in two places, each that differs is written. Returns a note that is reported with
        the outcome ("interrupt 37 is managed by the kernel").
        """

    def effective(self, system: System) -> Any:
        """Return the value that works now, as in plans. Raises Unreadable.

        It differs from `read` if `read` returns what is staged for the next boot, or if the machine keeps the value in
        two places that can differ (a register and the kernel's switch, a value and its file). The setting is as wanted
        only if both are.
        """
        return self.read(system)

    def places(self, system: System) -> tuple[str, ...]:
        """Return the files that hosttune may create for it.

        After a revert, what a crash left of them is removed too.
        """
        return ()

    def waits_for(self, system: System) -> str | None:
        """Return why it cannot be set yet (its guest does not run); None if it can."""
        return None

    def parts(self, value: Any) -> Mapping[str, Any]:
        """Return the value by part; one part, "", unless the setting has several."""
        return {"": value}

    def joined(self, parts: Mapping[str, Any]) -> Any:
        """Return the value of these parts: the inverse of `parts`."""
        return parts[""]

    def shown(self, value: Any) -> Any:
        """Return the value, or a part of it, as results, messages and rehearsals may show it: without secrets."""
        return value

    def agrees(self, live: Any, want: Any) -> bool:
        """Return whether a live value is the wanted one."""
        return bool(live == want) and type(live) is type(want)

    def is_original(self, live: Any, old: Any) -> bool:
        """Return whether a live value is as good as the one before hosttune's first write: nothing goes back then."""
        return self.agrees(live, old)


def refuse(setting: str, target: str, what: str, hint: str) -> BadInput:
    """Return the error for a target or value that a setting cannot have."""
    return BadInput(f"{what}", where=f"action {setting}:{target}", hint=hint)
