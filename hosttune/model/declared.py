"""A fleet's declared baseline: the configuration facts that its hosts must have (version 1; YAML or JSON).

It is not one of the baselines of benchmarks (`hosttune.bench.baselines`), which are floors and peaks of figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from hosttune.errors import BadInput
from hosttune.model.configuration import FACT_KINDS, KIND, normal_value, sane, sort_key
from hosttune.model.hints import did_you_mean
from hosttune.model.jsontext import check_version
from hosttune.model.text import below_root, decoding_fault, refuse_unwritable
from hosttune.model.validation import CheckResult, Verdict
from hosttune.model.values import Closed, Document, Part, to_builtins, to_json
from hosttune.model.yamltext import load_yaml

DECLARED_VERSION = 1
CHECKED_SCHEMA = "hosttune.declared-check/v1"


class Range(Part, frozen=True, kw_only=True):
    """Versions from `min` to `max`, both included; only for facts whose versions have an order."""

    min: str | None = None
    max: str | None = None


Wanted = str | tuple[str, ...] | Range  # a value, or one of several, or a range


class DeclaredDevices(Part, frozen=True, kw_only=True):
    """What all devices of a kind must have. `kind`: the ids of vendor and device, then of the subsystem."""

    kind: str
    facts: Mapping[str, Wanted]

    MAPPINGS = ("facts",)


class DeclaredHosts(Part, frozen=True, kw_only=True):
    """What the hosts of a machine model must have. `gpus`: vendor:device of each model of GPU in them."""

    product: str
    gpus: tuple[str, ...] = ()
    facts: Mapping[str, Wanted] = {}
    devices: tuple[DeclaredDevices, ...] = ()

    MAPPINGS = ("facts",)


class Declared(Part, frozen=True, kw_only=True):
    """The whole document: one entry of `hosts` for each machine model."""

    version: int
    hosts: tuple[DeclaredHosts, ...]

    @classmethod
    def from_yaml(cls, text: str | bytes, *, where: str = "declared baseline") -> Declared:
        """Read the document from YAML or JSON. Raises BadInput with the path of the key that is wrong."""
        document = load_yaml(text, where)
        if not isinstance(document, dict):
            raise BadInput("not a mapping", where=where, hint="hosttune fleet baseline writes one")
        check_version(document, DECLARED_VERSION, "a declared baseline (docs/fleet-uniformity.md)", where)
        refuse_unwritable(document, where)
        try:
            declared = msgspec.convert(document, cls)
        except (msgspec.ValidationError, RecursionError) as error:
            raise _refusal(error, where) from error
        _check(declared, where)
        replace = msgspec.structs.replace
        return replace(
            declared,
            hosts=tuple(
                replace(hosts, gpus=tuple(sorted(hosts.gpus)), facts={n: _form(n, v) for n, v in hosts.facts.items()})
                for hosts in declared.hosts
            ),
        )

    def to_json(self) -> str:
        """Return the document as JSON that `from_yaml` can read."""
        return to_json(self)


def _refusal(error: Exception, where: str) -> BadInput:
    problem, path, unknown = decoding_fault(error)
    at = f"{where}: {below_root(path) or path}"
    if unknown is not None:
        hint = "known are version, hosts; product, gpus, facts, devices; kind, facts; min, max"
        return BadInput(f"unknown key {unknown[:80]!r}", where=at, hint=hint)
    return BadInput(problem, where=at, hint="write versions in quotation marks; docs/fleet-uniformity.md has the keys")


def _check(declared: Declared, where: str) -> None:
    """Refuse what no host could be compared with, and a document that declares nothing. Raises BadInput."""
    seen: set[tuple[str, tuple[str, ...]]] = set()
    if not declared.hosts:
        raise BadInput("no hosts", where=f"{where}: hosts", hint="declare at least one machine model")
    for number, hosts in enumerate(declared.hosts):
        at = f"{where}: hosts[{number}]"
        key = (hosts.product, tuple(sorted(hosts.gpus)))
        if sane(hosts.product) != hosts.product:
            raise BadInput("no product name", where=f"{at}.product", hint="write it as hosttune discover prints it")
        if key in seen:
            raise BadInput("a machine model that is there twice", where=at, hint="write one entry for it")
        seen.add(key)
        if not hosts.facts and not any(declared_devices.facts for declared_devices in hosts.devices):
            raise BadInput("declares nothing", where=at, hint="name at least one fact, or leave the entry out")
        _check_facts(hosts.facts, f"{at}.facts", device=False)
        kinds = [declared_devices.kind for declared_devices in hosts.devices]
        for place, declared_devices in enumerate(hosts.devices):
            if not KIND.fullmatch(declared_devices.kind):
                hint = 'write the ids as in "10de:2335 10de:18be": vendor:device, then those of the subsystem'
                raise BadInput(
                    f"{declared_devices.kind[:80]!r} is no kind", where=f"{at}.devices[{place}].kind", hint=hint
                )
            if kinds.index(declared_devices.kind) != place:
                raise BadInput("a kind that is there twice", where=f"{at}.devices[{place}]", hint="write it once")
            _check_facts(declared_devices.facts, f"{at}.devices[{place}].facts", device=True)


def _check_facts(facts: Mapping[str, Wanted], where: str, *, device: bool) -> None:
    known = [name for name, kind in FACT_KINDS.items() if (kind.of != "host") == device]
    for name, wanted in facts.items():
        if name not in known:
            others = "a device" if not device else "the host"
            what = f"{name[:80]!r} is a fact of {others}" if name in FACT_KINDS else f"unknown fact {name[:80]!r}"
            raise BadInput(what, where=where, hint=did_you_mean(name, known, f"known here: {', '.join(known)}"))
        for what in _faults(name, wanted):
            raise BadInput(what, where=f"{where}.{name}", hint="write a value, a list of values, or {min: …, max: …}")


def _faults(name: str, wanted: Wanted) -> Iterator[str]:
    if isinstance(wanted, Range):
        bounds = [bound for bound in (wanted.min, wanted.max) if bound is not None]
        keys = [sort_key(name, bound) for bound in bounds]
        if not bounds:
            yield "a range without min and max"
        elif FACT_KINDS[name].order is None:
            yield f"{name} has no order that a source defines: no range"
        elif None in keys:
            yield f"{bounds[keys.index(None)][:80]!r} cannot be compared with other values of {name}"
        elif len(keys) == 2 and (keys[0] or ()) > (keys[1] or ()):
            yield "min is above max"
        return
    values = (wanted,) if isinstance(wanted, str) else wanted
    if not values:
        yield "an empty list: no host could have it"
    yield from (f"{value[:80]!r} cannot be a value" for value in values if sane(value) != value)


def _form(name: str, wanted: Wanted) -> Wanted:
    if isinstance(wanted, Range):
        return wanted
    return (
        normal_value(name, wanted) if isinstance(wanted, str) else tuple(normal_value(name, value) for value in wanted)
    )


def wanted_text(wanted: Wanted) -> str:
    """Return what is wanted: "2.3.5", "one of 2.3.5, 2.4.1", "570.86 to 570.124", "at least 570.86"."""
    if isinstance(wanted, Range):
        if wanted.min is not None and wanted.max is not None:
            return f"{wanted.min} to {wanted.max}"
        return f"at least {wanted.min}" if wanted.min is not None else f"at most {wanted.max}"
    return wanted if isinstance(wanted, str) else f"one of {', '.join(wanted)}"


def plain(declared: Declared) -> object:
    """Return the document as plain values."""
    return to_builtins(declared)


class CheckedHost(Closed, frozen=True, kw_only=True):
    """A host against the declared baseline. `results`: those that are not pass. `passed`: how many are."""

    host: str
    verdict: Verdict
    passed: int = 0
    results: tuple[CheckResult, ...] = ()


class Checked(Document, frozen=True, kw_only=True):
    """A run against the declared baseline: fail if any host differs, else unknown if anything is, else pass."""

    schema: str = CHECKED_SCHEMA
    answers: str  # which: "run ID", or "last answers to validate"
    verdict: Verdict
    hosts: tuple[CheckedHost, ...] = ()

    @property
    def headline(self) -> str:
        """How many hosts are as declared, differ, or are unknown."""
        counts = {word: sum(host.verdict == word for host in self.hosts) for word in ("pass", "fail", "unknown")}
        alike = f"{counts['pass']} of {len(self.hosts)} hosts are as declared"
        return f"{alike}, different: {counts['fail']}, unknown: {counts['unknown']} ({self.answers})"

    @property
    def exit_code(self) -> int:
        """Return 0 if every host is proven to be as declared, else 1."""
        return int(self.verdict != "pass")
