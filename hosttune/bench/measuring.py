"""Run benchmarks: choose the backends, run them in order, and collect their results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from hosttune.bench.backend import Ask, Backend, BackendCommand, run
from hosttune.bench.baselines import Standard, pair_links, with_fleet
from hosttune.bench.gpu_backends import GPU_BACKENDS, GPU_FIGURES
from hosttune.bench.gpu_jobs import BETWEEN
from hosttune.bench.guard import Chosen, choose, running
from hosttune.bench.host_backends import HOST_BACKENDS
from hosttune.bench.judge import JudgingContext, RatedPort, judge, loaded_links, missing
from hosttune.bench.modelled import ModelOf, no_model
from hosttune.bench.parse.answer import Lost, NotUnderstood, ParsedOutput, worst_of_each
from hosttune.errors import CommandFailed, Refused
from hosttune.machine.system import System
from hosttune.model.host import Host, Link
from hosttune.model.validation import CheckResult, Outcome, Sample, Validation

_FIND = "import sys, importlib.util as u; print(*(n for n in sys.argv[1:] if u.find_spec(n)))"
_BURN_SECONDS = 300.0
_GEN2, _GEN5 = 5.0, 32.0  # GT/s


class MeasuredRuns(msgspec.Struct, frozen=True):
    """Results, all runs in order, the software versions of the measurement, and the links of GPUs under load."""

    results: tuple[CheckResult, ...]
    samples: tuple[Sample, ...]
    facts: Mapping[str, str] = msgspec.field(default_factory=dict)
    links: Mapping[str, tuple[float, int]] = msgspec.field(default_factory=dict)


def measure(
    system: System,
    host: Host,
    level: int,
    *,
    seconds: float | None = None,
    scratch_path: str | None = None,
    peers: Iterable[str] | None = None,
    say: Callable[[str], None] = lambda text: None,
    history: tuple[Validation, ...] = (),
    fleet: str | None = None,
    model_of: ModelOf = lambda host, gpus, standard: no_model,
) -> MeasuredRuns:
    """Measure this machine at a level (1 within a minute, 2 in full, 3 with `seconds` of burn-in).

    Changes no setting. `history`: earlier validations of this host, oldest first. `fleet`: the text of a TOML file with
    floors in addition to the shipped ones. `model_of`: what a machine of this shape gives. Raises Refused for a
    captured host and for a GPU in use. Raises BadInput for an invalid scratch path, peer or floor.
    """
    standard = with_fleet(fleet)
    if system.captured:
        raise Refused("a captured host cannot be measured", where=system.origin, hint="run it on the host itself")
    chosen = choose(system, host)
    names = running(host)
    ask = Ask(
        host,
        level,
        gpus=chosen.gpus,
        seconds=seconds if seconds is not None else _BURN_SECONDS,
        scratch=scratch_path,
        peers=tuple(peers or ()),
        quiet=f"guests run here ({', '.join(names)}): it would slow them" if names else None,
        parts=chosen.parts,
        **_of_maker(system, chosen),
    )
    plans, skips = _planned(system, ask)
    answers = []
    for number, (backend, command) in enumerate(plans, 1):
        most = f"at most {command.times * command.timeout:.0f} s"
        say(f"[{number}/{len(plans)}] {backend.name}: {', '.join(command.metrics)} ({command.subject}), {most}")
        answers.append(_answer(system, backend, command))
    samples = tuple(sample for answer in answers for sample in answer.samples)
    figures = judge(samples, _judging_context(host, chosen, history, standard, model_of))
    results = (*_results(chosen, figures, answers), *_left_out(chosen), *_not_taken(chosen, plans), *skips)
    facts = {name: value for answer in answers for name, value in answer.facts.items()}
    return MeasuredRuns(worst_of_each(results), samples, {**_versions(host), **facts}, loaded_links(samples))


def _results(chosen: Chosen, figures: Iterable[CheckResult], answers: Sequence[ParsedOutput]) -> Iterator[CheckResult]:
    """Yield the judged figures, what is missing, and verdicts of the tools, each with a note if it is unproven."""
    lost = missing(lost for answer in answers for lost in answer.lost)
    for row in (*figures, *lost, *(result for answer in answers for result in answer.results)):
        yield _with_unproven_note(row, chosen)


def _of_maker(system: System, chosen: Chosen) -> dict[str, Any]:
    """Return the fields of the request that depend on the GPUs' maker; none without GPUs that can be measured."""
    bench = chosen.bench
    if bench is None:
        return {}
    located = system.run((sys.executable, "-P", "-c", _FIND, *bench.libraries), timeout=30).split()
    return {
        "lacking": tuple(name for name in bench.libraries if name not in located),
        "backends": bench.backends,
        "watch": bench.watch,
    }


