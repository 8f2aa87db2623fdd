"""Base class of settings: one value of a host that can be read, written, read back and restored.

A setting is a frozen value: two settings of one class and one target are equal. It can only `read` and `write` itself
through a System. The transaction uses these to apply, verify, revert, rehearse and recover it. Values are JSON: text, a
number, a truth value, None, or a mapping of parts for a setting with several similar parts (one per CPU), which are
handled one by one. Features that only some settings need are the traits below.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple, Self

from hosttune.errors import BadInput, Unreadable
from hosttune.machine.system import System
from hosttune.model import sysfs
from hosttune.model.host import Host
from hosttune.model.values import FrozenMap, freeze, is_address

RUNTIME, FILE, BOOT = "runtime", "file", "boot"
GONE = "its device is gone, and what was set with it: nothing to write"

# Stages: the order of settings within a transaction; within one stage the plan's order counts. What isolates devices is
# set before any device changes its driver, and is reverted after all devices are back.
ISOLATION_STAGE, HOST_STAGE, KEEP_STAGE, GUEST_STAGE, START_STAGE, AFTER_START_STAGE = range(6)
OF_GUESTS: Final = (GUEST_STAGE, START_STAGE)  # only libvirt knows these


class Targets(NamedTuple):
    """The targets of a kind: those that `has` accepts; of another, what it is ({0!r}: the target, {1!r}: its first 40
    characters) and what to do.
    """

    has: Callable[[str], object]
    what: str
    hint: str = "plan again"


class Setting(ABC):
    """One setting. `target` is its identity within its kind, as written in a plan.

    `scope`: "runtime" (lost at a reboot), "file" (stays), "boot" (staged in a file, takes effect at the next boot).
    `limit_seconds`: how long a write may take; the write is then made in a child process, because it can hang in the
    kernel.
    """

    kind: ClassVar[str] = ""
    targets: ClassVar[Targets]
    values: ClassVar[tuple[Any, ...]] = ()  # those that a plan can want, of exactly these types
    scope: ClassVar[str] = RUNTIME
    stage: ClassVar[int] = HOST_STAGE
    limit_seconds: ClassVar[float | None] = None
    none_is_value: ClassVar[bool] = False  # None is a state (no driver, no file), not "does not exist here"
    disruptive: ClassVar[bool] = False  # needs its target's name in --disrupt
    may_stop_midway: ClassVar[bool] = False  # an interrupted write can leave a value that is neither old nor new
    undone_later: ClassVar[bool] = True  # False: rolled back within its own transaction, never by a later revert
    in_force_as_found: ClassVar[bool] = False  # a reboot undoes it: in force also where it was as wanted before
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
    def of(cls, target: str) -> Self:
        """Return the setting of a target.

        Raises BadInput for a target that this kind cannot have: plans are untrusted.
        """
        if not cls.targets.has(target):
            raise refuse(cls.kind, target, cls.targets.what.format(target, target[:40]), cls.targets.hint)
        return cls(target)

    @classmethod
    def restored(cls, target: str) -> Setting:
        """Return the setting of a target in a journal: as `of`, but also for a merged setting. Raises BadInput."""
        return cls.of(target)

    def check(self, value: Any) -> None:
        """Raise BadInput for a value that the setting cannot have. Called before anything is written."""
        if not any(type(value) is type(known) and value == known for known in self.values):
            raise refuse(self.kind, self.target, f"invalid value {value!r}", f"one of {self.values}")

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

    def is_gone(self, system: System) -> bool:
        """Return whether the PCI function that it is of is there no more, and with it all that was set."""
        return is_address(self.target) and not system.exists(f"{DEVICES}/{self.target}")

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


# --- traits --------------------------------------------------------------------------------------------------
# Each trait is a class next to `Setting`. A setting without traits is only read, written and restored.


NOW, AT_BOOT = "now", "boot"  # the parts of a NowAndAtBoot


class Divisible(Setting):
    """Its parts are separate settings: two targets can have some in common (a CPU that is in two lists)."""

    @abstractmethod
    def target_of(self, names: Collection[str]) -> str:
        """Return the target that has only these parts."""


class NowAndAtBoot(Setting):
    """It has a value now and one at the next boot. If both are the same, they are one value, else a mapping of both."""

    def parts(self, value: Any) -> Mapping[str, Any]:
        """See Setting."""
        return value if isinstance(value, Mapping) else {NOW: value, AT_BOOT: value}

    def joined(self, parts: Mapping[str, Any]) -> Any:
        """See Setting."""
        return parts[NOW] if parts[NOW] == parts[AT_BOOT] else FrozenMap({name: parts[name] for name in (NOW, AT_BOOT)})


class WrittenTogether(Divisible):
    """All actions of one plan for this kind are written at once, as one setting with the actions' targets as parts.

    The merged setting's target is theirs, joined by commas; its value is a mapping by target.
    """

    @classmethod
    def merged(cls, settings: Sequence[Setting]) -> Self:
        """Return one setting that combines these; its value has a part for each target."""
        return cls(",".join(sorted({name for setting in settings for name in setting.target.split(",")})))

    @classmethod
    def restored(cls, target: str) -> Self:
        """See Setting."""
        for name in target.split(","):
            cls.of(name)
        return cls(target)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the targets that are merged in it."""
        return tuple(self.target.split(","))

    def waiting(self, system: System) -> Mapping[str, str]:
        """Return, for each target that cannot be set yet, the reason."""
        return {}

    def parts(self, value: Any) -> Mapping[str, Any]:
        """See Setting."""
        return value if isinstance(value, Mapping) else dict.fromkeys(self.names, value)

    def joined(self, parts: Mapping[str, Any]) -> Any:
        """See Setting."""
        return FrozenMap(parts)

    def target_of(self, names: Collection[str]) -> str:
        """See Divisible."""
        return ",".join(sorted(names))


