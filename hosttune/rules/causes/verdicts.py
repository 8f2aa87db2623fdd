"""Each figure against the model of its machine: expected, low, impossible or unknown, with the reason in words."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from hosttune.bench.baselines import ABOVE_PEAK
from hosttune.model.diagnosis import FigureVerdict, JudgedFigure
from hosttune.model.measured import COLLECTIVES, METRICS, RINGS, Figure, Measured
from hosttune.predicting.estimates import Question, estimate
from hosttune.predicting.formulas import MOST_MFU, PUBLISHED_MFU, SOCKET_MEMORY, TYPICAL_MFU, Estimate
from hosttune.predicting.shape import HostShape

_MANY = 10.0  # times: more is not said in percent
_FAR_BELOW = 0.1  # of a bound that a board can lack the links for
_LEAST = 0.5  # of the figure of large messages: less shows no bandwidth
_LEAST_CLOCK = 0.9  # of the clock that the report compares with
SLOWEST_CLOCK = 500.0  # MHz; base clocks of data-center GPUs are higher: T4 585 (data sheet)
# MHz; base clocks of GeForce cards since 2018 are higher: RTX 3060 1,320, RTX 2080 Ti 1,350 (specifications)
_CARD_CLOCK, IDLE = 1300.0, re.compile(r"(?i)\b(?:idle|no load|without load|unloaded|at rest)\b")
LOADED = re.compile(r"(?i)\bload|busy|100 ?%|burn|stress|gemm|matmul|product|\btrain|inference|decod|while a|during")
IDLE_SPEEDS = (
    2.5,
    5.0,
)  # GT/s to which drivers slow an idle link; other speeds below the maximum are not an idle state
_TOO_SMALL, _NO_MODEL = "the message is too small to show the bandwidth", "no model of this metric has a source"
# What no device of a kind exceeds, whatever its model: for figures without a bound of their own.
_FASTEST: Mapping[str, tuple[float, str]] = {
    "rdma-write": (100.0, "a port of 800 Gb/s, the fastest (InfiniBand Trade Association, XDR)"),
    **dict.fromkeys(("h2d", "d2h"), (450.0, "NVLink-C2C, the fastest link to a CPU (GH200 data sheet)")),
    "p2p": (900.0, "the fastest GPU's links (baselines/roofline.toml)"),
    "device-copy": (8000.0, "the fastest GPU's memory (baselines/roofline.toml)"),
    "gemm-bf16": (2517.0, "the fastest GPU, dense (baselines/roofline.toml)"),
    "gemm-fp8": (5034.0, "the fastest GPU, dense (baselines/roofline.toml)"),
}
_POWER9 = 75.0  # GB/s, three NVLink 2 bricks, one direction (IBM Power System AC922, Introduction, REDP-5472)
GEN2 = 5.0  # GT/s
_LANE, _LARGE = 0.985, 1 << 20  # GB/s, one lane of 8 GT/s; bytes from which a copy shows its link
_ONE_PORT, _SHOWN = 11.0, 1 << 28  # GB/s of 12.5 (docs/models.md, flat ring); bytes: of less latency takes much
_LOW_MFU = 0.2  # below every run in PaLM's table 3, GPT-3's 0.213 on V100 included
# Of the channels' rate: about half of what STREAM reaches, and more than faster modules give.
_STREAM, _FASTER = 0.35, 1.2
_DRIVE, _DRIVES = 15.75, 504.0  # GB/s, four lanes of 32 GT/s, the most that a drive has, and 128, which a host has
# GB/s: of one SATA port, which drives of a host can have, and of the slowest hard disks in use
_SATA, _HARD_DISK, _BLOCK = 0.6, 0.1, 1 << 17  # bytes from which reads show the rate of a drive

# unit in lower case without blanks -> (dimension, factor to the first unit of that dimension)
_UNITS: Mapping[str, tuple[str, float]] = {
    "tops": ("operations per second", 1.0),
    "ns": ("time", 1.0),
    "us": ("time", 1e3),
    **dict.fromkeys(("µs", "μs", "usec"), ("time", 1e3)),  # two signs that look alike
    "ms": ("time", 1e6),
    "s": ("time", 1e9),
    "mhz": ("clock", 1.0),
    "ghz": ("clock", 1e3),
    "w": ("power", 1.0),
    "watts": ("power", 1.0),
    "kw": ("power", 1e3),
    "gt/s": ("transfers per second", 1.0),
    "lanes": ("link width", 1.0),
    "x": ("link width", 1.0),
    **dict.fromkeys(("%", "percent"), ("fraction", 0.01)),
    "": ("fraction", 1.0),
    "fraction": ("fraction", 1.0),
    "tokens/s": ("tokens per second", 1.0),
    "tok/s": ("tokens per second", 1.0),
    "t/s": ("tokens per second", 1.0),
    **dict.fromkeys(
        ("samples/s", "images/s", "img/s", "examples/s", "it/s", "steps/s", "samples/sec", "images/sec"),
        ("tokens per second", 1.0),  # of work, which has no model: only compared with itself
    ),
}
# Rates of data: a small b is a bit, a capital B a byte; 1 GB is 10^9 bytes, 1 GiB 2^30.
_DATA = re.compile(r"([KMGT]|g(?=bps|bit))(i?)(b|B|bits?|[Bb]ytes?)(?:/s|/sec|/second|ps| per second)")
_AFTER = re.compile(  # what people write after a unit
    r"(?i)(?:[(,]|(?: per |/| each )(?:gpu|card|rank|nic|port|hca|device|node|host|pair|direction)\b"
    r"|\b(?:bus|alg|(?:uni|bi)-?dir|one direction|average|avg|peak|of peak|mfu|dense|read|write)).*"
)
_OPERATIONS = re.compile(r"([gtp])(?:iga|era|eta)?f(?:lop)?s?(?:/s)?")
_ALGORITHM_RATE = re.compile(r"(?i)^(?!.*\bbus).*\balg(?:o|orithm)?[ -]?b(?:and)?w")  # nccl-tests doc/PERFORMANCE.md
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}
_AT_ONCE = re.compile(r"(?i)\b(?:at the same time|at once|simultaneous|concurrent|in parallel|together)")


class Judged(msgspec.Struct, frozen=True):
    """A figure with its verdict. `value`, `bound` and `typical` in the metric's own unit; `estimate` has their source.

    `value` None: the unit does not fit. `seconds`: the figure is a time, although its metric is a rate. `hosts`: how
    many took part. `apart`: how far it is below its equals in the same run.
    """

    figure: Figure
    verdict: FigureVerdict
    why: str
    value: float | None = None
    bound: float | None = None
    typical: float | None = None
    estimate: Estimate | None = None
    seconds: float | None = None
    factor: float = 1.0
    hosts: int | None = None
    apart: str = ""

    @property
    def small(self) -> bool:
        """Whether its message is too small to show the bandwidth."""
        return self.verdict == "unknown" and self.why.startswith(_TOO_SMALL)

    @property
    def at_once(self) -> bool:
        """Whether it ran at the same time as others, not only in both directions."""
        return bool(_AT_ONCE.search(self.figure.subject[:400])) and not re.search(BOTH_WAYS, self.figure.subject[:400])

    @property
    def name(self) -> str:
        """How causes name it."""
        return f"{self.figure.metric}: {self.figure.subject}" if self.figure.subject else self.figure.metric

    def shown(self) -> JudgedFigure:
        """Return the row of the document, in the figure's own unit."""
        return JudgedFigure(
            metric=self.figure.metric,
            subject=self.figure.subject,
            value=self.figure.value,
            unit=self.figure.unit,
            bound=None if self.bound is None else round(self.bound / self.factor, 4),
            typical=None if self.typical is None else round(self.typical / self.factor, 4),
            verdict=self.verdict,
            why=self.why,
            size_bytes=self.figure.size_bytes,
        )


