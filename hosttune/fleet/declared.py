"""Hosts against a declared baseline: judged from the configuration facts in their validations; and a baseline written
from a fleet's facts.

Only what is declared is judged. What the host does not give is unknown, and unknown is never a pass; so is a host of a
machine model that the baseline does not have. A device of a kind that is not declared is not judged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from hosttune.errors import BadInput
from hosttune.fleet.gate import HostStatus
from hosttune.fleet.results import answer_path, read_file
from hosttune.fleet.uniformity import LONGEST_NAME, HostHardware, MachineModel, machine_of, model_of, too_many
from hosttune.journal.state import load_text
from hosttune.model.configuration import FACT_KINDS, Fact, sane, sort_key
from hosttune.model.declared import Declared, DeclaredHosts, Range, Wanted, wanted_text
from hosttune.model.fleet import Spread
from hosttune.model.validation import CheckResult, Machine, Outcome, Validation
from hosttune.model.values import grouped

CHECK = "declared-baseline"
_MOST_WORDS = 3  # results in the reason of a host
_MOST_VALUE = 200  # characters of a value in it


class _JudgedPart(msgspec.Struct):
    """The part of a validation that is judged; the rest is skipped and not decoded."""

    host: str | None = None
    machine: Machine | None = None
    configuration: tuple[Fact, ...] | None = None


_DECODER = msgspec.json.Decoder(_JudgedPart)


def read_declared(path: str) -> Declared:
    """Read a declared baseline. Raises BadInput with the key that is wrong."""
    return Declared.from_yaml(load_text(path, what="a declared baseline (YAML or JSON)", size="intent"), where=path)


def judged(declared: Declared, hardware: HostHardware | None, facts: Sequence[Fact] | None) -> tuple[CheckResult, ...]:
    """Return a result for each declared fact of the host and of each of its devices; at least one.

    `facts` None: the host's validation has none.
    """
    if facts is None or hardware is None or too_many(facts):
        why = "its validation has no configuration facts (or too many)"
        return (_unknown(CHECK, "host", "a validation with configuration facts", why),)
    model = model_of(hardware)
    wanted = next(
        (
            declared_hosts
            for declared_hosts in declared.hosts
            if (declared_hosts.product, declared_hosts.gpus) == (model.product, model.gpus)
        ),
        None,
    )
    if wanted is None:
        return (_unknown(CHECK, "host", "a machine model of the baseline", _model_words(model)),)
    return tuple(_results(wanted, facts, hardware))


def _results(wanted: DeclaredHosts, facts: Sequence[Fact], hardware: HostHardware) -> Iterator[CheckResult]:
    by_name = grouped((fact.name, fact) for fact in facts)
    for name, value in wanted.facts.items():
        yield _result(name, "host", value, by_name.get(name, ()))
    for devices in wanted.devices:
        there = tuple(_devices(devices.kind, facts, hardware))
        for name, value in devices.facts.items():
            given: dict[str, list[Fact]] = {address: [] for address in there}
            for fact in by_name.get(name, ()):
                if fact.kind in (None, devices.kind):  # a device of unknown ids may be of this kind
                    for address in fact.subjects:
                        given.setdefault(address[:LONGEST_NAME], []).append(fact)
            for address, of_device in sorted(given.items()):
                yield _result(name, address, value, of_device)
            if not given:
                yield _unknown(f"declared-{name}", devices.kind, wanted_text(value), "no device of this kind was seen")


def _devices(kind: str, facts: Sequence[Fact], hardware: HostHardware) -> Iterator[str]:
    """Yield the addresses of the devices of a kind that the host has, whichever of their facts it gives."""
    kinds = {address[:LONGEST_NAME]: fact.kind for fact in facts if fact.kind is not None for address in fact.subjects}
    yield from (address for address, own in kinds.items() if own == kind)
    yield from (
        address
        for address, (_, ids) in hardware.hardware.gpus.items()
        if address not in kinds and ids is not None and kind.startswith(f"{ids} ")
    )


def _result(name: str, subject: str, wanted: Wanted, facts: Sequence[Fact]) -> CheckResult:
    check, expected = f"declared-{name}", wanted_text(wanted)
    values = {sane(fact.value) for fact in facts}
    value = next(iter(values)) if len(values) == 1 else None
    source = facts[0].source if facts else None
    if value is None:
        return _unknown(check, subject, expected, "the host gives several values" if len(values) > 1 else "not known")
    if FACT_KINDS[name].of != "host" and any(fact.kind is None for fact in facts):
        return _unknown(check, subject, expected, f"{value[:_MOST_VALUE]}, of a device of unknown kind")
    outcome = _outcome(name, value, wanted)
    if outcome == "unknown":
        return _unknown(check, subject, expected, f"{value[:_MOST_VALUE]}, which has no order")
    return CheckResult(
        check=check, subject=subject, outcome=outcome, expected=expected, actual=value, source=source,
        hint=None if outcome == "pass" else "bring the host to the declared value, or declare this one too",
    )  # fmt: skip


def _outcome(name: str, value: str, wanted: Wanted) -> Outcome:
    if not isinstance(wanted, Range):
        return "pass" if value in ((wanted,) if isinstance(wanted, str) else wanted) else "fail"
    key = sort_key(name, value)
    low, high = (sort_key(name, bound) if bound is not None else None for bound in (wanted.min, wanted.max))
    if key is None:
        return "unknown"
    return "pass" if (low is None or low <= key) and (high is None or key <= high) else "fail"


def _unknown(check: str, subject: str, expected: str, why: str) -> CheckResult:
    hint = "run hosttune fleet validate with this version, and see the host's own validation"
    return CheckResult(check=check, subject=subject, outcome="unknown", expected=expected, actual=why, hint=hint)


# --- one host of a run ---------------------------------------------------------------------------------------


def of_validation(declared: Declared, validation: Validation) -> tuple[CheckResult, ...]:
    """Return the results of a host's validation."""
    return judged(declared, machine_of(validation), validation.configuration)