class TakesDevice(Setting):
    """A change takes its target, a PCI function, or others of its device, from the programs that use them."""

    hides_device: ClassVar[bool] = False  # once set, the identity of its target cannot be queried

    def taken(self, system: System) -> tuple[str, ...]:
        """Return the functions that a change takes from their users. Raises Unreadable."""
        return (self.target,)

    def taken_by_revert(self, system: System, old: Any) -> tuple[str, ...]:
        """Return the functions that a revert to `old` would take from their users; empty if `old` is already set.

        Raises Unreadable.
        """
        return self.taken(system) if freeze(self.read(system)) != freeze(old) else ()

    def kept_open(self, host: Host) -> str | None:
        """Return what on the host itself keeps its target open, so that a change would hang; None for nothing."""
        return None


class FreesDevice(Setting):
    """Once this is set, the host itself no longer keeps its target open: see `TakesDevice.kept_open`."""


class MayGiveLess(Setting):
    """The kernel may provide less than was wanted: this is not a failure, and what it provided is kept."""

    @property
    def covered_by(self) -> tuple[str, str] | None:
        """Return kind and target of the setting that, if staged, supplies at the next boot what is missing now."""
        return None

    def is_needed(self, system: System, live: Any, want: Any, ours: Callable[[], int]) -> bool:
        """Return whether others use what is there beyond the wanted value: it is no drift then. Raises Unreadable.

        `ours` tells what guests in force use. It is asked only where that decides: it asks libvirt, which the boot unit
        must not wait for.
        """
        return False

    @abstractmethod
    def satisfied_by(self, live: Any, want: Any) -> bool:
        """Return whether a value other than the wanted one is good enough, so that `apply --boot` leaves it alone."""

    @abstractmethod
    def still_in_use(self, system: System, old: Any, left: Collection[Any] | None) -> str | None:
        """Return what is in use now and would not fit after a revert to `old`; None for nothing. Raises Unreadable.

        `left`: the values that hosttune has left here, None for any. With another value it is not hosttune's, and
        stays.
        """


class EditedInPlace(Setting):
    """Others have their parts in its value: what is written is the present value with what is wanted."""

    @abstractmethod
    def edited(self, planned: Any, live: Any, want: Any) -> tuple[Any, tuple[str, ...]]:
        """Return the value to write, `live` itself if it has all that is wanted, and what of others it keeps.

        `planned`: what was wanted by the write that is in force; None: there is none.
        """


class MadeByAnother(Setting):
    """What it is about is made by another setting: it is set after that one, and again whenever that one is."""

    @property
    @abstractmethod
    def made_by(self) -> tuple[str, str]:
        """Return kind and target of the other."""


class Remediable(Setting):
    """A setting for which, if it gets less than wanted, something else can be planned or done."""

    @property
    @abstractmethod
    def remedy(self) -> str | None:
        """Return what to plan or do instead; None: nothing is known to help."""


class ServedByOthers(Setting):
    """A setting that another program's configuration can replace."""

    @abstractmethod
    def served(self, system: System, live: Any, want: Any) -> str | None:
        """Return why a value other than the wanted one is good enough and is not hosttune's; None if it is not.

        Called only for a setting that no transaction has applied.
        """


class Disturbing(Setting):
    """A change interrupts something that is running."""

    @abstractmethod
    def disturbed(self, system: System) -> Iterable[str]:
        """Return what that is, in a few words each: an apply refuses it before the first write."""


class ByService(Setting):
    """A service of the GPU's maker reads and writes it.

    So the boot unit waits for that service, and then until it answers.
    """

    answers_within: ClassVar[float] = 60.0  # seconds after its start


# --- settings of one PCI function ----------------------------------------------------------------------------


DEVICES = sysfs.PCI_DEVICES


class OfFunction(Setting):
    """Base class of settings of one PCI function."""

    targets = Targets(
        is_address,
        "{1!r} is not a PCI address",
        "write it as the kernel does, in full and in lower case: 0000:41:00.0",
    )

    @property
    def path(self) -> str:
        """Return the function's folder in sysfs."""
        return f"{DEVICES}/{self.target}"

    def require(self, system: System) -> None:
        """Raise Unreadable if the function does not exist: a missing device has no state, not even "none"."""
        if not system.exists(self.path):
            raise Unreadable(self.path, "there is no such device")


def driver_of(system: System, address: str) -> str | None:
    """Return the driver that holds a function; None for none. Raises Unreadable."""
    target = system.link(f"{DEVICES}/{address}/driver")
    return None if target is None else target.rpartition("/")[2]


# --- settings that explain ------------------------------------------------------------------------------------


class Explains(ABC):
    """A setting that compares its values itself and describes the differences for people."""

    @abstractmethod
    def differences(self, live: Any, want: Any) -> tuple[str, ...]:
        """Return how the live value differs from the wanted one, one text each; empty if they mean the same."""