def converted(value: float, unit: str, dimension: str) -> tuple[float, float] | None:
    """Return (value in the first unit of the dimension, factor); None if the unit is of another dimension."""
    text = _AFTER.sub("", unit[:40]).strip()
    if not text and dimension == "link width":
        return value, 1.0
    found = _UNITS.get(text.lower().replace(" ", ""))
    if operations := _OPERATIONS.fullmatch(text.lower()):
        found = ("operations per second", 1e3 ** ("gtp".index(operations[1]) - 1))
    if found is None and (data := _DATA.fullmatch(text)):
        size = (1024 if data[2] else 1000) ** _POWERS[data[1].upper()] / 1e9
        found = ("bytes per second", size / 8 if data[3] in ("b", "bit", "bits") else size)
    if found is None:
        return None
    return (value * found[1], found[1]) if found[0] == dimension else None


def judge_figure(figure: Figure, measured: Measured, shape: HostShape) -> Judged:
    """Return the figure with its verdict."""
    dimension = METRICS.get(figure.metric)
    if dimension is None:
        return Judged(figure, "unknown", f"hosttune has no metric {figure.metric[:40]!r}")
    if figure.value is None:
        return Judged(figure, "unknown", "no value")
    in_unit = converted(figure.value, figure.unit, dimension)
    if in_unit is None:
        time = converted(figure.value, figure.unit, "time")
        operations = _of_operations(figure, time) if dimension == "bytes per second" else None
        if operations is None:
            what = f"{figure.unit} does not measure {dimension}" if figure.unit.strip() else "no unit is given"
            why = f"{what}: the figure cannot be compared"
            return Judged(figure, "unknown", why, seconds=time[0] / 1e9 if time else None, hosts=shape.hosts)
        in_unit = operations
    value, factor = in_unit
    if figure.metric in _BY_OBSERVATION:
        return _BY_OBSERVATION[figure.metric](figure, value, factor, measured, shape)
    return _by_model(figure, value, factor, measured, shape)


