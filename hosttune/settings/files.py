"""Settings that are one file of the kernel, of which a host has only one; class variables describe the file."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal, Self, TypeVar

from hosttune.machine.system import System
from hosttune.settings.setting import Setting, refuse

Form = Literal["text", "chosen", "number"]
_WORD = r"\[([^\]\s]+)\]"


class OneFile(Setting):
    """One file of the kernel. `target_name`: the target in plans, if it is not the path.

    `form`: the form of the file's text. "text": as it is; "chosen": of several words the one in brackets ("[none]
    bfq"); "number": a whole number. A plan can want one of `values`, or one of `numbers`.
    """

    path: ClassVar[str]
    target_name: ClassVar[str | None] = None
    form: ClassVar[Form] = "text"
    numbers: ClassVar[range | None] = None

    @classmethod
    def of(cls, target: str) -> Self:
        """See Setting."""
        return only(cls, target, cls.target_name or cls.path)

    def check(self, value: Any) -> None:
        """See Setting."""
        if self.numbers is None:
            super().check(value)
        elif type(value) is not int or value not in self.numbers:
            allowed = f"{self.numbers[0]} to {self.numbers[-1]}"
            raise refuse(self.kind, self.target, f"invalid value {value!r}", allowed)

    @classmethod
    def parse(cls, text: str | None) -> Any:
        """Return the value of the file's text; None if it has none."""
        return parsed(cls.form, text)

    def read(self, system: System) -> Any:
        """See Setting."""
        return self.parse(system.read(self.path))

    def write(self, system: System, value: Any) -> None:
        """See Setting."""
        system.write(self.path, str(value))


S = TypeVar("S", bound=Setting)


def only(cls: type[S], target: str, known: str) -> S:
    """Return the setting of a kind that exists once. Raises BadInput for any other target."""
    if target != known:
        raise refuse(cls.kind, target, f"not a target of {cls.kind}", f"it is {known}")
    return cls(target)


def parsed(form: Form, text: str | None) -> Any:
    """Return the value of a kernel file's text; None if it has none. See `OneFile`."""
    if form == "chosen":
        match = re.search(_WORD, text or "")
        return match[1] if match else None
    stripped = (text or "").strip()
    if form == "number":
        return int(stripped) if stripped.isdecimal() and len(stripped) < 20 else None
    return stripped or None


def whole_number(system: System, path: str) -> int | None:
    """Return the number in a file; None if there is none. Raises Unreadable."""
    number: int | None = parsed("number", system.read(path))
    return number


def chosen_word(system: System, path: str) -> str | None:
    """Return the word in brackets of "[none] mq-deadline"; None if there is none. Raises Unreadable."""
    word: str | None = parsed("chosen", system.read(path))
    return word
