"""Settings → verdicts, by the rules of `rules.toml`. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path

import msgspec

from hosttune.assets import read_table
from hosttune.model.host import Host
from hosttune.model.lint import OUTCOME_OF, VERDICT_OF, EnvironmentLine, JudgedEnvironment, Verdict
from hosttune.model.values import MAX_SIZE, Value
from hosttune.rules.engine import Finding, Rule
from hosttune.rules.environment.reading import LONGEST_LINE, VariableSetting, settings

LONGEST = 4096  # of a value; lists of 64 devices have some 1,000 characters
_QUOTED = 400  # characters of a line that was not understood
_FORM = "NVIDIA/nccl, src/misc/param.cc, setEnvFile"
# Apptainer sets NAME inside of its container for APPTAINERENV_NAME outside (apptainer.org, user guide, Environment).
_CONTAINER = re.compile(r"^(?:APPTAINER|SINGULARITY)ENV_")
_DEFAULTED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*):?-([^${}`]*)\}")  # A=${A:-b}: b where A is not set before
_COMPUTED = re.compile(r"\$|`")
_NUMBER = re.compile(r"\s*([+-]?)(?:0[xX]([0-9a-fA-F]+)|(0[0-7]*)|([1-9][0-9]*))")


class VariableCase(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One case of a rule: `is_` and `like` choose values, `host` and `maker` facts of the host; see rules.toml."""

    verdict: Verdict
    why: str
    is_: tuple[str, ...] | None = msgspec.field(default=None, name="is")
    like: str | None = None
    host: str | None = None
    maker: tuple[str, ...] = ()
    source: str | None = None

    def fits(self, value: str, host: Host | None) -> bool:
        """Return whether this case is about the value on the host; a fact that is not known does not fit."""
        if self.is_ is not None and value.lower() not in {allowed.lower() for allowed in self.is_}:
            return False
        if self.like is not None and not re.fullmatch(self.like, value, re.IGNORECASE):
            return False
        if self.maker and (host is None or not has_maker(host, self.maker)):
            return False
        return self.host is None or (host is not None and FACTS[self.host](host, value) is True)

    @property
    def condition(self) -> str:
        """Which values, on which hosts, in words."""
        value = ", ".join(self.is_ or ()) or (f"like {self.like}" if self.like else "any other")
        host = f", with a host: {self.host}" if self.host else ""
        return value + host + (f", on a host with {', '.join(self.maker)}" if self.maker and not host else "")

    @property
    def any_value(self) -> bool:
        """Whether the case is about every value, on every host."""
        return self.is_ is None and self.like is None and self.host is None and not self.maker


