"""Configuration facts of many hosts → who differs from whom. Pure; it explains, and never changes a verdict.

Facts are compared among hosts of the same machine model: product name and models of GPUs. Of devices only those of the
same kind are compared (the same ids, those of the subsystem too). A majority is more than half of what is known.
Unknown never counts as agreeing. One host is added after the other; of each only its values and addresses are kept, and
equal texts are kept once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import TypeVar

import msgspec

from hosttune.errors import BadInput
from hosttune.fleet.medians import Hardware
from hosttune.fleet.results import answer_path, read_file
from hosttune.model.configuration import FACT_KINDS, KIND, Fact, sane
from hosttune.model.fleet import STATES, Holder, Spread, State, ValueGroup
from hosttune.model.gpu import OTHER
from hosttune.model.jsontext import typed_json
from hosttune.model.listing import some
from hosttune.model.validation import Validation
from hosttune.model.values import grouped

T = TypeVar("T")

MOST_FACTS = 1024  # of a host: 28 names, and some kinds of devices with some values each
MOST_SUBJECTS = 16384  # of all facts of a host: 28 names of some hundred devices
LONGEST_NAME = 80  # characters of a device's address or model
MOST_VALUES = 64  # values of a fact that the report names


class MachineModel(msgspec.Struct, frozen=True):
    """What hosts must have in common so that their facts are compared. `gpus`: vendor:device of each model, sorted."""

    product: str | None
    gpus: tuple[str, ...]


class _Model(msgspec.Struct):
    """What is known of the hosts of one machine model: by fact and kind, each host's devices by value.

    `hosts`: the names of the facts that each host gave.
    """

    gpu_models: tuple[str, ...]
    hosts: dict[str, frozenset[str]] = msgspec.field(default_factory=dict)
    facts: dict[tuple[str, str | None], list[tuple[str, str | None, tuple[str, ...]]]] = msgspec.field(
        default_factory=dict
    )
    names: dict[tuple[str, str | None], str] = msgspec.field(default_factory=dict)


class Gathering:
    """The facts of a fleet, host by host. `spreads` compares them, `notes` says which hosts gave none."""

    def __init__(self) -> None:
        self._models: dict[MachineModel, _Model] = {}
        self._shared: dict[object, object] = {}
        self._without: list[str] = []
        self._too_many: list[str] = []

    def add(self, host: str, hardware: HostHardware | None, facts: Sequence[Fact] | None) -> None:
        """Add a host. `facts` None: it gave none (no answer, or an older hosttune)."""
        if facts is None or hardware is None:
            self._without.append(host)
            return
        if too_many(facts):
            self._too_many.append(host)
            return
        key = model_of(hardware)
        names = tuple(sorted({name for name, _ in hardware.hardware.gpus.values()}))
        model = self._models.setdefault(key, _Model(names))
        model.hosts[host] = self._once(frozenset(fact.name for fact in facts if fact.name in FACT_KINDS))
        for name, kind, value, subjects, label in _whole(facts):
            place = (name, kind)
            model.facts.setdefault(place, []).append((host, self._once(value), self._once(subjects)))
            if label is not None:
                model.names.setdefault(place, label)

    def _once(self, value: T) -> T:
        return self._shared.setdefault(value, value)  # type: ignore[return-value]

    def spreads(self) -> tuple[Spread, ...]:
        """Return every fact of every machine model, those that differ first."""
        every = [spread for key, model in self._models.items() for spread in _spreads(key, model)]
        order = {name: place for place, name in enumerate(FACT_KINDS)}
        return tuple(
            sorted(
                every,
                key=lambda spread: (
                    STATES.index(spread.state),
                    spread.product or "",
                    spread.gpus,
                    order[spread.fact],
                    spread.kind or "",
                ),
            )
        )

    def notes(self) -> Iterator[str]:
        """Yield what cannot be compared, and why."""
        if self._models and self._without:
            count = len(self._without)
            noun, they = ("host", "it is") if count == 1 else ("hosts", "they are")
            yield (
                f"{count} {noun} gave no configuration facts (no answer, or an older hosttune), so that {they} in no "
                f"comparison and unknown: {some(self._without, 5)}"
            )
        if self._too_many:
            noun = "host" if len(self._too_many) == 1 else "hosts"
            what = f"{len(self._too_many)} {noun} gave more configuration facts than a host has; none is used"
            yield f"{what}: {some(self._too_many, 5)}"


def too_many(facts: Sequence[Fact]) -> bool:
    """Whether there are more facts, or more devices in them, than a host has."""
    return len(facts) > MOST_FACTS or sum(len(fact.subjects) for fact in facts) > MOST_SUBJECTS


def model_of(hardware: HostHardware) -> MachineModel:
    """Return the machine model of a host. A GPU of unknown ids counts by its model's name."""
    gpus = {device or name for name, device in hardware.hardware.gpus.values()}
    return MachineModel(sane(hardware.hardware.product), tuple(sorted(gpus)))


