"""Output of AMD's rocm-smi, amd-smi, rocm_bandwidth_test and TransferBench that an operator saved, for a diagnosis."""

from __future__ import annotations

import re
from itertools import takewhile

import msgspec

from hosttune.errors import BadInput
from hosttune.gpu.matrices import between, matrices, named_pairs, within
from hosttune.gpu.vendor import LogReader
from hosttune.model.listing import some
from hosttune.model.measured import Figure, LinkSeen, Measured, Observations, Setup, Stated

_DEVICE = re.compile(r"(?m)^[ \t]*Device: (\d{1,4}),  ?([^,\n]{1,120})(,.*)?$")  # a GPU has a bus address behind
_TITLE = re.compile(r"[ \t]{0,40}Unidirectional (?:copy )?peak bandwidth GB/s[ \t]{0,40}$")

# The word before: of TransferBench, whose executor (GFX, DMA) is that of the transfers that a GPU makes.
_TRANSFERS = re.compile(r"[ \t]{0,40}Unidirectional copy peak bandwidth GB/s \[(Local|Remote) read")
_DISTANCES = re.compile(r"[ \t]{0,40}Inter-Device Numa Distance[ \t]{0,40}$")
_SIGN = rf"(?m)RocmBandwidthTest Version|^{_TITLE.pattern}"


def _bandwidth(text: str) -> Measured:
    """Read the unidirectional matrix (rocm_bandwidth_test, rocm_bandwidth_test_report.cpp). Raises BadInput.

    Version 1 names no buses: its GPUs are those that copy within themselves.
    """
    devices = _DEVICE.findall(text)
    tables = list(matrices(text, _TITLE))
    copying = {here for _, cells in tables for (here, there), value in cells.items() if here == there and value}
    named = {int(number) for number, _, bus in devices if bus} or copying
    gpus = {int(number): f"gpu{number}" for number, *_ in devices if int(number) in named}
    models = {model.strip() for number, model, _ in devices if int(number) in named}
    figures: list[Figure] = []
    peers: list[float | None] = []
    for _, cells in tables:
        figures += [*between(cells, gpus, False), *within(cells, gpus)]
        peers += [value for (here, there), value in cells.items() if here != there and {here, there} <= set(gpus)]
        for (here, there), value in cells.items():
            if value is not None and (here in gpus) != (there in gpus):
                gpu, cpu = (here, there) if here in gpus else (there, here)
                metric = "d2h" if here in gpus else "h2d"
                figures.append(Figure(metric=metric, subject=f"gpu{gpu}, CPU {cpu}", value=value, unit="GB/s"))
    if not figures and not peers:
        raise BadInput(
            "no device, or no whole matrix, in it", where="rocm_bandwidth_test", hint="save its whole output"
        )
    none = bool(peers) and not any(peers)
    far = [{gpu: min((value, cpu) for cpu, value in row.items())[1]
            for gpu in gpus
            if (row := {cpu: value for (here, cpu), value in cells.items() if here == gpu and cpu not in gpus
                        and value is not None})}
           for _, cells in matrices(text, _DISTANCES)]  # fmt: skip
    apart = "; their CPUs differ: over the link between sockets these GPUs have no access" if any(
        len(near) > 1 and len(set(near.values())) == len(near) for near in far) else ""  # fmt: skip
    return Measured(
        version=1,
        setup=Setup(gpu=models.pop() if len(models) == 1 else None, gpus_per_host=len(gpus) or None, hosts=1),
        figures=tuple(figures),
        observations=Observations(
            memory_node="near" if len(devices) == len(gpus) + 1 else None,  # each node is a device of its own
            p2p="off" if none else None,
            said={"p2p": f"the tool has N/A for each pair{apart}"} if none else {},
        ),
    )


_GPU = 1000  # what is added to the number of a GPU: CPUs have numbers of their own


_ONE = re.compile(
    r"(?m)^[ \t]*Transfer \d{1,4}[ \t]*\|[ \t]*([0-9.]{1,12}) GB/s[ \t]*\|[^|\n]{0,40}\|[ \t]*(\d{1,15}) bytes[ \t]*\|"
    r"[ \t]*([CBGF])(\d{1,3}) -> [GD]\d{1,3}\S{0,8} -> ([CBGF])(\d{1,3})[ \t]*\r?$"
)


