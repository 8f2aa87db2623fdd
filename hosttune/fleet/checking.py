"""`hosttune fleet baseline` as two calls: a declared baseline from a run's answers, and a run checked against one."""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.errors import BadInput
from hosttune.fleet.answers import read_answer
from hosttune.fleet.declared import CHECK, baseline_text, of_validation, read_declared
from hosttune.fleet.gate import COURSE, WAVES
from hosttune.fleet.hardware import machine_of
from hosttune.fleet.overview import judge_of
from hosttune.fleet.record import RecordedRun
from hosttune.fleet.results import answer_path, read_file
from hosttune.fleet.run import read_past
from hosttune.fleet.uniformity import Gathering
from hosttune.model.hints import did_you_mean
from hosttune.model.validation import CheckResult, Validation, Verdict, verdict_of
from hosttune.model.values import Value, close_lists, to_json

CHECKED_SCHEMA = "hosttune.declared-check/v1"


class CheckedHost(Value, frozen=True, kw_only=True):
    """A host against the declared baseline. `results`: those that are not pass. `passed`: how many are."""

    host: str
    verdict: Verdict
    passed: int = 0
    results: tuple[CheckResult, ...] = ()

    def __post_init__(self) -> None:
        close_lists(self)


class Checked(Value, frozen=True, kw_only=True):
    """A run against the declared baseline: fail if any host differs, else unknown if anything is, else pass."""

    schema: str = CHECKED_SCHEMA
    run: str
    verdict: Verdict
    hosts: tuple[CheckedHost, ...] = ()

    def __post_init__(self) -> None:
        close_lists(self)

    @property
    def headline(self) -> str:
        """How many hosts are as declared, differ, or are unknown."""
        counts = {word: sum(one.verdict == word for one in self.hosts) for word in ("pass", "fail", "unknown")}
        found = f"{counts['pass']} of {len(self.hosts)} hosts are as declared"
        return f"{found}; {counts['fail']} differ, {counts['unknown']} are unknown (run {self.run})"

    @property
    def exit_code(self) -> int:
        """Return 0 if every host is proven to be as declared, else 1."""
        return int(self.verdict != "pass")

    def to_json(self) -> str:
        """Return the document as indented JSON."""
        return to_json(self)


def check_run(path: str, results: str, run: str | None) -> Checked:
    """Check the validations of a run (None: the last) against a declared baseline. Raises BadInput."""
    declared = read_declared(path)
    past = _past(results, run)
    hosts: list[CheckedHost] = []
    for host, found in _validations(results, past):
        made = of_validation(declared, found) if isinstance(found, Validation) else (_lost(found),)
        bad = tuple(one for one in made if one.outcome != "pass")
        hosts.append(CheckedHost(host=host, verdict=verdict_of(made), passed=len(made) - len(bad), results=bad))
    verdict = verdict_of([result for one in hosts for result in one.results]) if hosts else "unknown"
    return Checked(run=past.run, verdict=verdict, hosts=tuple(hosts))


def write_baseline(results: str, run: str | None, host: str | None) -> str:
    """Return a declared baseline in YAML with the values of most hosts of a run, or of one host. Raises BadInput."""
    past = _past(results, run)
    facts = Gathering()
    for name, found in _validations(results, past, host):
        if isinstance(found, Validation):
            facts.add(name, machine_of(found), found.configuration)
        elif host is not None:
            raise BadInput(f"{host!r} has no validation in this run: {found}", where=results, hint="name another host")
    return baseline_text(facts.spreads(), source=f"host {host}, run {past.run}" if host else f"run {past.run}")


def _past(results: str, run: str | None) -> RecordedRun:
    past = read_past(results, None, run)
    if past is None:
        what = f"no run {run}" if run is not None else "no run"
        raise BadInput(f"{what} in its record", where=results, hint="name the results folder of a run with --results")
    if past.began.verb == COURSE or past.began.check or judge_of(past.began.verb) is None:
        verb = f"{past.began.verb} --check" if past.began.check and past.began.verb in WAVES else past.began.verb
        hint = "name a run of fleet validate or apply with --run"
        raise BadInput(f"run {past.run} is of {verb}: it validated no host", where=results, hint=hint)
    return past


def _validations(results: str, past: RecordedRun, only: str | None = None) -> Iterator[tuple[str, Validation | str]]:
    """Yield (host, its validation of this run, or why there is none), one file at a time. Raises BadInput."""
    hosts = [host for number in sorted(past.members) for host in past.members[number]]
    if only is not None and only not in hosts:
        raise BadInput(
            f"no host {only!r} in run {past.run}",
            where="--host",
            hint=did_you_mean(only, hosts, "name one of its hosts"),
        )
    phase = judge_of(past.began.verb) or "validate"
    for host in hosts if only is None else [only]:
        answer = read_answer(results, host, phase, past.run)
        if answer.outcome not in ("ok", "no"):
            yield host, answer.why or answer.outcome
            continue
        path = answer_path(results, host, phase)
        try:
            data = read_file(path)
            found: Validation | str = Validation.from_json(data, where=path) if data is not None else "no answer"
        except BadInput as error:
            found = error.what
        yield host, found


def _lost(why: str) -> CheckResult:
    return CheckResult(
        check=CHECK, subject="host", outcome="unknown", expected="a validation of this run", actual=why[:600],
        hint="run hosttune fleet validate again with --retry",
    )  # fmt: skip