def _whole(facts: Iterable[Fact]) -> Iterator[tuple[str, str | None, str | None, tuple[str, ...], str | None]]:
    """Yield (name, kind, value, subjects, model) of each fact that this version knows, with a value for each subject.

    A fact of a host that is there twice, and a device with two values, contradict themselves: unknown.
    """
    values: dict[tuple[str, str | None, str], set[str | None]] = {}
    labels: dict[tuple[str, str | None], str] = {}
    for fact in facts:
        if fact.name not in FACT_KINDS:
            continue
        kind = fact.kind if fact.kind is not None and KIND.fullmatch(fact.kind) else None
        if fact.model is not None and (label := sane(fact.model)) is not None:
            labels.setdefault((fact.name, kind), label[:LONGEST_NAME])
        for subject in fact.subjects or ("",):
            values.setdefault((fact.name, kind, subject[:LONGEST_NAME]), set()).add(sane(fact.value))
    subjects_of = grouped(
        ((name, kind, next(iter(given)) if len(given) == 1 else None), subject)
        for (name, kind, subject), given in values.items()
    )
    for (name, kind, value), subjects in subjects_of.items():
        yield name, kind, value, tuple(subject for subject in subjects if subject), labels.get((name, kind))


def _spreads(key: MachineModel, model: _Model) -> Iterator[Spread]:
    of_host = (name for name, kind in FACT_KINDS.items() if kind.of == "host")
    needed = (name for name in of_host if name not in ("fabric-manager", "microcode"))  # not every host has these
    for place in dict.fromkeys((*model.facts, *((name, None) for name in needed))):
        yield _spread(key, model, place)


def _spread(key: MachineModel, model: _Model, place: tuple[str, str | None]) -> Spread:
    rows = model.facts.get(place, [])
    name, kind = place
    by_value: dict[str, list[Holder]] = {}
    unknown: list[Holder] = []
    for host, value, subjects in rows:
        (by_value.setdefault(value, []) if value is not None else unknown).append(Holder(host=host, subjects=subjects))
    seen = {host for host, _, _ in rows}
    absent = [host for host in model.hosts if host not in seen]
    # A host with this fact of other devices has none of these. A host that does not give the fact at all is unknown.
    unknown += [Holder(host=host) for host in absent if name not in model.hosts[host]]
    absent = [host for host in absent if name in model.hosts[host]]
    sizes = {value: sum(len(holder.subjects) or 1 for holder in holders) for value, holders in by_value.items()}
    known = sum(sizes.values())
    comparable = known > 1 and key.product is not None and (kind is not None or FACT_KINDS[name].of == "host")
    majority = next((value for value, size in sizes.items() if comparable and 2 * size > known), None)
    ordered = sorted(by_value, key=lambda value: (-sizes[value], value))
    return Spread(
        fact=name,
        state=_state(sizes, majority, unknown=bool(unknown) or few(absent, model.hosts), comparable=comparable),
        product=key.product,
        gpus=key.gpus,
        gpu_models=model.gpu_models,
        kind=kind,
        model=model.names.get(place),
        majority=majority,
        hosts=len(model.hosts),
        known=known,
        groups=tuple(_group(value, by_value[value], sizes[value], majority) for value in ordered[:MOST_VALUES]),
        more_values=max(0, len(ordered) - MOST_VALUES),
        unknown=tuple(unknown),
        without=tuple(absent),
    )