def _of_operations(figure: Figure, time: tuple[float, float] | None) -> tuple[float, float] | None:
    """Return (GB/s, factor) of operations per second, or of the time of a copy, of a known size."""
    if time and time[0] and figure.metric not in COLLECTIVES and (figure.size_bytes or 0) >= _LARGE:
        return (figure.size_bytes or 0) / time[0], (figure.size_bytes or 0) / time[0] / (figure.value or 1)
    match = re.fullmatch(r"(k|M|G)? ?(?:IOPS|requests/s|operations/s)", figure.unit.strip())
    if match is None or figure.value is None or not figure.size_bytes:
        return None
    factor = {"k": 1e3, "M": 1e6, "G": 1e9}.get(match[1] or "", 1.0) * figure.size_bytes / 1e9
    return figure.value * factor, factor


def _by_model(figure: Figure, value: float, factor: float, measured: Measured, shape: HostShape) -> Judged:
    if figure.metric in ("h2d", "d2h") and re.search(r"(?i)gdrcopy|by (?:the )?cpu\b|mapped bar", figure.subject[:400]):
        return Judged(figure, "unknown", "loads and stores of the CPU: no model has a source", value, factor=factor)
    ranks, hosts = _of_subject(figure.subject, shape)
    unnamed = hosts is None and shape.hosts is None
    if unnamed and ranks and ranks > 1 and shape.per_host and (not shape.nics or ranks > shape.per_host):
        hosts = -(-ranks // shape.per_host)  # without a network in the setup no more GPUs than a host has are of one
    problem = _contradiction(ranks, hosts, shape)
    if problem:
        return Judged(figure, "unknown", problem, value, factor=factor)
    told = f"{figure.subject[:400]} {figure.unit[:40]}"
    shared = re.search(SHARE, figure.subject[:400]) is not None
    metric = "send-recv-busbw" if figure.metric == "p2p" and (hosts or 0) > 1 else figure.metric
    forced = "" if (hosts or shape.hosts) == 1 else measured.setup.environment.get("NCCL_ALGO")
    flat = re.search(r"(?i)\bring\b", f"{forced} {told}") is not None
    if ranks and figure.metric in RINGS and _ALGORITHM_RATE.search(told):
        moved = (ranks - 1) / ranks * (2 if figure.metric == "all-reduce-busbw" else 1)
        value, factor = value * moved, factor * moved
    found = estimate(Question(metric, ranks, hosts, figure.size_bytes, flat=flat, shared=shared), shape)
    bound, typical = found.bound, found.typical
    if figure.metric == "rdma-write":  # the model speaks in Gb/s, the figures are compared in GB/s
        bound, typical = (None if rate is None else rate / 8 for rate in (bound, typical))
        if shape.slot_gb_per_s and "GPU memory" in figure.subject:  # its data crosses the GPU's slot
            bound, typical = bound and min(bound, shape.slot_gb_per_s), typical and min(typical, shape.slot_gb_per_s)
    if figure.metric == "rdma-write" and re.search(_APPLICATION, told):
        found = replace(found, low_below=min(found.low_below, _OF_APPLICATION))
    if figure.metric == "rdma-write" and (each := _OF_ONE_PORT.search(told)):
        sharing = int(_NUMBERS.get(each[1].lower(), each[1]))
        value, factor = value * sharing, factor * sharing
    if figure.metric == "rdma-write" and bound and (over := _OVER_PORTS.search(told)):
        count = int(over[1]) if over[1].isdigit() else 2 if over[1].lower() == "both" else shape.nics or 1
        found, bound, typical = replace(found, at_least=_LEAST), bound * count, None
    if figure.metric != "device-copy" and re.search(BOTH_WAYS, told):  # it always counts what is read and written
        value, factor = value / 2, factor / 2  # as the links count it
    averaged = AVERAGE.search(figure.subject) is not None and not _OF_LARGE.search(figure.subject)
    verdict, why = _verdict(value, bound, typical, found)
    part = _FAR_BELOW if _FROM_SMALL.search(figure.subject) else _LEAST
    if verdict == "low" and averaged and value >= (bound or 0.0) * part:
        verdict, why = "unknown", f"an average over sizes is below the figure of large messages: {why}"
    most, device = _FASTEST.get(figure.metric, (None, ""))
    if bound is None and most is not None and value > most * _together(figure, ranks, shape):
        verdict, why = "impossible", f"more than {most:g} GB/s or TFLOP/s, which {device} has: {why}"
    if bound is None and figure.metric in ("h2d", "d2h") and value < _LANE and (figure.size_bytes or _LARGE) >= _LARGE:
        verdict, why = "low", f"less than one lane of 8 GT/s carries, {_LANE:g} GB/s; {why}"
    between = figure.metric in RINGS and (hosts or shape.hosts or 1) > 1 and (figure.size_bytes or _SHOWN) >= _SHOWN
    if bound is None and between and shape.switched and value < _ONE_PORT and not averaged:
        verdict, why = "low", f"less than a port of 100 Gb/s gives, which hosts of such boards have at least; {why}"
    if verdict == "impossible" and bound is not None and value <= bound * _together(figure, ranks, shape):
        verdict, why = "unknown", f"more than one device can carry: is it the sum of several? {why}"
    if verdict == "expected" and figure.metric == "p2p" and typical is None and measured.observations.p2p == "off":
        verdict, why = "unknown", f"no peer access: its copies go through host memory; {why}"
    if verdict == "impossible" and figure.metric in ("h2d", "d2h") and "SXM2" in (shape.gpu or "") and value <= _POWER9:
        verdict, why = "unknown", f"more than a slot carries: on POWER9 the link to the CPU is NVLink; {why}"
    many = hosts if figure.metric == "p2p" else hosts or shape.hosts  # copies are of one host, unless it says so
    return Judged(figure, verdict, why, value, bound, typical, found, factor=factor, hosts=many)


BOTH_WAYS = r"(?i)both (?:directions|ways)|\bbi-?dir(?:ectional)?\b"
SHARE = r"(?i)\bgpu's share|\b(?:per|each) gpu\b|\beach of (?:\d+|all) gpus\b"  # of what a GPU has of a host's ports
_OVER_PORTS = re.compile(  # a sum
    r"(?i)\b(?:over|across) (?:all (?=\d))?(all|both|\d{1,3}) (?:adapters|nics|ports|hcas|rails)\b"
)
# Programs that do more than write, with blocks of their own: 0.85 of the port is good (ai-dynamo/nixl issue 1647).
_APPLICATION, _OF_APPLICATION = r"(?i)\bnixl|\bmooncake|\btransfer (?:engine|bench)|\bucx_perftest\b", 0.85
_OF_ONE_PORT = re.compile(  # of each of several that share it
    r"(?i)\beach of (two|three|four|eight|\d{1,2}) (?:gpus|processes|guests|flows|streams)\b"
    r".{0,40}\b(?:one|same) (?:adapter|nic|port|hca)\b"
)
_OF_LARGE = re.compile(r"(?i)\bover (?:\d+ ?g|(?:1(?:2[89]|[3-9]\d)|[2-9]\d\d) ?m)i?b\b")  # 128 MB and more
# From 8 bytes on the average is 0.12 (16 H100, 32 adapters), 0.21 (16 H100, 8 NICs) of what large messages reach.
_FROM_SMALL = re.compile(r"(?i)\bfrom \d{1,4} ?(?:b|bytes?|ki?b)\b")
AVERAGE = re.compile(  # over sizes of messages
    r"(?i)\b(?:average|avg|mean)\b(?! (?:of|over) (?:\d{1,6} )?(?:iterations|runs|repetitions|rounds|measurements))"
)
_SEVERAL = (
    r"\b(?:all|sum|aggregate|together|per (?:node|host))\b|"
    r"\b(?:[2-9]|[1-9][0-9]{1,5}) (?:gpus|ports|nics|hcas|cards|devices)\b"
)


def _together(figure: Figure, ranks: int | None, shape: HostShape) -> int:
    """Return of how many devices a figure can be the sum, if its subject names several."""
    told = f"{figure.subject[:400]} {figure.unit[:40]}".lower()
    several = re.search(_SEVERAL, told) or ((ranks or 0) > 1 and "total" in told)  # else reads and writes in total
    if not several or figure.metric in COLLECTIVES or re.search(SHARE, figure.subject[:400]):
        return 1
    return (shape.nics if figure.metric == "rdma-write" else ranks) or 64  # more than a host has


def _verdict(value: float, bound: float | None, typical: float | None, found: Estimate) -> tuple[FigureVerdict, str]:
    inputs = "; ".join(found.because)
    if bound is not None and value > bound * ABOVE_PEAK:
        part = f"{value / bound:.0%} of" if value < bound * _MANY else f"{value / bound:.3g} times"
        return "impossible", f"{part} the bound ({found.formula}): {inputs}"
    if bound is None:
        return "unknown", inputs or _NO_MODEL
    if typical is None:
        if found.at_least is not None and value < bound * found.at_least:
            part = f"{value / bound:.0%} of the bound, less than {found.at_least:.0%}"
            return "low", f"{part} ({found.formula}): {inputs}"
        why = f"{value / bound:.0%} of the bound; no typical figure has a source: {inputs}"
        return "unknown" if value < bound * _FAR_BELOW else "expected", why
    words = f"{value / typical:.0%} of the typical figure ({found.formula}): {inputs}"
    if value >= typical * found.low_below:
        if found.large is not None and value < found.large * _LEAST:
            return "unknown", f"{_TOO_SMALL}: {words}"
        return "expected", words
    return "low", words


_NUMBERS = {"single": "1", "one": "1", "two": "2", "three": "3", "four": "4", "eight": "8"}
# "2 nodes × 8", "2 × 8 GPUs"
_TIMES = re.compile(r"\b([0-9]{1,4}) ?(?:(?:hosts?|nodes?) ?[x×] ?([0-9]{1,3})\b|[x×] ?([0-9]{1,3}) (?:gpus|ranks)\b)")
_WORD = r"(?:(?!(?:to|and|on|of|from|in) )[a-z0-9]+ )?"  # "2 GH200 hosts", but not "GPU 2 and GPU 3"


def _of_subject(subject: str, shape: HostShape) -> tuple[int | None, int | None]:
    """Return (GPUs, hosts) that a subject names ("16 GPUs on 2 hosts"), None where it names none."""
    text = re.sub(rf"\b(?:{'|'.join(_NUMBERS)})\b", lambda word: _NUMBERS[word[0]], subject[:400].lower())
    if (times := _TIMES.search(text)) and (times[2] or int(times[3]) == shape.per_host):
        return int(times[1]) * int(times[2] or times[3]), int(times[1]) or None
    models = r" ?[x×] ?(?!bf16|tf32)(?:nvidia |amd )?[a-z]{1,2}[0-9]{2,3}[a-z]?"
    gpus = re.search(rf"\b([0-9]{{1,6}})(?:[- ]{_WORD}(?:gpus?|ranks)(?! ?[0-9])|{models})\b", text)
    hosts = re.search(rf"\b([0-9]{{1,6}})[- ]{_WORD}(?:hosts?|nodes?|guests|machines|vms)\b", text)
    ranks = int(gpus[1]) if gpus else None
    if gpus and hosts and re.match(r" (?:each|a|per)\b", text[gpus.end() :]):
        ranks = int(gpus[1]) * int(hosts[1])
    whole = ranks is not None and ranks == shape.per_host and not re.search(r"hosts|nodes", text)
    if hosts is None and (whole or re.search(r"\b(?:intra|within|of a (?:host|node))\b", text)):
        return ranks or shape.per_host, 1
    if ranks is None and shape.per_host:
        ranks = shape.per_host * (int(hosts[1]) if hosts else shape.hosts or 1)
    return ranks or None, (int(hosts[1]) or None) if hosts else None


def _contradiction(ranks: int | None, hosts: int | None, shape: HostShape) -> str | None:
    many = hosts or shape.hosts
    if ranks and many and shape.per_host and ranks > many * shape.per_host:
        return f"the subject names {ranks} GPUs, the setup has {many} × {shape.per_host}: the two contradict each other"
    return None


# --- metrics that are compared with an observation ------------------------------------------------------------


def _clock(figure: Figure, value: float, factor: float, measured: Measured, shape: HostShape) -> Judged:
    idle = IDLE.search(figure.subject[:400])
    most = None if idle else measured.observations.max_sm_clock_mhz
    card = re.search(r"(?i)^(?!.*(?:laptop|mobile|max-q)).*\b(?:gtx 16|rtx [2-5]0)[5-9]0", shape.gpu or "")
    least = _CARD_CLOCK if card else SLOWEST_CLOCK
    if most is None and not idle and value < least and LOADED.search(figure.subject[:400]):
        return Judged(figure, "low", f"no such GPU works below {least:g} MHz", value, factor=factor)
    if most is None:
        why = "an idle GPU lowers its clock" if idle else "not known: the clock to compare with"
        return Judged(figure, "unknown", why, value, factor=factor)
    why = f"{value / most:.0%} of {most:g} MHz"
    low = value < most * _LEAST_CLOCK
    verdict: FigureVerdict = "impossible" if value > most * ABOVE_PEAK else "low" if low else "expected"
    return Judged(figure, verdict, why, value, most, None, factor=factor)


def _tcp(figure: Figure, value: float, factor: float, measured: Measured, shape: HostShape) -> Judged:
    one = "one stream, which one CPU limits: run several (iperf3 -P 8); " if "1 stream" in figure.subject else ""
    return Judged(
        figure, "unknown", f"not decided by TCP: {one}ib_write_bw shows what the port carries", value, factor=factor
    )


def _power(figure: Figure, value: float, factor: float, measured: Measured, shape: HostShape) -> Judged:
    return Judged(figure, "unknown", "power alone is neither good nor bad", value, factor=factor)


def _reads(figure: Figure, value: float, factor: float, measured: Measured, shape: HostShape) -> Judged:
    large = (figure.size_bytes or _BLOCK) >= _BLOCK and not re.search(r"(?i)hdd|SATA|random", figure.subject)
    least, words = (
        (_SATA, "one SATA port carries")
        if figure.metric == "storage-read" or "nvme" in figure.subject.lower()
        else (_HARD_DISK, "a hard disk reads")
    )
    if value > _SATA and re.search(r"(?i)\b(?:one|single|a) (?:hard disk|hdd)\b", figure.subject[:400]):
        return Judged(figure, "impossible", f"no hard disk reads more than {_SATA:g} GB/s: from memory?", value)
    if value > _DRIVE:
        one = figure.metric == "disk-read" and re.search(r"(?i)\b(?:one|single|a) ", figure.subject[:400])
        if value > _DRIVES:
            return Judged(figure, "impossible", f"more than {_DRIVES:g} GB/s: 128 lanes of 32 GT/s", value)
        why = f"more than the link of a drive, {_DRIVE:g} GB/s: is it from memory?" if one else "several drives"
        return Judged(figure, "impossible" if one else "expected", why, value, factor=factor)
    why = f"less than {words}, {least:g} GB/s" if large and value < least else _NO_MODEL
    return Judged(figure, "unknown" if why == _NO_MODEL else "low", why, value, factor=factor)


def _memory(figure: Figure, value: float, factor: float, measured: Measured, shape: HostShape) -> Judged:
    name = (shape.cpu or "")[:200].lower()
    rate = next((rate for words, rate in SOCKET_MEMORY if re.search(words, name)), None)
    few = r"(?i)^(?!.*\ball threads).*(?:thread|\bcore\b)|single|->|\bmbw\b|sysbench|lmbench|bw_mem"
    if rate is None or re.search(few, figure.subject[:400]):
        return Judged(figure, "unknown", _NO_MODEL, value, factor=factor)
    one = re.search(r"(?i)\b(?:socket|node)\b", figure.subject) or not re.match(r"2 ?[x×]", name)
    bound = rate if one else 2 * rate
    why = f"{value / bound:.0%} of the channels' rate, {bound:g} GB/s"
    verdict: FigureVerdict = (
        "impossible" if value > bound * _FASTER else "low" if value < bound * _STREAM else "unknown"
    )
    return Judged(figure, verdict, why, value, bound, factor=factor)


def _link(figure: Figure, value: float, factor: float, measured: Measured, shape: HostShape) -> Judged:
    link, width = measured.observations.link, figure.metric == "link-width"
    most = (link.max_width if width else link.max_speed_gts) if link else None
    if most is None and shape.slot is not None:
        most = shape.slot[1] if width else shape.slot[0]
    if most is None:
        return Judged(figure, "unknown", "not known: what the link can do", value, factor=factor)
    why = f"{value:g} of {most:g}"
    if not width and value == most < GEN2:
        return Judged(figure, "low", f"{why}: GPUs have had {GEN2:g} GT/s and more since 2008", value, factor=factor)
    if value > most:
        return Judged(figure, "impossible", why, value, float(most), None, factor=factor)
    if value == most:
        return Judged(figure, "expected", why, value, float(most), None, factor=factor)
    # An idle GPU goes down to the lowest speed; the second is what a link is left at (local-inference-lab/rtx6kpro).
    idle = value < GEN2 or most <= 16 or (link.under_load if link else None) is False or IDLE.search(figure.subject)
    if not width and value in IDLE_SPEEDS and (link is None or link.under_load is not True) and idle:
        return Judged(figure, "unknown", f"{why}; an idle link may be slowed to save power", value, float(most))
    return Judged(figure, "low", why, value, float(most), None, factor=factor)


def _mfu(figure: Figure, value: float, factor: float, measured: Measured, shape: HostShape) -> Judged:
    if value > MOST_MFU:
        why = f"{value:.0%} of the dense peak; matrix products alone reach {MOST_MFU:.0%}"
        return Judged(figure, "impossible", why, value, MOST_MFU, TYPICAL_MFU, factor=factor)
    least, most = PUBLISHED_MFU
    why = f"{value:.0%}; published runs reach {100 * least:.0f} to {100 * most:.0f} %"
    verdict: FigureVerdict = "expected" if value >= least else "low" if value < _LOW_MFU else "unknown"
    return Judged(figure, verdict, why, value, MOST_MFU, TYPICAL_MFU, factor=factor)


_BY_OBSERVATION = {
    "tcp": _tcp,
    "sm-clock": _clock,
    "power": _power,
    "memory-copy": _memory,
    **dict.fromkeys(("disk-read", "storage-read"), _reads),
    "link-speed-gts": _link,
    "link-width": _link,
    "mfu": _mfu,
}