def _judging_context(
    host: Host, chosen: Chosen, history: tuple[Validation, ...], standard: Standard, model_of: ModelOf
) -> JudgingContext:
    """Return the data that figures are compared with."""
    gpus = [gpu.address for gpu in chosen.gpus]
    links, model = pair_links(host, gpus), model_of(host, gpus, standard)
    kind_of = {row.address: row.ids for row in host.pci if row.ids}
    of_gpus = {gpu.address: kind_of[gpu.address] for gpu in host.index.accelerators if gpu.address in kind_of}
    kinds = of_gpus | {nic.rdma: kind_of[nic.address] for nic in host.nics if nic.rdma and nic.address in kind_of}
    pieces = {part.subject: kinds[part.address] for part in chosen.parts if not part.whole and part.address in kinds}
    return JudgingContext(standard, kinds, len(gpus), history, links, _rdma_ports(host), pieces, model)


def _planned(system: System, ask: Ask) -> tuple[list[tuple[Backend, BackendCommand]], list[CheckResult]]:
    """Return (the commands of the first available backend of each group, a result for each group without a backend)."""
    backends = [backend for backend in (*GPU_BACKENDS, *HOST_BACKENDS) if ask.level in backend.levels]
    backends = [
        backend
        for backend in backends
        if backend not in GPU_BACKENDS or (backend.name in ask.backends and bool(ask.gpus or ask.parts))
    ]
    done: set[str] = set()
    reasons: dict[str, list[str]] = {}
    plans: list[tuple[Backend, BackendCommand]] = []
    for backend in backends:
        groups = backend.covers - done
        if not groups:
            continue
        reason = backend.available(system, ask)
        if reason is None:
            plans += [(backend, command) for command in backend.commands(ask, groups)]
            done |= groups
            continue
        for group in groups:
            reasons.setdefault(group, []).append(f"{backend.name}: {reason}")
    return plans, [_without_tool(group, why, ask) for group, why in sorted(reasons.items()) if group not in done]


def _without_tool(group: str, why: Iterable[str], ask: Ask) -> CheckResult:
    """Return the result of a group that no installed tool measures.

    The figures of GPUs are what a level is asked for: without a tool for them they are unknown. The other tools look at
    what a level measures besides: without one, it is skipped.
    """
    reason = "; ".join(why)
    if group not in GPU_FIGURES:
        return CheckResult(check=f"bench-{group}", subject="host", outcome="skip", actual=reason)
    if group in BETWEEN and len(ask.gpus) < 2:
        actual = "between GPUs: fewer than two can be loaded as a whole"
        return CheckResult(check=f"bench-{group}", subject="host", outcome="skip", actual=actual)
    hint = "install one of these tools on this machine (docs/benchmarks.md); --level 0 measures nothing and needs none"
    return CheckResult(check=f"bench-{group}", subject="host", outcome="unknown", actual=reason, hint=hint)


def _answer(system: System, backend: Backend, command: BackendCommand) -> ParsedOutput:
    """Return the figures of a command. If it fails, its figures are lost, with the reason."""
    try:
        answer = run(system, command)
    except (CommandFailed, NotUnderstood) as error:
        why = f"{backend.name}: {error.what}"
        if isinstance(error, CommandFailed) and error.output.strip():
            why += f": {error.output.strip().splitlines()[-1][:200]}"
        return ParsedOutput(lost=tuple(Lost(metric, command.subject, why) for metric in command.metrics))
    silent = tuple(metric for metric in command.metrics if not _mentions_metric(answer, metric))
    return replace(
        answer,
        lost=(*answer.lost, *(Lost(name, command.subject, f"{backend.name} gave no figure") for name in silent)),
    )


