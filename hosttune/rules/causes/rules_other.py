"""Causes outside the machine's placement: the measurement itself, storage, input of data, and software."""

from __future__ import annotations

import re

from hosttune.model.measured import COLLECTIVES
from hosttune.rules.causes.rule import HOST_COPIES, STORAGE, WORK, Case, CauseRule, observed, rule, slower_run, supports
from hosttune.rules.causes.verdicts import BOTH_WAYS
from hosttune.rules.engine import Finding

_LINES = 4
_LOCKED = re.compile(r"(?i)page-?locked|(?<!un)(?<!non-)(?<!not )pinned")
_PAGEABLE = 2.0  # times: page-locked memory gives at least so much more where the driver must copy first
_WELL_BELOW = 0.8  # of a bound: copies over PCIe reach 0.76 to 0.88 of their link
_STAGED = 1.5, 9.0  # GB/s that copies of pageable memory give, which the driver copies first
_SLOW_KINDS = re.compile(r"(?i)\b(?:hdds?|hard disks?|nfs|s3|object stor\w+|sata)\b")
_ONE_QUEUE = re.compile(r"(?i)\b(?:one|1|single) (?:queue pair|qp|connection|stream)\b")
_KEPT = re.compile(r"(?i)buffered|cached|page cache")
_VERSION = re.compile(
    r"(?i)\b(?:[nr]ccl|ucx|cuda|drivers?|kernel|linux|rocm|libfabric|ofed|fw|firmware|open ?mpi|(?:py)?torch|version"
    r"|vllm|sglang|llama\.cpp|ollama|tensorrt(?:-llm)?|tensorflow|jax|triton|qemu|v?bios)(?: (?:newer|older) than)?"
    r"[ -]?v?\d+(?:\.\d+)*[\w.+-]{0,20}"
)
_STALLED = 50  # times: near and far, or page-locked and pageable memory, differ by less than ten
_BESIDES = re.compile(  # a rate of all tokens may count the prefill
    r"(?i)\b(?:generat|decod)\w{1,4}\b.{0,80}\b(?:with|includ\w+) (?:the )?prefill"
    r"|\b(?:with|includ\w+) (?:the )?(?:compilation|loading)\b(?! cach)"
)
_CACHE = 32 << 20  # bytes; the second-level cache of an RTX 4060 Ti

LOG_LINE = CauseRule(
    id="log-line",
    title="A log says it",
    about="figures",
    tier="run",
    source="that of the line (hosttune/rules/causes/faultlines.py, hosttune/linux/kernellines.py)",
    remedy="what the cause says",
    confirm="a new log without the line",
    fault_itself=True,
    judge=lambda case: (
        Finding(
            f"{line.says[:1].upper()}{line.says[1:]} ({line.line})",
            outcome="observed",
            remedy=line.remedy,
            source=line.source,
        )
        for line in case.seen.stated[:_LINES]
    ),
)


@rule(
    "impossible-figure",
    tier="run",
    source="the bound of docs/models.md for this machine",
    remedy="do not use the figure; measure again, and check unit, size, counts of GPUs and hosts, and what is summed",
    confirm="the same figure from another tool",
)
def impossible(case: Case) -> Finding | None:
    """No such machine can reach the figure."""
    verdicts = tuple(figure for figure in case.figures if figure.verdict == "impossible")
    words = tuple(f"{judged.name}: {judged.why}" for judged in verdicts[:8])
    return supports("observed" if case.seen.bidirectional_sum else "proven", words, verdicts) if verdicts else None


