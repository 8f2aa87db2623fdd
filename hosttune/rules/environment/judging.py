"""Settings → verdicts, by the rules of `rules.toml`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec

from hosttune.assets import read_table
from hosttune.model.environment import EnvironmentLine, JudgedEnvironment, Verdict
from hosttune.model.host import Host
from hosttune.model.values import MAX_SIZE, Value
from hosttune.rules.environment.onhost import FACTS, has_maker
from hosttune.rules.environment.reading import Setting, settings

LONGEST = 4096  # of a value; lists of 64 devices have some 1,000 characters
_FORM = "NVIDIA/nccl, src/misc/param.cc, setEnvFile"
# Apptainer sets NAME inside of its container for APPTAINERENV_NAME outside (apptainer.org, user guide, Environment).
_CONTAINER = re.compile(r"^(?:APPTAINER|SINGULARITY)ENV_")
_COMPUTED = re.compile(r"\$|`")
_NUMBER = re.compile(r"\s*([+-]?)(?:0[xX]([0-9a-fA-F]+)|(0[0-7]*)|([1-9][0-9]*))")


class Case(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
        if self.is_ is not None and value.lower() not in {one.lower() for one in self.is_}:
            return False
        if self.like is not None and not re.fullmatch(self.like, value, re.IGNORECASE):
            return False
        if self.maker and (host is None or not has_maker(host, self.maker)):
            return False
        return self.host is None or (host is not None and FACTS[self.host](host, value) is True)

    @property
    def any_value(self) -> bool:
        """Whether the case is about every value, on every host."""
        return self.is_ is None and self.like is None and self.host is None and not self.maker


class Rule(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What some variables do, by their value."""

    names: tuple[str, ...]
    source: str
    cases: tuple[Case, ...]
    maker: tuple[str, ...] = ()
    number: bool = False


class _Table(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sources: dict[str, str]
    rule: tuple[Rule, ...]


@cache
def _table() -> _Table:
    return msgspec.convert(read_table(Path(__file__).with_name("rules.toml")), _Table)


@cache
def rules() -> Mapping[str, Rule]:
    """Return the rule of each variable by its name. A variable that two rules name is a fault of the table."""
    found: dict[str, Rule] = {}
    for rule in _table().rule:
        for name in rule.names:
            if name in found:
                raise ValueError(f"rules.toml: two rules name {name}")
            found[name] = rule
    return found


def source_text(key: str) -> str:
    """Return a source of the table in words. Raises KeyError."""
    return _table().sources[key]


def judge(text: str, *, where: str, host: Host | None = None) -> JudgedEnvironment:
    """Judge an environment line by line; `host` sharpens verdicts. Raises BadInput for what is no environment."""
    found = settings(text, where)
    return JudgedEnvironment(lines=tuple(_judged(one, host) for one in found))


def _judged(setting: Setting, host: Host | None) -> EnvironmentLine:
    verdict, why, source = _verdict(setting, host)
    name, value = setting.name, setting.value
    return EnvironmentLine(line=setting.line, name=name, value=value, verdict=verdict, why=why, source=source)


def _verdict(setting: Setting, host: Host | None) -> tuple[Verdict, str, str | None]:
    if setting.name is None:
        return "unknown", "this line was not understood: it sets no variable in a form that is known", None
    if setting.fault is not None:
        return "harmful", setting.fault, _FORM
    if setting.behind is not None:
        return "useless", f"line {setting.behind} sets it before, and the first one counts", _FORM
    if setting.doubt is not None:
        return "unknown", setting.doubt, None
    rule = rules().get(_CONTAINER.sub("", setting.name, count=1))
    if rule is None:
        return "unknown", "no source is known that says what it does", None
    source = source_text(rule.source)
    if setting.value is None:
        return "unknown", "the line gives no value: what it is set to elsewhere is not known", source
    if len(setting.value) > LONGEST:
        return "unknown", f"the value has more than {LONGEST:,} characters", source
    if rule.maker and host is not None and has_maker(host, rule.maker) is False:
        return "useless", f"the host has no GPU whose libraries read it ({', '.join(rule.maker)})", source
    if _COMPUTED.search(setting.value) and not rule.cases[0].any_value:
        return "unknown", "the value is computed when the line runs: it depends on it", source
    if rule.number and not setting.value and rule.source.startswith("nccl"):
        return "useless", "an empty value counts as none: the default holds (src/misc/param.cc, ncclLoadParam)", source
    value = _as_number(setting.value) if rule.number else setting.value.strip()
    case = next((one for one in rule.cases if one.fits(value, host)), None)
    if case is None:
        return "unknown", f"the source does not say what {setting.value!r} does", source
    return case.verdict, case.why, source_text(case.source) if case.source else source


def _as_number(value: str) -> str:
    """Return the number that strtoll(3) with base 0 reads, which is 0 for a word; an empty value stays empty.

    Source: NVIDIA/nccl, src/misc/param.cc, ncclLoadParam.
    """
    if not value:
        return ""
    found = _NUMBER.match(value)
    if found is None:
        return "0"
    sign, hexadecimal, octal, decimal = found.groups()
    number = int(hexadecimal, 16) if hexadecimal else int(octal, 8) if octal else int(decimal)
    return f"{'-' if sign == '-' and number else ''}{min(number, MAX_SIZE)}"  # strtoll ends there