def few(absent: Sized, hosts: Sized) -> bool:
    """Whether some hosts have no such device, and not more than half: there one may be missing."""
    return 0 < 2 * len(absent) <= len(hosts)


def _state(sizes: Mapping[str, int], majority: str | None, *, unknown: bool, comparable: bool) -> State:
    if len(sizes) > 1 and comparable:
        return "differs" if majority is not None else "split"
    if unknown or not (comparable or sum(sizes.values()) == 1):
        return "unknown"
    return "alike" if comparable else "single"


def _group(value: str, holders: Sequence[Holder], size: int, majority: str | None) -> ValueGroup:
    return ValueGroup(
        value=value,
        hosts=len({holder.host for holder in holders}),
        subjects=size,
        holders=() if value == majority else tuple(holders),
    )


# --- hardware --------------------------------------------------------------------------------------------------
# The hardware that a host's figures belong to: its GPUs and its product name.
# Read from the host's validation, or from its host document if the validation does not have it.


class _FleetPlatform(msgspec.Struct):
    product: str | None = None


class _FleetFunction(msgspec.Struct):
    address: str
    vendor_id: str | None = None
    device_id: str | None = None


class _FleetGpu(msgspec.Struct):
    address: str
    vendor: str | None = None
    model: str | None = None


class _FleetHost(msgspec.Struct):
    """The part of a host document that the report needs; the rest is skipped and not decoded."""

    hostname: str | None = None
    platform: _FleetPlatform | None = None
    pci: tuple[_FleetFunction, ...] | None = None
    gpus: tuple[_FleetGpu, ...] | None = None


class HostHardware(msgspec.Struct, frozen=True):
    """The host name and hardware of a host, from its validation or its last host document."""

    hostname: str | None
    hardware: Hardware

    @property
    def devices(self) -> str | None:
        """The number of its GPUs by model ("8 × NVIDIA H200"); None if it has no GPU."""
        counted = Counter(model for model, _ in self.hardware.gpus.values())
        return ", ".join(f"{number} × {model}" for model, number in counted.items()) or None


def machine_of(validation: Validation) -> HostHardware | None:
    """Return the machine that a validation names; None if an older hosttune made the validation."""
    machine = validation.machine
    if machine is None:
        return None
    gpus = {gpu.address: (gpu.model or "GPU", gpu.id) for gpu in machine.gpus}
    return HostHardware(validation.host, Hardware(gpus, machine.product))


def read_machine(results: str, host: str) -> HostHardware | None:
    """Return the machine from RESULTS/HOST/discover.json of any run; None if there is none or it cannot be read.

    It does not influence a verdict. It only decides with which hosts figures are compared, and what the report prints
    beside the host's name.
    """
    try:
        data = read_file(answer_path(results, host, "discover"))
        document = typed_json(data, _FleetHost) if data is not None else None
    except BadInput:
        return None  # the phase `discover` has its own answer; here the hardware is just unknown
    if document is None or document.gpus is None:
        return None
    ids = {
        function.address: f"{function.vendor_id}:{function.device_id}"
        for function in document.pci or ()
        if function.vendor_id and function.device_id
    }
    gpus = {
        gpu.address: (gpu.model or f"{gpu.vendor} GPU", ids.get(gpu.address))
        for gpu in document.gpus
        if gpu.vendor not in (None, OTHER)
    }
    return HostHardware(
        document.hostname, Hardware(gpus, document.platform.product if document.platform is not None else None)
    )
