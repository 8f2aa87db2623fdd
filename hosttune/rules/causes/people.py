"""What people write around a log: the rate that they have and the one that they expect, and that a run hangs."""

from __future__ import annotations

import re

from hosttune.model.measured import Measured, Nics, Observations, Stated
from hosttune.rules.causes.equals import SPREAD
from hosttune.rules.causes.verdicts import converted

_RATE = r"(\d{1,4}(?:\.\d{1,3})?) ?([GM]i?(?:[Bb]/s(?:ec)?|[Bb]ps|bits?/s))(?: \w{3,12})?"
_WANTED = (
    r"(?:instead of|rather than|(?<!as )expect(?:ed|ing)?|should (?:be|get|give|reach)|supposed to (?:be|get|reach))"
)
_AIM = re.compile(
    rf"{_RATE}[ ,;(]{{1,4}}{_RATE} (?:is |was |are |were )?(?:expected\b|should)"
    rf"|{_RATE}[^\n\d]{{0,40}}?\b{_WANTED}[^\n\d]{{0,30}}{_RATE}"
    rf"|(?<!as )\b[Ee]xpect(?:ed|ing)?\b[^\n\d]{{0,30}}{_RATE}[^\n\d]{{0,40}}?{_RATE}"  # the other way round
)
_OTHER_WAY = 9  # its first group
_LITTLE = rf"\bonly (?![^\n]{{0,40}}\b(?i:ports?|nics?|links?|ethernet)\b)(?:about |around |~ ?|at )?{_RATE}"
# What people and launchers say of several hosts.
SEVERAL = re.compile(
    r"(?i)(?<!available: )\b(?:[2-9]|[1-9]\d{1,3}|two|three|four|eight)[ -](?:[x×] ?)?"
    r"(?!numa|[gc]pu|rank|process)(?:(?!of|per|on|in)[\w-]{1,16} )?(?:nodes?|machines|hosts|servers|replicas|pods)\b"
    r"(?! \(\d)"
    r"|\b(?:n|num_)nodes?[ =:]{1,3}(?:[2-9]|[1-9]\d)|(?:--nodes[ =]|\bsrun [^\n]{0,80}?-N ?)(?:[2-9]|[1-9]\d)\b"
    r"|\s--?(?:hostfile|machinefile)\b|\s(?:-H|--host|-hosts) ?[\w.-]{1,64}(?::\d{1,3})?,[\w.-]"
)
_HANGS = (
    r"(?im)^(?![^\n]{0,400}(?:\bNCCL (?:INFO|WARN)|kernel:|NVRM|i915|\bxe |amdgpu|\bif (?:it|the)\b|\bfixe[sd]\b))"
    r"[^\n]{0,200}?"
    r"(?<!not )(?<!never )(?<!longer )(?<!without )\b(?:hangs?|hanging|hung|stuck|freezes?|frozen|stalls?|stalled"
    r"|never (?:returns?|finish|ends?|completes?)|(?:does|did) not return|nothing (?:more|further)"
    r"|no (?:further|more) (?:output|lines)|output (?:stays|stops|ends) here)\b[^\n]{0,60}"
    r"|^[^\n]{0,80}\b0%\|[^\n]{0,60} 0/\d{1,9} \[00:0\d<\?[^\n]{0,120}\s*\Z"
)
_OF_HOST = r"(?m)^(\S{1,200}?):\d{1,10}:\d{1,10} \[\d{1,4}\] "
_BETWEEN_GPUS = (
    r"\bInit COMPLETE\b|\bConnected all (?:rings|trees)|NCCL INFO Channel [^\n]{1,120} via (?:P2P|SHM|direct)"
    r"|(?m:^)[ \t]*GPU0[ \t]+X[ \t]+(?:PIX|PXB|PHB|NODE|SYS)\b|P2P Connectivity Matrix"
)
# Links, or hosts: then something else holds the ranks.
_OTHERWISE = (
    r"\bNV\d{1,2}\b|(?<!no )(?<!without )\bNVLink|\bNVLS\b|\bSXM|\b[HD]GX|\bMI[23]\d\d|via NET/|nNodes (?!1\b)\d"
    r"|NCCL_P2P_DISABLE(?:=| set \D{0,20}to )[\"']?1|\biommu=off\b"
)


def of_people(text: str, nics: Nics | None) -> Measured:
    """Return what people say of a run: a complaint with its figures, and why a run hangs. `nics`: those of its log."""
    aim, little, hangs = _AIM.search(text), re.search(_LITTLE, text), re.search(_HANGS, text)
    stated = []
    alone = not SEVERAL.search(text) and len(set(re.findall(_OF_HOST, text))) < 2
    if hangs and alone and re.search(_BETWEEN_GPUS, text) and not re.search(_OTHERWISE, text):
        stated.append(
            Stated(
                says="the run hangs, as where copies between GPUs do not get through: IOMMU, ACS",
                line=" ".join(hangs[0].split())[:120],
                remedy="run once with NCCL_P2P_DISABLE=1 (vLLM: --disable-custom-all-reduce, too): if that passes, on a"
                " host without guests boot with iommu=pt, or turn IOMMU and ACS off in the firmware; else a stack of"
                " each rank (py-spy dump) shows where it waits",
                source="NCCL user guide, PCI Access Control Services; vllm-project/vllm issue 9920",
            )
        )
    cells = [cell for cell in aim.groups() if cell] if aim else ["0", "GB/s"] * 2
    rates = (converted(float(cells[n]), cells[n + 1], "bytes per second") for n in (0, 2))
    now, goal = (rate[0] if rate else 0.0 for rate in rates)
    now, goal = (goal, now) if aim and aim[_OTHER_WAY] else (now, goal)
    carried = nics.rate_gbps / 8 * (nics.count or 1) if nics and nics.rate_gbps else 0.0
    short = 0 < now * SPREAD < goal
    if aim and short and 0 < carried * SPREAD < goal:
        stated.append(
            Stated(
                says=f"the ports that are shown carry {carried:g} GB/s, and {goal:g} GB/s is expected",
                line=" ".join(aim[0].split()),
                remedy="ibstat or ethtool: a port that can do more has a cable, switch port or setting of a lower rate;"
                " else count with the ports' rate",
                source="standard rates of ports, 8 bits a byte; nccl-tests doc/PERFORMANCE.md",
            )
        )
    complaint = aim[0] if aim and short else little[0] if little else ""
    said = {"complaint": complaint} if complaint else {}
    return Measured(version=1, observations=Observations(stated=tuple(stated), said=said))
