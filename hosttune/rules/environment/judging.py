"""Settings → verdicts, by the rules of `rules.toml`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path

import msgspec

from hosttune.assets import read_table
from hosttune.model.host import Host
from hosttune.model.lint import OUTCOME_OF, VERDICT_OF, EnvironmentLine, JudgedEnvironment, Verdict
from hosttune.model.values import MAX_SIZE, Value
from hosttune.rules.engine import Finding, Rule
from hosttune.rules.environment.onhost import FACTS, has_maker
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
