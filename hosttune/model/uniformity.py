"""Uniformity: how a configuration fact is spread over the hosts of one machine model. A part of the fleet report."""

from __future__ import annotations

from typing import Literal

from hosttune.model.values import Value, close_lists

# alike: all have the same value; differs: more than half of those that are known have one value, others another;
# split: several values, and none has more than half; single: only one is there to compare; unknown: those that are
# known do not differ, but not all are known, or at most half of the hosts have no such device.
State = Literal["alike", "differs", "split", "single", "unknown"]
STATES: tuple[State, ...] = ("differs", "split", "unknown", "single", "alike")  # in the order of a report


class Holder(Value, frozen=True, kw_only=True):
    """A host with a value. `subjects`: its devices that have it; empty for a fact of the host."""

    host: str
    subjects: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        close_lists(self)


class ValueGroup(Value, frozen=True, kw_only=True):
    """A value, and how many hosts and subjects (devices, or the hosts themselves) have it.

    `holders` is empty for the majority: these are all hosts that no other group names.
    """

    value: str
    hosts: int
    subjects: int
    holders: tuple[Holder, ...] = ()

    def __post_init__(self) -> None:
        close_lists(self)


class Spread(Value, frozen=True, kw_only=True):
    """One fact of one kind of device (`kind` None: of the host itself) on the hosts of one machine model.

    `product` and `gpus` (vendor:device, sorted) are the machine model; `product` None: unknown, so that nothing is
    compared. `majority`: the value of more than half of the known subjects. `groups`: the values, most subjects first
    (`more_values`: how many are left out). `unknown`: who could not be read. `without`: hosts of this machine model
    without such a device.
    """

    fact: str
    state: State
    product: str | None = None
    gpus: tuple[str, ...] = ()
    gpu_models: tuple[str, ...] = ()
    kind: str | None = None
    model: str | None = None
    majority: str | None = None
    hosts: int = 0
    known: int = 0
    groups: tuple[ValueGroup, ...] = ()
    more_values: int = 0
    unknown: tuple[Holder, ...] = ()
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        close_lists(self)