@rule(
    "measurement-artefact",
    tier="run",
    source="docs/models.md, what is measured",
    remedy="measure one direction, with pinned memory, after a warm-up: hosttune validate --level 1",
    confirm="the same figure from hosttune validate --level 1",
)
def artefact(case: Case) -> Finding | None:
    """The way of measuring, not the machine, makes the figure."""
    above = tuple(figure for figure in case.figures if figure.verdict == "impossible")
    about, words = [*above], []
    cached = tuple(
        judged
        for judged in case.figures
        if judged.figure.metric == "device-copy" and 0 < (judged.figure.size_bytes or 0) < _CACHE
        and judged.verdict in ("unknown", "impossible")
    )  # fmt: skip
    if cached and not above:
        return supports("fits", (f"{cached[0].name}: such small arrays can stay in the GPU's cache",), cached)
    if case.seen.bidirectional_sum and not any(
        judged.verdict == "low" or re.search(BOTH_WAYS, judged.figure.subject[:400]) for judged in case.figures
    ):  # where the subject says so the model counts both
        words.append("the figure is the sum of both directions")
    words += [
        f"{judged.name} is up to twice the bound: both directions, or sparse products?"
        for judged in above
        if judged.value and judged.bound and judged.value <= 2.02 * judged.bound
    ][:4]
    named = any(re.search(r"(?i)pageable|unpinned", judged.figure.subject[:400]) for judged in case.about(HOST_COPIES))
    if (case.seen.pageable_memory or named) and (case.about(HOST_COPIES) or case.complaint):
        words.append("host memory is pageable: the driver copies it first")
        about += case.about(HOST_COPIES)
    copies = [judged for judged in case.figures if judged.figure.metric in HOST_COPIES]
    locked = {judged.figure.metric: judged for judged in copies if _LOCKED.search(judged.figure.subject[:400])}
    pageable = [
        judged
        for judged in copies
        if judged.figure.metric in locked and not re.search(_LOCKED.pattern + "|remote", judged.figure.subject[:400])
        and (judged.value or 0) * _PAGEABLE < (locked[judged.figure.metric].value or 0)
    ]  # fmt: skip
    about += pageable
    words += [
        f"{judged.name}: page-locked memory gives {locked[judged.figure.metric].value:.3g} GB/s" for judged in pageable
    ][:4]
    alone = tuple(
        judged for judged in case.figures
        if judged.value == 0 and judged.figure.metric in COLLECTIVES and (judged.figure.size_bytes or 0) >= _CACHE
    )  # fmt: skip
    if alone:
        why = f"{alone[0].name}: 0: each process ran alone, for bus bandwidth counts what others get"
        return supports("proven", (why,), alone)
    kept = [
        judged for judged in case.figures if judged.figure.metric in STORAGE and _KEPT.search(judged.figure.subject)
    ]
    direct = [judged.value or 0 for judged in case.figures if judged.figure.metric in STORAGE and judged not in kept]
    if kept and direct and (kept[0].value or 0) > max(direct):
        return supports("fits", (f"{kept[0].name}: out of the page cache, not of the drive",), tuple(kept))
    waiting = [judged for judged in case.open if judged.figure.metric not in STORAGE]  # there it is the storage's rate
    if case.seen.cold and not case.seen.storage_bound and (waiting or case.complaint):
        words.append("the first run: caches, clocks and connections were cold")
    if above:
        return supports(
            "proven", tuple(words) or ("a figure above its bound was not measured as it is named",), tuple(about)
        )
    more = tuple(v for v in case.about(WORK) if _BESIDES.search(v.figure.subject[:400]))
    if more and not words:
        return supports(
            "fits", (f"{more[0].name}: it counts more than the work",), more,
            "take the time of the work alone, after loading, compilation and prefill",
        )  # fmt: skip
    alone = tuple(judged for judged in case.low(("rdma-write",)) if _ONE_QUEUE.search(judged.figure.subject[:400]))
    if alone:
        return supports("fits", (f"{alone[0].name}: more of them fill a port",), alone)
    staged = tuple(judged for judged in case.low(HOST_COPIES) if _STAGED[0] < (judged.value or 0) < _STAGED[1])
    if not words and staged and case.seen.pageable_memory is None and not case.apart(HOST_COPIES):
        return supports("possible", ("whether the host's memory was page-locked was not read",), staged)
    if not words or not (case.open or case.complaint):
        return None
    return supports("observed", words, tuple(about))  # which figures were cold is not known: other faults first


@rule(
    "kernel-or-driver-bug",
    tier="run",
    source="the same machine before and after the change of a version",
    remedy="go back to the version that was fast, and report it with both figures",
    confirm="the same run with the earlier version of driver, firmware, kernel or library",
)
def version(case: Case) -> Finding | None:
    """A new version is slower."""
    if slow := slower_run(case, _VERSION, 1.15):
        return supports("fits", (f"{slow[0].name} is below the same run with another version",), slow)
    copies = [  # of small ones the start takes most of the time
        v
        for v in case.figures
        if case.written and v.figure.metric in HOST_COPIES and (v.figure.size_bytes or _CACHE) >= _CACHE
    ]
    most = max((v.value or 0 for v in copies), default=0)
    if stalled := tuple(v for v in copies if 0 < (v.value or 0) * _STALLED < most):
        return supports(
            "fits", (f"{stalled[0].name}: no link or memory makes such a difference",), stalled,
            "try another version of the driver and of the kernel, and report it with both figures",
        )  # fmt: skip
    # What is known only by its bound can have been nearer to it before.
    about = case.open or tuple(
        v for v in case.figures if v.bound and not v.typical and (v.value or 0) < v.bound * _WELL_BELOW
    )
    return observed(case, "the figure changed with a version", about) if case.seen.changed_with_version else None


@rule(
    "storage",
    tier="run",
    source="time is spent reading storage; hosttune's own measurement: disk-read, disk-random-read",
    remedy="read from a local disk or a cache; NVMe settings: hosttune plan with profile host",
    confirm="hosttune validate --level 1 --scratch DIRECTORY there (disk-read, disk-random-read)",
)
def storage(case: Case) -> Finding | None:
    """Reading storage limits the run."""
    if case.seen.storage_bound and (case.open or case.complaint):
        return supports("observed", ("the run waits for storage",), case.about((*STORAGE, *WORK)))
    low = case.low(STORAGE)
    slow = tuple(judged for judged in case.about(STORAGE) if _SLOW_KINDS.search(judged.figure.subject[:400])) or low
    if case.seen.input_bound and slow:
        return observed(case, f"the run waits for its input; {slow[0].name}", slow)
    return supports("fits", tuple(f"{verdict.name}: {verdict.why}" for verdict in low), low) if low else None


@rule(
    "data-loader",
    tier="run",
    source="time is spent preparing input on CPUs",
    remedy="more loader processes on the guest's own CPUs, prepared data, pinned buffers",
    confirm="the same run on data that is already in memory",
    unread=("input_bound", WORK, "whether it waits for its input was not read", "possible"),
)
def loader(case: Case) -> Finding | None:
    """Preparing the input limits the run."""
    workers = [name for name in case.environment if re.search(r"NUM_?WORKERS$", name)]
    if few := [f"{name}={case.environment[name]}" for name in workers if case.environment[name] in ("0", "1")]:
        return observed(case, few[0], case.about(WORK))
    return (
        supports("observed", ("the run waits for its input",), case.about(WORK))
        if case.seen.input_bound and (case.open or case.complaint)
        else None
    )
