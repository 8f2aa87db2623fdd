"""Runs of one test under different commands: the slower one is bound to CPUs as the faster one is not."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec.structs import replace

from hosttune.model.measured import Figure, Stated
from hosttune.model.text import number
from hosttune.rules.causes.equals import SPREAD
from hosttune.rules.causes.ports import OF_IPERF2

BOUND = Stated(
    says="the slower run is bound to CPUs that are far from its device, or too few", line="",
    remedy="bind it to the device's node, CPUs and memory: numactl -N NODE -m NODE (numa_node of the device in sysfs);"
    " mpirun --bind-to numa or none, srun --cpu-bind=none",
    source="Open MPI documentation, mpirun(1), --bind-to; NVIDIA/nccl issue 644; perftest README",
)  # fmt: skip
ONE_THREAD = Stated(
    says="one CPU takes all streams of iperf3: it carries less than iperf 2", line="",
    remedy="iperf3 3.16 or later with several streams (-P 8), or several of older ones (-p 5202 …), each on a CPU",
    source="esnet/iperf RELNOTES.md, 3.16: a thread for each stream",
)  # fmt: skip
_COMMAND = re.compile(
    r"(?m)^(?:[^\n]{0,80}?[$#>%+] {0,2})?"
    r"((?:sudo |time |[A-Z_]{1,40}=\S{1,80} )?"
    r"(?:taskset|numactl|mpirun|mpiexec|srun|(?:\./|/)?[\w./-]{0,80}?(?:ib_\w{4,12}|osu_\w{2,20}|\w{4,20}_perf))\b[^\n]{0,900})"
)
_BINDS = re.compile(
    r"\b(?:taskset -?-?c\w* ?\S{1,40}|numactl( -{1,2}\w\S*( \d\S*)?){1,4})|--(?:cpu-bind|bind-to)[ =](?!none)\S{1,40}"
)


def last_command(text: str) -> str:
    """Return the last command of a benchmark in a text; "" if there is none."""
    commands = _COMMAND.findall(text)
    return commands[-1].strip() if commands else ""


def of_runs(runs: Sequence[tuple[str, Sequence[Figure]]]) -> tuple[Stated, ...]:
    """Return that a run is slower where it is bound to CPUs, or with iperf3. `runs`: command and figures of each."""
    tcp = [(OF_IPERF2 in figure.subject, figure) for _, figures in runs for figure in figures if figure.metric == "tcp"]
    of2, of3 = (max((figure.value or 0 for is2, figure in tcp if is2 is which), default=0) for which in (True, False))
    if len({figure.unit for _, figure in tcp}) == 1 and 0 < of3 * SPREAD < of2:
        return (replace(ONE_THREAD, line=f"iperf 2: {of2:g} {tcp[0][1].unit}, iperf3: {of3:g}"),)
    for command, figures in runs:
        binding = _BINDS.search(command)
        for other, others in runs if binding else ():
            pairs = [(slow, fast) for slow in figures for fast in others if _key(slow) == _key(fast)]
            slow, fast = max(pairs, key=lambda pair: pair[0].size_bytes or 0, default=(None, None))
            apart = slow and fast and slow.value and fast.value and slow.value * SPREAD < fast.value
            if binding and binding[0] not in other and other and apart and slow and fast:
                line = f"{binding[0]}: {number(slow.value)} {slow.unit}, else {number(fast.value)}"
                return (replace(BOUND, line=line),)
    return ()


def _key(figure: Figure) -> tuple[object, ...]:
    return figure.metric, figure.subject, figure.size_bytes, figure.unit
