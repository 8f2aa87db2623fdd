"""What a setting is: one thing of a host that can be read, written, read back and put back.

A setting is a frozen value whose fields are its identity. It knows how to `read` and `write` itself through a
System and nothing else; the transaction derives from that what is applied, verified, undone, rehearsed and
recovered. Values are JSON: text, a number, a truth value, None, or a mapping of parts for a setting that consists
of several alike (one per CPU), which is settled part by part. What only some settings have is in `traits`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from hosttune.errors import BadInput
from hosttune.system import System

RUNTIME, FILE, BOOT = "runtime", "file", "boot"

# When a setting's turn comes within a transaction; within one stage the plan's order holds.
# What keeps devices apart comes before any changes hands, and on the way back goes after all of them are home.
ISOLATION_STAGE, HOST_STAGE, KEEP_STAGE, GUEST_STAGE, START_STAGE, AFTER_START_STAGE = range(6)


@dataclass(frozen=True)
class Setting(ABC):
    """One setting. `target` is its identity within its kind, as a plan writes it.

    `scope`: "runtime" (gone with a reboot), "file" (stays), "boot" (staged in a file, takes effect at the next
    boot). `limit_seconds`: how long a write may take; it is then made in a child, for it can hang in the kernel.
    `persisted_by` and `reset_by` say in a few words what makes it last and what undoes it.
    """

    target: str

    kind: ClassVar[str] = ""
    scope: ClassVar[str] = RUNTIME
    stage: ClassVar[int] = HOST_STAGE
    limit_seconds: ClassVar[float | None] = None
    none_is_value: ClassVar[bool] = False  # None is a state of it (no driver, no file), not "there is no such knob"
    disruptive: ClassVar[bool] = False  # needs its target's name in --disrupt
    may_stop_midway: ClassVar[bool] = False  # an interrupted write can leave a value that is neither old nor new
    undone_later: ClassVar[bool] = True  # False: taken back within its own transaction, never by a later revert
    rehearsed_briefly: ClassVar[bool] = False  # a rehearsal tells its files by size and digest, not whole
    persisted_by: ClassVar[str] = "the boot unit"
    reset_by: ClassVar[str] = "a reboot"

    @classmethod
    @abstractmethod
    def of(cls, target: str) -> Self:
        """The setting of a target. Raises BadInput for a target that this kind cannot have: plans are untrusted."""

    @classmethod
    def restored(cls, target: str) -> Setting:
        """The setting of a target that a journal names: `of`, but for a merged setting. Raises BadInput."""
        return cls.of(target)

    @abstractmethod
    def check(self, value: Any) -> None:
        """Raise BadInput for a value that is not a value that it can have. Called before anything is written."""

    @abstractmethod
    def read(self, system: System) -> Any:
        """The value now, in normal form: equal values mean the same. None: there is none. Raises Unreadable."""

    @abstractmethod
    def write(self, system: System, value: Any) -> str | None:
        """Make it `value` (of `check`, or one that `read` gave). Raises WriteFailed, CommandFailed.

        Where the machine keeps two books of it, each is written that differs. What it returns is told beside the
        outcome ("interrupt 37 is managed by the kernel").
        """

    def effective(self, system: System) -> Any:
        """The value that works now, as plans know it. Raises Unreadable.

        Differs from `read` where that is staged for the next boot, or where the machine keeps a second book of it (a
        register and the kernel's switch, a value and its file) that may say otherwise: it is as wanted if both are.
        """
        return self.read(system)

    def places(self, system: System) -> tuple[str, ...]:
        """The files of ours that it may put in place: once it is taken back, what a crash left of that goes too."""
        return ()

    def waits_for(self, system: System) -> str | None:
        """Why it cannot be set yet (its guest does not run), None when it can."""
        return None

    def parts(self, value: Any) -> Mapping[str, Any]:
        """The value by part; one part, "", unless the setting consists of several."""
        return {"": value}

    def joined(self, parts: Mapping[str, Any]) -> Any:
        """The value of these parts: the inverse of `parts`."""
        return parts[""]

    def agrees(self, live: Any, want: Any) -> bool:
        """Whether a live value is the wanted one."""
        return bool(live == want) and type(live) is type(want)


def refuse(setting: str, target: str, what: str, hint: str) -> BadInput:
    """The error of a target or value that a setting cannot have."""
    return BadInput(f"{what}", where=f"action {setting}:{target}", hint=hint)
