"""Output of tools, as it is → what is known of a machine. Output of another tool, or cut short, is refused by name.

Parsers of benchmarks are those of `hosttune.bench.parse`; a maker's own tools are read in `hosttune.gpu.logs`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from hosttune.bench.parse import nccl, nvbandwidth, tools
from hosttune.bench.parse.answer import Answer, NotUnderstood
from hosttune.errors import BadInput
from hosttune.gpu.logs import LOGS
from hosttune.model.measured import Measured, Nics, Observations, Setup, Transport
from hosttune.rules.causes.gathering import figures_of, of_gpus
from hosttune.rules.causes.lspci import machine_of
from hosttune.rules.causes.merging import merge

_HINT = "save the whole output of one run; of ib_write_bw with --report_gbits, of fio with --output-format=json"
_FIRST = 1 << 20  # characters in which a tool's sign is looked for


class Log(msgspec.Struct, frozen=True):
    """One tool: its name for messages, a pattern that its output has, and its reader (BadInput, NotUnderstood)."""

    name: str
    sign: str
    read: Callable[[str], Measured]


def read_log(text: str, where: str) -> tuple[Measured, str]:
    """Return what a log shows, and the name of its tool. Raises BadInput, also for output of another tool."""
    found = [log for log in logs() if re.search(log.sign, text[:_FIRST])]
    if not found:
        known = ", ".join(log.name for log in logs())
        raise BadInput("not the output of a tool that hosttune reads", where=where, hint=f"give that of {known}")
    parts: list[Measured] = []
    for log in found:  # NCCL_DEBUG=INFO prints into the output of nccl-tests
        try:
            parts.append(log.read(text))
        except (NotUnderstood, BadInput) as error:
            raise BadInput(f"output of {log.name}: {error.what}", where=where, hint=_HINT) from error
    merged, doubts = merge([(where, part) for part in parts])
    if doubts:
        raise BadInput(doubts[0].why, where=f"{where}: {doubts[0].where}", hint="give the output of one run")
    return merged, " and ".join(log.name for log in found)


def logs() -> tuple[Log, ...]:
    """Return every tool whose output is read."""
    own = (
        Log("nccl-tests", r"(?m)^#[ \t]+Rank[ \t]+[0-9]+[ \t].*device|^#.*\balgbw\b.*\bbusbw\b", _nccl_tests),
        Log("NCCL_DEBUG=INFO", r"(?m)\bNCCL INFO (?!Launch mode)", _nccl_debug),
        Log("ib_write_bw", r"RDMA_Write BW Test", _perftest),
        Log("nvbandwidth", r"(?i)\bnvbandwidth\b", _nvbandwidth),
        Log("fio", r'"fio version"', _fio),
        Log("lspci -vvv", r"(?m)^(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] \S.*\n\s", machine_of),
    )
    makers = tuple(
        Log(one.name, one.sign, one.machine or (lambda text, one=one: of_gpus(one.gpus(text))))  # type: ignore[misc]
        for one in LOGS
    )
    return (*own, *makers)


# --- readers -----------------------------------------------------------------------------------------------------

_RANK = re.compile(r"(?m)^#[ \t]+Rank[ \t]+[0-9]+[ \t].*?\bon\s+(\S+)\s+device\s+[0-9]+\s+\[[^\]]*\]\s+(\S.*?)\s*$")


def _nccl_tests(text: str) -> Measured:
    if not re.search(r"(?m)^#\s*(?:Avg bus bandwidth|Out of bounds values)", text):
        raise NotUnderstood("nccl-tests", "it has no end: the run was cut short, or is not over")
    answers, errors = [], []
    for collective in ("all-reduce", "all-gather"):  # the factor between its two rates tells which one it is
        try:
            answers.append(nccl.parse(text, collective))
        except NotUnderstood as error:
            errors.append(error)
    if not answers:
        raise errors[0]
    ranks = _RANK.findall(text)
    hosts, models = {host for host, _ in ranks}, {model for _, model in ranks}
    many = len(hosts) or None
    setup = Setup(
        gpu=models.pop() if len(models) == 1 else None,
        hosts=many,
        gpus_per_host=len(ranks) // many if many and len(ranks) % many == 0 else None,
    )
    return Measured(version=1, setup=setup, figures=_of(answers[0]))


def _of(answer: Answer) -> tuple[Any, ...]:
    return tuple(figures_of(answer.samples))


def _perftest(text: str) -> Measured:
    device = re.search(r"(?m)^[ \t]*Device\s*:\s*(\S{1,64})", text)
    return Measured(version=1, figures=_of(tools.parse_perftest(text, device[1] if device else "port")))


def _nvbandwidth(text: str) -> Measured:
    last = text.rpartition("Running ")[2]
    name = re.match(r"(\w+)", last)
    if "{" not in text and name and not re.search(rf"SUM {name[1]} \S+\s*\n|Waived|ERROR", last):
        raise NotUnderstood("nvbandwidth", f"{name[1][:80]} has no sum: the output was cut short")
    models = set(re.findall(r"(?m)^[ \t]*\"?(?:Device )?[0-9]+: ([^(\n\"]{1,80}?) \([0-9a-fA-F]{8}:", text))
    setup = Setup(gpu=models.pop() if len(models) == 1 else None, hosts=1)
    return Measured(version=1, setup=setup, figures=_of(nvbandwidth.parse(text)))


def _fio(text: str) -> Measured:
    answer = tools.parse_fio(text, "fio")
    writes = [sample.metric for sample in answer.samples if "write" in sample.metric]
    if writes:
        raise NotUnderstood("fio", f"{writes[0][:60]!r} writes: a diagnosis knows reads only")
    samples = tuple(msgspec.structs.replace(one, metric="disk-read", subject=one.metric) for one in answer.samples)
    return Measured(version=1, figures=tuple(figures_of(samples)))


_VARIABLE = re.compile(r"NCCL INFO (NCCL_[A-Z0-9_]{1,64}) set (?:by environment )?to (.{0,200}?)\.?\s*$", re.MULTILINE)
_VIA = re.compile(r"NCCL INFO Channel [0-9/]+ ?:.{0,120}? via ([A-Za-z0-9/_()]{1,60})")
_COMM = re.compile(r"\bnRanks ([0-9]{1,6}) nNodes ([0-9]{1,6})\b")


def _nccl_debug(text: str) -> Measured:
    """Read what the library says that it uses (NVIDIA/nccl, src/transport, src/init.cc: INFO lines)."""
    vias = set(_VIA.findall(text))
    ports = re.search(r"NET/IB : Using (.{0,2000})", text)
    names = re.findall(r"\[[0-9]+\]\S+?:[0-9]+/(\S+)", ports[1]) if ports else []
    transport: Transport | None = None
    network = any(via.startswith("NET/") for via in vias)
    if any(via.startswith("NET/Socket") for via in vias) or (not ports and "NET/Socket : Using" in text):
        transport = "socket"
    elif network and names:
        transport = "roce" if any("RoCE" in name for name in names) else "ib"
    elif vias and not network:
        transport = "shm" if any(via.startswith("SHM") for via in vias) else "p2p"
    direct = None
    if any(via.startswith("NET/IB") for via in vias):
        direct = any("GDRDMA" in via for via in vias)
    multicast = re.search(r"NVLS multicast support is (not )?available", text)
    comm = _COMM.search(text)
    ranks, hosts = (int(comm[1]), int(comm[2])) if comm else (None, None)
    return Measured(
        version=1,
        setup=Setup(
            hosts=hosts or None,
            gpus_per_host=ranks // hosts if ranks and hosts and ranks % hosts == 0 else None,
            nics=Nics(count=len(names)) if names else None,
            environment=dict(_VARIABLE.findall(text)[:200]),
        ),
        observations=Observations(
            transport=transport,
            gpudirect_rdma=direct,
            nvls=None if multicast is None else multicast[1] is None,
        ),
    )