def _own_transfers(text: str) -> Measured:
    """Read tests of TransferBench that one transfer of a GPU's is alone in: memory is of CPUs (C, B) or GPUs (G, F)."""
    figures: list[Figure] = []
    for test in re.split(r"(?m)^(?=Test \d{1,6}:)", text):
        rows = _ONE.findall(test)
        if len(rows) != 1 or len(re.findall(r"(?m)^[ \t]*Transfer \d", test)) != 1:
            continue  # several at once share what they go through
        rate, size, source, here, target, there = rows[0]
        start, end = int(here), int(there)
        metric, subject = {
            (True, True): ("p2p", f"gpu{start}->gpu{end}") if start != end else ("device-copy", f"gpu{start}"),
            (False, True): ("h2d", f"gpu{end}, CPU {start}"),
            (True, False): ("d2h", f"gpu{start}, CPU {end}"),
        }.get((source in "GF", target in "GF"), ("", ""))
        times = 2 if metric == "device-copy" else 1  # what is read and what is written
        figures += [
            Figure(metric=metric, subject=subject, value=float(rate) * times, unit="GB/s", size_bytes=int(size))
        ]
    if known := tuple(figure for figure in figures if figure.metric):
        return Measured(version=1, setup=Setup(hosts=1), figures=known)
    raise BadInput(
        "no transfer of a GPU that is alone in its test", where="TransferBench", hint="save its whole output"
    )


def _transfers(text: str) -> Measured:
    """Read `TransferBench p2p`, one way (TransferBench, Presets/PeerToPeer.hpp). Raises BadInput.

    A CPU's threads, not a GPU, do the copies from its memory ("remote read": to it): those say nothing of the link.
    """
    plain = re.sub(r"\b([CG])PU (\d{2,3})\b", lambda at: str(int(at[2]) + _GPU * (at[1] == "G")), text)
    rows = (line for line in plain.split("\n") if not re.search(r" (?:min|max| sd|<-|<->) ", line))
    figures: list[Figure] = []
    count, size = 0, re.search(r"Bytes Per Direction (\d{1,15})\b", text)
    for title, cells in matrices("\n".join(rows).replace("->", " "), _TRANSFERS):
        gpus = {device: f"gpu{device - _GPU}" for pair in cells for device in pair if device >= _GPU}
        count = len(gpus)
        figures += between(cells, gpus, False)
        figures += [msgspec.structs.replace(figure, value=2 * (figure.value or 0)) for figure in within(cells, gpus)]
        for (here, there), value in cells.items():
            gpu, cpu, metric = (there, here, "h2d") if title[1] == "Remote" else (here, there, "d2h")
            if value and gpu in gpus and cpu not in gpus:
                figures.append(Figure(metric=metric, subject=f"{gpus[gpu]}, CPU {cpu}", value=value, unit="GB/s"))
    if not figures and _ONE.search(text):
        return _own_transfers(text)
    if not figures:
        raise BadInput("no whole matrix in it", where="TransferBench", hint="save the whole output of its p2p preset")
    sized = tuple(msgspec.structs.replace(figure, size_bytes=int(size[1]) if size else None) for figure in figures)
    return Measured(version=1, setup=Setup(gpus_per_host=count, hosts=1), figures=sized)


_PAIRS = (
    r"(?m)^[= \t]{0,80}(Link (?:Type|accessibility) between two GPUs|(?:LINK TYPE|ACCESS) TABLE:)[ \t=]{0,80}\r?\n"
    r"((?:[ \t]{0,40}\S[^\n]*(?:\n|$)){2,66})"
)
_LANES = re.compile(r"GPU\[(\d{1,3})\][ \t]*: pcie clock level: \d{1,2}:? \((\d{1,2}\.\d)GT/s,? x(\d{1,2})\)")
_CAP = re.compile(  # number, device id, watts; the second half of a card with two has 0.0 W
    r"(?m)^[ \t]*(\d{1,3})[ \t]+\d{1,3}[ \t]+(0x[0-9a-f]{4}),[^\n]{20,160}?[ \t]([1-9]\d{0,3})\.\d{1,3}W[ \t]+"
    r"(?:N/A|\d{1,3}%)[ \t]+\d{1,3}%[ \t\r]*$"
)


