"""What only some settings have: mix one into a setting's class, and the engine asks it.

Each is a class beside `Setting`: a setting that is none of them reads, writes and goes back, and that is all. They add
no fields, so they need no decorator of their own, which every start of `discover` would pay for.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from hosttune.model.values import freeze
from hosttune.settings.setting import Setting
from hosttune.system import System

if TYPE_CHECKING:
    from hosttune.model.host import Host


class Divisible(Setting):
    """Its parts are settings of their own: two targets can have some in common (a CPU that is in two lists)."""

    @abstractmethod
    def target_of(self, names: Collection[str]) -> str:
        """The target that has these parts alone."""


class WrittenTogether(Divisible):
    """What one plan wants of this kind is written at once, as one setting whose parts are the actions' targets."""

    @classmethod
    @abstractmethod
    def merged(cls, settings: Sequence[Setting]) -> Self:
        """The one setting that stands for these; its value has a part for each target."""


class TakesDevice(Setting):
    """A change takes its target, a PCI function, or others of its device, from whoever uses them."""

    hides_device: ClassVar[bool] = False  # nobody can ask its target who it is once it is set

    def taken(self, system: System) -> tuple[str, ...]:
        """The functions that a change takes from whoever uses them. Raises Unreadable."""
        return (self.target,)

    def taken_back(self, system: System, old: Any) -> tuple[str, ...]:
        """The functions that going back to `old` would take from their users; none where it is so.

        Raises Unreadable.
        """
        return self.taken(system) if freeze(self.read(system)) != freeze(old) else ()

    def kept_open(self, host: Host) -> str | None:
        """What of the host itself has its target open, so that a change would hang; None for nothing."""
        return None


class FreesDevice(Setting):
    """Set, the host itself has its target open no longer: see `TakesDevice.kept_open`."""


class MayGiveLess(Setting):
    """The kernel may give less than was wanted: that is no failure, and what it gave is kept."""

    @property
    def covered_by(self) -> tuple[str, str] | None:
        """Kind and target of the setting that, staged for the next boot, brings then what this falls short of now."""
        return None

    @abstractmethod
    def satisfied_by(self, live: Any, want: Any) -> bool:
        """Whether a value that is not the wanted one serves as well, so that a boot's re-apply leaves it alone."""

    @abstractmethod
    def still_in_use(self, system: System, old: Any, left: Collection[Any] | None) -> str | None:
        """What is in use now that going back to `old` would leave too little of; None for nothing. Raises Unreadable.

        `left`: the values that were left here, any for None: at another one it is somebody else's, and stays.
        """


class Remediable(Setting):
    """Where it falls short, something else can be planned or done instead."""

    @property
    @abstractmethod
    def remedy(self) -> str | None:
        """What that is; None: nothing is known to help."""


class ServedByOthers(Setting):
    """What somebody else set up can serve in its place."""

    @abstractmethod
    def served(self, system: System, live: Any, want: Any) -> str | None:
        """Why a value that is not the wanted one serves, being somebody else's and never ours; None: it does not.

        Asked of a setting that no transaction has in force.
        """


class Disturbing(Setting):
    """A change cuts off what runs now."""

    @abstractmethod
    def disturbed(self, system: System) -> Iterable[str]:
        """What that is, in a few words each: refused before the first write."""