def of_host(declared: Declared, results: str, host: str, phase: str) -> tuple[CheckResult, ...]:
    """Return the results of a host by the file of its validation; a file that cannot be read is unknown."""
    path = answer_path(results, host, phase)
    try:
        data = read_file(path)
        part = _DECODER.decode(data) if data is not None else _JudgedPart()
    except (BadInput, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        part = _JudgedPart()
    return judged(declared, machine_of(Validation(host=part.host, machine=part.machine)), part.configuration)


def kept_to(status: HostStatus, declared: Declared, results: str, phase: str) -> HostStatus:
    """Return the status of a good host: no longer good if it differs from the baseline, or if that is unknown."""
    bad = [result for result in of_host(declared, results, status.host, phase) if result.outcome != "pass"]
    if not bad:
        return status
    failed = [result for result in bad if result.outcome == "fail"]
    return HostStatus(
        status.host,
        "no" if failed else "unknown",
        phase,
        difference_text(failed or bad),
        status.verdict,
        status.changed,
    )


def difference_text(bad: Sequence[CheckResult]) -> str:
    """Return in one line how a host differs from the declared baseline, or what of it is unknown."""
    told = [
        f"{result.check.removeprefix('declared-')}{'' if result.subject == 'host' else f' {result.subject}'} is "
        f"{(result.actual or 'unknown')[:_MOST_VALUE]}, declared {(result.expected or '')[:_MOST_VALUE]}"
        for result in bad[:_MOST_WORDS]
    ]
    more = f"; and {len(bad) - _MOST_WORDS} more" if len(bad) > _MOST_WORDS else ""
    return f"not as the declared baseline: {'; '.join(told)}{more}"


# --- writing one ---------------------------------------------------------------------------------------------


def baseline_text(spreads: Iterable[Spread], *, source: str) -> str:
    """Return a declared baseline in YAML: the value that all or most have, of each fact of each machine model.

    A fact without a majority is a comment with the reason. `source`: what the values are from, for a comment. Raises
    BadInput if there is no value to declare.
    """
    by_model: Mapping[MachineModel, list[Spread]] = grouped(
        (MachineModel(spread.product, spread.gpus), spread) for spread in spreads
    )
    blocks = [
        f"# Declared baseline of a fleet, for --against and --baseline of hosttune fleet ({_comment(source)}).",
        "# A value, a list of values, or {min: …, max: …} where versions have an order. Remove what may differ.",
        "version: 1",
        "hosts:",
    ]
    entries = 0
    for model, facts in sorted(by_model.items(), key=lambda item: (item[0].product or "", item[0].gpus)):
        lines = list(_model_lines(model, facts))
        blocks += lines
        entries += any(not line.lstrip().startswith("#") for line in lines)
    if not entries:
        hint = "hosttune fleet validate first, with this version on all hosts"
        raise BadInput("no host gives a fact that could be declared", where="results", hint=hint)
    return "\n".join(blocks) + "\n"


def _model_words(model: MachineModel) -> str:
    return f"{model.product or 'machine model unknown'}, {', '.join(model.gpus) or 'no GPU'}"


def _model_lines(model: MachineModel, spreads: Sequence[Spread]) -> Iterator[str]:
    values = {(spread.fact, spread.kind): _to_declare(spread) for spread in spreads}
    if model.product is None or not any(value for value in values.values()):
        yield f"  # nothing to declare: {_comment(_model_words(model))}"
        return
    order = {name: place for place, name in enumerate(FACT_KINDS)}
    ordered = sorted(spreads, key=lambda spread: (spread.kind or "", order[spread.fact]))
    names = ", ".join(ordered[0].gpu_models) or "no GPU"
    yield f"  - product: {_quoted(model.product)}  # {_comment(names)}, {ordered[0].hosts} hosts"
    yield f"    gpus: [{', '.join(map(_quoted, model.gpus))}]"
    of_host = [spread for spread in ordered if FACT_KINDS[spread.fact].of == "host"]
    yield "    facts:" if any(map(_to_declare, of_host)) else "    facts: {}"
    for spread in of_host:
        yield _line(spread, 6)
    kinds = {spread.kind for spread in ordered if spread.kind is not None and _to_declare(spread)}
    yield "    devices:" if kinds else "    devices: []"
    for kind in sorted(kinds):
        alike = [spread for spread in ordered if spread.kind == kind]
        yield f"      - kind: {_quoted(kind)}  # {_comment(alike[0].model or 'no name')}"
        yield "        facts:"
        for spread in alike:
            yield _line(spread, 10)


def _to_declare(spread: Spread) -> str | None:
    """Return the value of the majority, or the only one; None if there is none, or if half of the hosts lack it."""
    if 2 * len(spread.without) >= spread.hosts:
        return None  # declared devices must be on every host of the model
    if spread.majority is not None:
        return spread.majority
    return spread.groups[0].value if spread.state == "single" else None


def _line(spread: Spread, indent: int) -> str:
    value = _to_declare(spread)
    if value is None:
        return f"{' ' * indent}# {spread.fact}: {_why_not(spread)}"
    size = next(group.subjects for group in spread.groups if group.value == value)
    seen = size + sum(len(holder.subjects) or 1 for holder in spread.unknown)
    seen += sum(group.subjects for group in spread.groups if group.value != value)
    note = "" if size == seen else f"  # {size} of {seen}"
    return f"{' ' * indent}{spread.fact}: {_quoted(value)}{note}"


def _why_not(spread: Spread) -> str:
    """Return why a fact is not declared."""
    if not spread.groups:
        return "not known"
    if 2 * len(spread.without) >= spread.hosts:
        return f"{len(spread.without)} of {spread.hosts} hosts have no such device"
    return "no majority: " + ", ".join(f"{group.subjects} x {_comment(group.value)}" for group in spread.groups[:5])


def _quoted(text: str) -> str:
    """Return a double-quoted scalar: printable text, in which JSON and YAML have the same escapes (YAML 1.2, 5.7)."""
    return json.dumps(text, ensure_ascii=False)


def _comment(text: str) -> str:
    return (sane(text[:_MOST_VALUE]) or "?").replace("#", "")
