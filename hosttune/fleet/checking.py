"""`hosttune fleet baseline` as two calls: a declared baseline from a run's answers, and a run checked against one."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from hosttune.errors import BadInput
from hosttune.fleet.answers import read_answer
from hosttune.fleet.declared import CHECK, baseline_text, of_validation, read_declared
from hosttune.fleet.gate import COURSE
from hosttune.fleet.inventory import Inventory
from hosttune.fleet.overview import judge_of
from hosttune.fleet.results import answer_path, hosts_in, read_file
from hosttune.fleet.run import read_past
from hosttune.fleet.uniformity import Gathering, machine_of
from hosttune.model.declared import Checked, CheckedHost
from hosttune.model.hints import did_you_mean
from hosttune.model.validation import CheckResult, Validation, verdict_of


class Answers(msgspec.Struct, frozen=True):
    """Which validations are meant: of these hosts, in this phase, of a run (None: the last of each host)."""

    words: str
    hosts: tuple[str, ...]
    phase: str
    run: str | None


def answers_of_run(results: str, run: str | None) -> Answers:
    """Return the validations of a run (None: the last). Raises BadInput for a run that validated no host."""
    past = read_past(results, None, run)
    if past is None:
        what = f"no run {run}" if run is not None else "no run"
        raise BadInput(f"{what} in its record", where=results, hint="name its folder with --results, or give --verb")
    phase = judge_of(past.began.verb) if not past.began.check and past.began.verb != COURSE else None
    if phase is None:
        verb = f"{past.began.verb}{' --check' if past.began.check else ''}"
        hint = "name a run of fleet validate or apply with --run"
        raise BadInput(f"run {past.run} is of {verb}: it validated no host", where=results, hint=hint)
    hosts = tuple(host for number in sorted(past.members) for host in past.members[number])
    return Answers(f"run {past.run}", hosts, phase, past.run)


def answers_of_last(results: str, verb: str, inventory: Inventory | None = None) -> Answers:
    """Return the last validation of each host by a verb, from any source: of the inventory, or with a folder here.

    Raises BadInput if there is no host.
    """
    hosts = inventory.hosts if inventory is not None else hosts_in(results)
    if not hosts:
        raise BadInput("no host has answered", where=results, hint="name the results folder with --results")
    return Answers(f"last answers to {verb}", hosts, judge_of(verb) or verb, None)


def check_answers(path: str, results: str, answers: Answers) -> Checked:
    """Check validations against the declared baseline in a file. Raises BadInput."""
    declared = read_declared(path)
    hosts: list[CheckedHost] = []
    for host, answer in _validations(results, answers):
        made = of_validation(declared, answer) if isinstance(answer, Validation) else (_lost(answer),)
        bad = tuple(result for result in made if result.outcome != "pass")
        hosts.append(CheckedHost(host=host, verdict=verdict_of(made), passed=len(made) - len(bad), results=bad))
    verdict = verdict_of([result for checked_host in hosts for result in checked_host.results]) if hosts else "unknown"
    return Checked(answers=answers.words, verdict=verdict, hosts=tuple(hosts))


def write_baseline(results: str, answers: Answers, host: str | None) -> str:
    """Return a declared baseline in YAML with the values of most hosts, or of one host. Raises BadInput."""
    facts = Gathering()
    if host is not None and host not in answers.hosts:
        hint = did_you_mean(host, answers.hosts, "name one of its hosts")
        raise BadInput(f"no host {host!r} in the {answers.words}", where="--from-host", hint=hint)
    for name, answer in _validations(results, answers if host is None else replace(answers, hosts=(host,))):
        if isinstance(answer, Validation):
            facts.add(name, machine_of(answer), answer.configuration)
        elif host is not None:
            raise BadInput(f"{host!r} has no validation there: {answer}", where=results, hint="name another host")
    return baseline_text(facts.spreads(), source=f"host {host}, {answers.words}" if host else answers.words)


def _validations(results: str, answers: Answers) -> Iterator[tuple[str, Validation | str]]:
    """Yield (host, its validation, or why there is none), one file at a time."""
    for host in answers.hosts:
        answer = read_answer(results, host, answers.phase, answers.run)
        if answer.outcome not in ("ok", "no"):
            yield host, answer.why or answer.outcome
            continue
        path = answer_path(results, host, answers.phase)
        try:
            data = read_file(path)
            validation: Validation | str = Validation.from_json(data, where=path) if data is not None else "no answer"
        except BadInput as error:
            validation = error.what
        yield host, validation


def _lost(why: str) -> CheckResult:
    return CheckResult(
        check=CHECK, subject="host", outcome="unknown", expected="a validation of this run", actual=why[:600],
        hint="run hosttune fleet validate again with --retry",
    )  # fmt: skip