class VariableRule(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What some variables do, by their value: a rule as the table has it."""

    names: tuple[str, ...]
    source: str
    cases: tuple[VariableCase, ...]
    maker: tuple[str, ...] = ()
    number: bool = False
    setting: str | None = None


class _RuleFile(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sources: dict[str, str]
    rule: tuple[VariableRule, ...]
    tools: dict[str, dict[str, str]]


@cache
def _table() -> _RuleFile:
    return msgspec.convert(read_table(Path(__file__).with_name("rules.toml")), _RuleFile)


class VariableLine(msgspec.Struct, frozen=True):
    """A variable that a line sets, and the host if it is known."""

    setting: VariableSetting
    host: Host | None


class EnvironmentRule(Rule[VariableLine], frozen=True, kw_only=True):
    """A rule about variables, made from its row of the table."""

    row: VariableRule


@cache
def rules() -> Mapping[str, EnvironmentRule]:
    """Return the rule of each variable by its name. A variable that two rules name is a fault of the table."""
    by_name: dict[str, EnvironmentRule] = {}
    for row in _table().rule:
        names = ", ".join(row.names)
        rule = EnvironmentRule(
            id=row.names[0],
            title=names,
            about=names,
            source=source_text(row.source),
            row=row,
            judge=partial(_judge, row),
        )
        for name in row.names:
            if name in by_name:
                raise ValueError(f"rules.toml: two rules name {name}")
            by_name[name] = rule
    return by_name


def rule_of(name: str) -> EnvironmentRule | None:
    """Return the rule about a name: the one that has it, else the first with a pattern that fits."""
    if (exact := rules().get(name)) is not None:
        return exact
    return next((rule for pattern, rule in rules().items() if "*" in pattern and fnmatchcase(name, pattern)), None)


def source_text(key: str) -> str:
    """Return a source of the table in words. Raises KeyError."""
    return _table().sources[key]


def judge(text: str, *, where: str, host: Host | None = None) -> JudgedEnvironment:
    """Judge an environment line by line; `host` sharpens verdicts. Raises BadInput for what is no environment."""
    return JudgedEnvironment(lines=tuple(_line(setting, host) for setting in settings(text, where, _table().tools)))


def _line(setting: VariableSetting, host: Host | None) -> EnvironmentLine:
    rule = rule_of(_CONTAINER.sub("", setting.name or "", count=1))
    finding = _unruled(setting)
    if finding is None and rule is None:
        finding = Finding("no source is known that says what it does", outcome="unknown")
    elif finding is None and rule is not None:
        finding = next(rule.findings(VariableLine(setting, host)))
    assert finding is not None
    return EnvironmentLine(
        line=setting.line,
        name=setting.name,
        value=setting.value if setting.name else (setting.value or "")[:_QUOTED],
        verdict=VERDICT_OF[finding.outcome],
        why=finding.text,
        source=finding.source,
        setting=rule.row.setting if rule else None,
    )


def _unruled(setting: VariableSetting) -> Finding | None:
    """Return what the line itself shows, whatever its variable does; None if a rule judges it."""
    if setting.name is None and len(setting.value or "") > LONGEST_LINE:
        return Finding(f"a line of more than {LONGEST_LINE:,} characters is not read", outcome="unknown")
    if setting.name is None:
        return Finding("this line was not understood: it sets no variable in a form that is known", outcome="unknown")
    if setting.fault is not None:
        return Finding(setting.fault, outcome="fail", source=_FORM)
    if setting.behind is not None:
        return Finding(f"line {setting.behind} sets it before, and the first one counts", outcome="warn", source=_FORM)
    if setting.doubt is not None:
        return Finding(setting.doubt, outcome="unknown")
    return None


def _judge(row: VariableRule, line: VariableLine) -> Iterator[Finding]:
    """Yield what a variable with this value does on the host; of a default, what that does."""
    default = _DEFAULTED.fullmatch(line.setting.value or "")
    if default and default[1] == line.setting.name:
        outcome, why, source = _of_value(row, default[2], line.host)
        yield Finding(f"{why}; if it is not set before", outcome=outcome, source=source)
    else:
        outcome, why, source = _of_value(row, line.setting.value, line.host)
        yield Finding(why, outcome=outcome, source=source)


def _of_value(row: VariableRule, given: str | None, host: Host | None) -> tuple[str, str, str]:
    source = source_text(row.source)
    if given is None:
        return "unknown", "the line gives no value: what it is set to elsewhere is not known", source
    if len(given) > LONGEST:
        return "unknown", f"the value has more than {LONGEST:,} characters", source
    if row.maker and host is not None and has_maker(host, row.maker) is False:
        return "warn", f"the host has no GPU whose libraries read it ({', '.join(row.maker)})", source
    if _COMPUTED.search(given) and not row.cases[0].any_value:
        return "unknown", "the value is computed when the line runs: it depends on it", source
    if row.number and not given and row.source.startswith("nccl"):
        return "warn", "an empty value counts as none: the default holds (src/misc/param.cc, ncclLoadParam)", source
    value = _as_number(given) if row.number else given.strip()
    case = next((case for case in row.cases if case.fits(value, host)), None)
    if case is None:
        return "unknown", f"the source does not say what {given!r} does", source
    return OUTCOME_OF[case.verdict], case.why, source_text(case.source) if case.source else source


def _as_number(value: str) -> str:
    """Return the number that strtoll(3) with base 0 reads, which is 0 for a word; an empty value stays empty.

    Source: NVIDIA/nccl, src/misc/param.cc, ncclLoadParam.
    """
    if not value:
        return ""
    match = _NUMBER.match(value)
    if match is None:
        return "0"
    sign, hexadecimal, octal, decimal = match.groups()
    number = int(hexadecimal, 16) if hexadecimal else int(octal, 8) if octal else int(decimal)
    return f"{'-' if sign == '-' and number else ''}{min(number, MAX_SIZE)}"  # strtoll ends there


# --- on a host -------------------------------------------------------------------------------------------------
# Facts of a host that sharpen a verdict: each True, False, or None where the host document does not say. Pure.


def has_maker(host: Host, makers: Iterable[str]) -> bool | None:
    """Return whether the host has a GPU of one of the makers; None if it shows no GPU of a known maker."""
    seen = {gpu.vendor for gpu in host.index.accelerators}
    return bool(seen & set(makers)) if seen else None


def _rdma(host: Host) -> bool | None:
    names = _devices(host)
    return None if names is None else bool(names)


def _devices(host: Host) -> set[str] | None:
    """Return the names of RDMA devices; None if no NIC is known, or one is held for a guest and shows no name."""
    nics = host.nics or ()
    hidden = any(not nic.rdma and not nic.interfaces for nic in nics)
    return {nic.rdma for nic in nics if nic.rdma} if nics and not hidden else None


def _interfaces(host: Host) -> set[str] | None:
    nics = host.nics or ()
    names = {name for nic in nics for name in nic.interfaces}
    return names if names and all(nic.interfaces or nic.rdma for nic in nics) else None


def _no(fact: bool | None) -> bool | None:
    return None if fact is None else not fact


def _names(value: str) -> list[str]:
    return [part.partition(":")[0] for part in value.removeprefix("=").split(",") if part]


def _all_there(host: Host, value: str) -> bool | None:
    there = _devices(host)
    return None if there is None or not _names(value) else set(_names(value)) <= there


def _all_named(host: Host, value: str) -> bool | None:
    """Return whether the names are those of every RDMA device that does not carry the GPUs' own fabric."""
    there = _all_there(host, value)
    bridges = {nic.rdma for nic in host.nics or () if nic.fabric_bridge}
    return there and not (_devices(host) or set()) - bridges - set(_names(value))


def _one_each(host: Host, value: str) -> bool | None:
    """Return whether each name, which is a prefix, fits one RDMA device and no other."""
    there = _devices(host)
    if there is None or value.startswith(("=", "^")) or not _names(value):
        return None
    return all(sum(device.startswith(name) for device in there) == 1 for name in _names(value))


def _ucx_all(host: Host, value: str) -> bool | None:
    devices = _devices(host)
    named = ",".join(name for name in _names(value) if name in (devices or ()))
    return _ucx_there(host, value) and _all_named(host, named)


def _ucx_there(host: Host, value: str) -> bool | None:
    there, interfaces = _devices(host), _interfaces(host)
    if there is None or interfaces is None or not _names(value):
        return None
    return set(_names(value)) <= there | interfaces


def _interface_there(host: Host, value: str) -> bool | None:
    """Return whether each name of the list fits an interface, as NCCL compares: a prefix, with = the whole name.

    None for a list that leaves out. Interfaces that are no PCI function (bonds, bridges) are not in the document: a
    name is missing only if it cannot be one of those, so a name that fits nothing is unknown unless it looks like one
    of the kernel's names of Ethernet or InfiniBand functions.
    """
    there = _interfaces(host)
    if there is None or value.startswith("^"):
        return None
    exact = value.startswith("=")
    wanted = [prefix for prefix in value.removeprefix("=").split(",") if prefix]
    fits = [any(name == prefix if exact else name.startswith(prefix) for name in there) for prefix in wanted]
    if wanted and all(fits):
        return True
    lost = (prefix for prefix, fit in zip(wanted, fits, strict=True) if not fit)
    return False if any(re.match(r"en[opsx]|eth|ib", prefix) for prefix in lost) else None


def _whole_names_there(host: Host, value: str) -> bool | None:
    """As `_interface_there`, of a list that is compared by whole names."""
    return _interface_there(host, f"={value}")


def _cpus(host: Host) -> set[int] | None:
    return {cpu.id for cpu in host.cpus} or None


def _cpu_missing(host: Host, value: str) -> bool | None:
    there = _cpus(host)
    numbers = [int(number) for number in re.findall(r"[0-9]{1,6}", value)]
    return None if there is None or not numbers or ":" in value else max(numbers) > max(there)


def _too_many_threads(host: Host, value: str) -> bool | None:
    there = _cpus(host)
    return int(value) > len(there) if there is not None and re.fullmatch(r"[0-9]{1,6}", value) else None


def _nvswitch(host: Host) -> bool | None:
    """Return whether the GPUs are on NVSwitches; None if nothing says so or says otherwise."""
    if host.nvswitches:
        return True
    gpus = host.index.accelerators
    alone = gpus and all(gpu.peers is not None and not any(peer.links for peer in gpu.peers) for gpu in gpus)
    return False if alone else None


# A fact that rules.toml names: (host, value of the variable) → whether it holds.
FACTS: Mapping[str, Callable[[Host, str], bool | None]] = {
    "rdma": lambda host, value: _rdma(host),
    "no-rdma": lambda host, value: _no(_rdma(host)),
    "one-gpu": lambda host, value: len(host.index.accelerators) == 1 or None,
    "one-nic": lambda host, value: len(host.nics or ()) == 1 or None,
    "no-nvswitch": lambda host, value: _no(_nvswitch(host)),
    "xgmi": lambda host, value: (
        True if any(peer.kind == "xgmi" for gpu in host.index.accelerators for peer in gpu.peers or ()) else None
    ),
    "hca-all": _all_named,
    "hca-there": _all_there,
    "hca-one-each": _one_each,
    "hca-missing": lambda host, value: _no(_all_there(host, value)),
    "ucx-all": _ucx_all,
    "ucx-there": _ucx_there,
    "ucx-missing": lambda host, value: _no(_ucx_there(host, value)),
    "interface-there": _interface_there,
    "interface-missing": lambda host, value: _no(_interface_there(host, value)),
    "whole-interface-there": _whole_names_there,
    "whole-interface-missing": lambda host, value: _no(_whole_names_there(host, value)),
    "cpu-missing": _cpu_missing,
    "too-many-threads": _too_many_threads,
}
