"""Features that only some settings have: mix one into a setting's class, and the engine uses it.

Each trait is a class next to `Setting`. A setting without traits is only read, written and restored.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

from hosttune.machine.system import System
from hosttune.model.host import Host
from hosttune.model.values import FrozenMap, freeze
from hosttune.settings.setting import Setting

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
        return cls(",".join(sorted({name for one in settings for name in one.target.split(",")})))

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