def _manager(text: str) -> Measured:
    """Read rocm-smi and `amd-smi topology`: links and access between GPUs, lanes, and power limits against each other.

    Sources: ROCm/rocm_smi_lib rocm_smi.py (showTypeTopology, showAccessible, showAllConcise), amd-smi's topology.
    """
    seen: dict[str, object] = {}
    said: dict[str, str] = {}
    stated: tuple[Stated, ...] = ()
    count = None
    for title, body in re.findall(_PAIRS, text):
        head, *rows = [line.split() for line in body.split("\n")]
        whole = takewhile(lambda row, head=head: len(row) == len(head) + 1 and row[0] in head, rows)  # type: ignore[misc]
        cells = {
            (row[0], name): word for row in whole for name, word in zip(head, row[1:], strict=True) if row[0] != name
        }
        count = len(head)
        if title.upper().startswith("LINK TYPE") and len(cells) == count * (count - 1) > 0:
            links = {name: sum(cells[name, peer] == "XGMI" for peer in head if peer != name) for name in head}
            least, most = min(links.values()), max(links.values())
            if not most or least == count - 1:
                seen.setdefault("p2p", "nvlink" if most else "pcie")
            if least < most:
                few = some([name for name in head if links[name] == least], 4)
                stated += (Stated(
                    says="GPUs reach fewer of the others over XGMI than their like do: links are down or missing",
                    line=f"{few}: XGMI to {least} of {count - 1}, others to {most}",
                    remedy="read dmesg (amdgpu, XGMI, RAS); reseat board or bridge, and power-cycle the host",
                    source="ROCm/rocm_smi_lib rocm_smi.py, showTypeTopology",
                ),)  # fmt: skip
        elif off := {pair for pair, word in cells.items() if word in ("False", "DISABLED")}:
            seen["p2p"] = "off" if len(off) == len(cells) else "partly"
            said["p2p"] = "the tool says that no GPU has access to another" if seen["p2p"] == "off" else named_pairs(
                (one.lower(), other.lower()) for one, other in off)  # fmt: skip
    if lanes := sorted((int(width), float(speed), index) for index, speed, width in _LANES.findall(text)):
        (width, speed, index), (most, top, _) = lanes[0], lanes[-1]
        seen["link"] = LinkSeen(speed_gts=speed, width=width, max_speed_gts=max(speed, top), max_width=most)
        said["link"] = f"GPU {index}; others have x{most}"
    caps = [(int(watts), index, max(int(other) for _, alike, other in _CAP.findall(text) if alike == kind))
            for index, kind, watts in _CAP.findall(text)]  # fmt: skip
    watts, index, top = min(caps, key=lambda cap: cap[0] / cap[2], default=(0, "", 0))
    if watts < top:
        seen |= {"power_limit_watts": float(watts), "default_power_limit_watts": float(top)}
        said["power_limit_watts"] = f"GPU {index}; {top} W is the limit of the others"
    models = set(re.findall(r"Card [Ss]eries:[ \t]+(\S[^\n]{2,60}?)[ \t\r]*$", text, re.MULTILINE))
    return Measured(
        version=1,
        setup=Setup(gpu=models.pop() if len(models) == 1 else None, gpus_per_host=count),
        observations=Observations(**seen, said=said, stated=stated),  # type: ignore[arg-type]
    )


# Of the test pqt; its lines with (*) are of a test that still runs (ROCmValidationSuite, pqt.so/src/action_run.cpp).
_BETWEEN = r"(?:\[GPU:: )?(\d{1,6})(?: - [^\]\n]{4,40}\])?[ \t]+"
_PEERS = (
    rf"p2p-bandwidth[ \t]+\[\d{{1,4}}/\d{{1,4}}\][ \t]+{_BETWEEN}{_BETWEEN}bidirectional: (true|false)[ \t]+"
    r"([\d.]{1,9}) GBps[ \t]+duration"
)


def _validation(text: str) -> Measured:
    """Read the copies between GPUs that ROCm's validation suite (rvs) measured; Instinct boards join GPUs by XGMI."""
    figures = tuple(
        Figure(
            metric="p2p",
            subject=f"gpu{start}->gpu{end}" + (", both directions" if both == "true" else ""),
            value=float(rate),
            unit="GB/s",
        )
        for start, end, both, rate in re.findall(_PEERS, text)
    )
    return Measured(version=1, setup=Setup(hosts=1), figures=figures)


AMD_LOGS = (
    LogReader(name="rvs", machine=_validation, sign=_PEERS),
    LogReader(name="rocm-smi", machine=_manager,
              sign=r"ROCm System Management Interface|(?m:^)(?:LINK TYPE|ACCESS) TABLE:|between two GPUs ={4}"
              r"|(?m:^)GPU: \d{1,3}[ \t\r]*\n[ \t]{2,8}[A-Z][A-Z_]{2,30}:"
              r"|(?m:^)(?:CURRENT|MEMORY)_PARTITION:|\| AMD-SMI |pcie clock level: \d"),
    LogReader(name="TransferBench", machine=_transfers,
              sign=rf"(?m)^[ \t]*TransferBench v|^{_TRANSFERS.pattern}|{_ONE.pattern[4:]}",
              begin=r"^[ \t]*TransferBench v"),
    LogReader(name="rocm_bandwidth_test", sign=_SIGN, machine=_bandwidth,
              begin=r"^[ \t]*RocmBandwidthTest Version"),
)  # fmt: skip