def _mentions_metric(answer: ParsedOutput, metric: str) -> bool:
    """Return whether an answer has anything about a metric: a value, a verdict, or the reason why there is none."""
    names = [*(row.metric for row in answer.samples), *(row.metric for row in answer.lost)]
    names += [row.check.removeprefix("bench-") for row in answer.results]
    return any(name == metric or name.startswith(f"{metric}-") for name in names)


def _left_out(chosen: Chosen) -> list[CheckResult]:
    return [
        *(_not_loaded(gpu.address, "skip", why) for gpu, why in chosen.left_out),
        *(_not_loaded(gpu.address, "unknown", why) for gpu, why in chosen.unknown),
    ]


def _not_loaded(subject: str, outcome: Outcome, why: str) -> CheckResult:
    return CheckResult(check="bench-gpu", subject=subject, outcome=outcome, actual=why)


def _not_taken(chosen: Chosen, plans: list[tuple[Backend, BackendCommand]]) -> Iterator[CheckResult]:
    """Yield a skip for each metric that is not measured for a part; unknown for a part that no backend can measure."""
    measured = {command.subject for _, command in plans}
    for part in chosen.parts:
        if part.subject not in measured:
            yield _not_loaded(part.subject, "unknown", "only PyTorch measures it, and it is not installed")
            continue
        for metric, why in part.without.items():
            yield CheckResult(check=f"bench-{metric}", subject=part.subject, outcome="skip", actual=why)


def _with_unproven_note(row: CheckResult, chosen: Chosen) -> CheckResult:
    """Return the result, with a note if hosttune was never tested on this kind of GPU."""
    doubts = {part.subject: part.unproven for part in chosen.parts if part.unproven}
    if chosen.bench is not None and chosen.bench.unproven:
        doubts |= dict.fromkeys([gpu.address for gpu in chosen.gpus], chosen.bench.unproven)
        doubts |= dict.fromkeys([part.address for part in chosen.parts], chosen.bench.unproven)
        doubts |= {f"{len(chosen.gpus)} GPUs": chosen.bench.unproven, "all GPUs": chosen.bench.unproven}
    doubt = doubts.get(row.subject) or doubts.get(row.subject.partition("->")[0])
    if doubt is None or not row.check.startswith("bench-") or row.check == "bench-gpu":
        return row
    return msgspec.structs.replace(row, actual=f"{row.actual}; {doubt}" if row.actual else doubt)


def _rdma_ports(host: Host) -> dict[str, RatedPort]:
    """Return the RDMA ports by name: their rate, and the rate of the NIC's slot.

    The overhead of the link's encoding is subtracted from the slot's rate, but not the overhead of packets.
    """
    functions = host.index.pci
    slots = {nic.rdma: (nic, functions.get(nic.physfn or nic.address)) for nic in host.nics if nic.rdma}
    return {name: RatedPort(nic.rate_gbps, _carries(at.link if at else None)) for name, (nic, at) in slots.items()}


def _carries(link: Link | None) -> float | None:
    """Return the rate of a PCIe link in Gb/s, one direction; None if unknown.

    The encoding is 8b/10b up to 5 GT/s and 128b/130b up to 32 GT/s. Faster links (FLITs) are unknown.
    """
    if link is None or link.speed_gts is None or link.width is None or link.speed_gts > _GEN5:
        return None
    return link.speed_gts * link.width * (0.8 if link.speed_gts <= _GEN2 else 128 / 130)


def _versions(host: Host) -> dict[str, str]:
    versions = {"kernel": host.kernel} if host.kernel else {}
    drivers = sorted({gpu.driver_version for gpu in host.gpus if gpu.driver_version})
    return {**versions, **({"driver": ", ".join(drivers)} if drivers else {})}
