"""Output of tools, as people paste it → what is known of a machine. What was not understood is quoted with its line.

Parsers of benchmarks are those of `hosttune.bench.parse`; a maker's own tools are read in `hosttune.gpu.logs`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, dropwhile, islice, takewhile
from typing import Any

import msgspec

from hosttune.bench.parse import nccl, nvbandwidth, tools
from hosttune.bench.parse.answer import NotJudged, NotUnderstood, ParsedOutput
from hosttune.errors import BadInput
from hosttune.gpu.logs import LOGS
from hosttune.model.diagnosis import Doubt
from hosttune.model.limits import check_count
from hosttune.model.listing import some
from hosttune.model.measured import Measured, Nics, Observations, Setup, Stated, Transport
from hosttune.rules.causes.clusterlines import PROGRAMS
from hosttune.rules.causes.commands import BOUND, last_command, of_runs
from hosttune.rules.causes.equals import SPREAD
from hosttune.rules.causes.faultlines import EACH_ALONE, SOFTWARE_RDMA
from hosttune.rules.causes.gathering import figures_of, of_gpus
from hosttune.rules.causes.kernel import KERNEL, WITHIN
from hosttune.rules.causes.labels import rejoined, unlabelled
from hosttune.rules.causes.lspci import groups, machine_of
from hosttune.rules.causes.merging import merge
from hosttune.rules.causes.osu import osu
from hosttune.rules.causes.pairs import PAIRS, pairs
from hosttune.rules.causes.people import SEVERAL, of_people
from hosttune.rules.causes.ports import RAILS, counters, ethtool, interfaces, iperf, rdma_ports
from hosttune.rules.causes.rates import RATES, rates
from hosttune.rules.causes.search import distinct, search
from hosttune.rules.causes.stated import SPOKEN, lines_of, spoken, stated

_HINT = "save the whole output of one run"
_FIRST = 1 << 20  # characters in which a tool's sign is looked for
_WRITTEN = 1 << 17  # in which people's own words are: they stand around short logs
_VIRTUAL = r"(?m)^[0-9a-f:]{5,13}\.[0-7] \S[^\n]{0,200}Virtual Function"
_NEAR_COMMAND = 1000  # characters before a run
_QUOTED, _MOST_COUNTED = 5, 1000  # lines that were not understood
_DETECTED = (
    r"systemd-detect-virt\b[^\n]{0,40}\n(?:kvm|qemu|vmware|microsoft|xen|amazon|oracle|google)\b"
    r"|\bHypervisor detected: (?!Xen)\w|\bDMI: (?:QEMU|VMware|Amazon EC2|Microsoft Corporation Virtual)"
)
_FORMS, _LINE = 3, 160  # of lines that name no cause; characters of each
# QEMU's lines, but for warnings and the end that it was told.
_UNRULED = "an error that no rule knows"
_TOLD = r"(?!warning:|[^\n]{0,400}(?:: warning: |terminating on signal))"
_QEMU = rf"qemu-system-\w{{1,16}}: {_TOLD}|qemu-kvm: {_TOLD}|(?m:^)kvm: {_TOLD}"
_MANAGERS = (
    r"TASK ERROR: |(?m:^)error: (?:Failed to|internal error|unsupported conf|operation failed|Requested op|XML error)"
    r"|\bPCIPassthru: |\besxcli \w|of PCI Express endpoint devices|\blibxl: |\(XEN\) |\bconf-compute\b"
    r"|(?m:^)[ \t]{1,8}Active: \w{2,12} \(|(?m:^)[ \t]{0,8}Fabric\n[ \t]{1,16}State |\bivshmem\w{0,8} "
    r"|qemu-(?:system-\w{1,16}|kvm): warning"
)
_TROUBLE = (
    ("NCCL WARN ", r"NCCL WARN [^\n]{1,200}", "a warning of the library that no rule knows"),
    ("AER: ", r"AER: [^\n]{0,60}(?:received|Multiple)[^\n]{0,80}",
     "PCIe errors were reported; the lines with severity and type (PCIe Bus Error, in dmesg) say which"),
    ("failed, status ", r"\b[A-Za-z]\w{3,40}\(0x[0-9a-f]{1,4}\)[^\n]{0,40} failed, status [^\n]{1,60}",
     "the NIC's firmware refused a command of its driver"),
    ("Xid (", r"Xid \([^()\n]{1,40}\): 45\b(?![^\n]{0,200}previous Xid)[^\n]{0,120}",
     "work on the GPU was ended, after another error or with its process; no other XID is here"),
    ("panic: ", r"(?m:^)[^\n]{0,60}\bpanic: [^\n]{1,200}", "a program ended itself, for a reason that no rule knows"),
    ("No irq handler", r"No irq handler for vector", "an interrupt without a handler: seldom a fault"),
    ("qemu-", rf"qemu-(?:system-\w{{1,16}}|kvm): {_TOLD}[^\n]{{1,200}}", _UNRULED),
    ("kvm: ", rf"(?m:^)kvm: {_TOLD}[^\n]{{1,200}}", _UNRULED),
    ("TASK ERROR: ", r"TASK ERROR: (?!start failed: QEMU exited)[^\n]{1,200}", _UNRULED),
    ("error: ", r"(?m:^)error: (?!Failed to (?:start|define|create) domain|[^\n]{1,300}(?:qemu-|kvm: ))[^\n]{1,200}",
     _UNRULED),
    ("ailed", r"(?:\b[a-z][\w-]{1,20} (?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b|NVRM:) [^\n]{0,140}?\b[Ff]ailed"
     r"\b[^\n]{0,60}", "a driver reports a failure that no rule knows"),
)  # fmt: skip
_BAD = re.compile(
    r"(?i)(?<!0 )\b(?:error(?!\w{0,8}[\"']?\s?[:=]\s?0\b)|failed(?!\s?[:=]\s?0\b)|failure|fatal|panic|cannot|could not"
    r"|unable to(?! resolve host)|refused|denied|timed out|no such|aborted|killed|out of memory"
    r"|not (?:found|allowed|permitted|viable)|mismatch)\b"
)
_WORST = re.compile(r"(?i)\b(?:panic|fatal|error)\b:")
_TELLS = "tells of trouble that no rule knows"
# Of tools whose faults are lines of `faultlines`, and of listings that hold none.
_OTHERS = (
    r"(?m)^\[RESULT\] +\[ *\d|^port \d{1,2}:\s{1,8}(?:UP|DOWN)\b|_VIOLATION_STATUS: "
    r"|Available Tensor Operations:|Device interconnect StreamExecutor|images/sec: \d|HPLinpack \d"
    r"|^(?:# )?CONFIG_[A-Z0-9_]{2,60}(?:=[ym]| is not set)|^(?:kernel|vm)\.[a-z_]{4,40} = \d"
    r"|GPU pairs are enabled direct access|\| (?:Des|As)serted[ \t]*$|^[ \t]*Performance State[ \t]*: P\d"
    r"|\| (?:Integration|Performance|Software|Hardware) [\w ]{3,20}\| Result: |\| (?:GPU|Device) ID +\| Device"
    r"|^analyzing CPU \d|^#Entity  |^ {0,4}Device \d{1,2} \[[^]\n]{4,60}\] PCIe GEN "
    r"|^(?:\[\d\] )?[A-Z][^|\n]{4,60} \| +\d{1,3}'C,|^HSA System Attributes$"
    r"|^GPU +(?:XCP +)?POWER |^Module {6,40}Size  Used by|^ +total +used +free |\| GPU instances: "
    r"|^(?:performance|powersave|schedutil|ondemand)\r?$|scaling_(?:governor|driver):|^Scenario : |^Result is : "
    r"|elapsed time per iteration \(ms\)|^GPU\[\d{1,3}\]\s*: (?:Performance Level|sclk clock level|GPU use)"
)
_PROMPT = re.compile(r"(?:\[[^]\n]{1,80}\]|\S{0,80})[$#>] \S|```")
_VARIABLE = re.compile(r"\b((?:NCCL|RCCL|CUDA|HSA|FI|UCX)_[A-Z0-9_]{1,64})=[\"']?([^\s\"'\\;]{1,200})")
# Lines that set variables: assignments alone or before a command, options of launchers; not what a text says of them.
_SETS = (
    r"(?:\S{0,80}[#$>] ?)?\s{0,20}(?:(?:export|declare -x|ENV|env|-x|-e|--env)[ =]{1,4})?[\"']?[A-Z][A-Z0-9_]{1,64}=\S"
    r"|(?![^\n]{0,400}\bNCCL (?:INFO|WARN))[^\n]{0,2000}?"
    r"(?:(?: -x| -e| --env| -genv|export) [\"']?[A-Z][A-Z0-9_]{1,64}=|\b(?:mpirun|srun|torchrun|docker)\b|_perf\b)"
)


class Log(msgspec.Struct, frozen=True):
    """One tool: its name for messages, a pattern that its output has, and its reader (BadInput, NotUnderstood).

    `begin`: with what each of several runs begins. `lines`: its lines, where others can stand between them.
    `everyone`: all ranks write into one output. `also`: other patterns, one of which is enough.
    """

    name: str
    sign: str
    read: Callable[[str], Measured]
    begin: str = ""
    lines: str = ""
    everyone: bool = False
    also: tuple[str, ...] = ()

    def is_in(self, text: str) -> bool:
        """Return whether its output is there."""
        part = text if self.everyone else text[:_FIRST]
        return any(search(pattern, part) for pattern in (self.sign, *self.also))


def read_log(text: str, where: str) -> tuple[Measured, str, tuple[Doubt, ...]]:
    """Return what a log shows, the names of its tools, and what of it is not used.

    Raises BadInput for output that no reader understands.
    """
    check_count(text.count("\n"), "lines of a log", where)
    lines = unlabelled(text)
    del text  # with those of other alphabets a log takes several times its size
    whole = "\n".join(line for _, line in lines)
    tools = _tools(whole)
    if not tools and (tools := _tools(rejoined(whole))):
        whole = rejoined(whole)
    if not tools and ((told := [*islice(_trouble(whole, where), _FORMS)]) or re.search(PROGRAMS, whole)):
        return Measured(version=1), "no tool that hosttune reads", tuple(told)
    if not tools:
        known = ", ".join(log.name for log in logs())
        raise BadInput("not the output of a tool that hosttune reads", where=where, hint=f"give that of {known}")
    ranks: dict[str, list[str]] = {}
    if any(who for who, _ in lines):
        for who, line in lines:
            ranks.setdefault(who, []).append(line)
    del lines
    outputs = {who: "\n".join(lines) for who, lines in ranks.items()} if len(ranks) > 1 else {"": whole}
    # A launcher such as pdsh starts a run on each host: that they do not talk with each other is no fault.
    apart = len(ranks) > 1 and {host for host, _ in _RANK.findall(whole)} == set(outputs)
    together = "\n".join(outputs.values()) if apart else whole
    parts: list[tuple[str, Measured]] = []
    unused: list[Doubt] = []
    for log in tools:
        runs = [
            (who, command, run)
            for who, output in ({"": together} if log.everyone else outputs).items()
            for command, run in _runs(log, output)
        ]
        check_count(len(runs), "figures of a diagnosis", where)  # each run has one at least
        on = [dict(_RANK.findall(run)) for *_, run in runs] if len(runs) > 1 else []
        if len(set().union(*on)) > 1 and all(len(hosts) == 1 for hosts in on):  # a run of each host
            runs = [(who or " ".join(hosts), command, run) for (who, command, run), hosts in zip(runs, on, strict=True)]
        several = len({who for who, *_ in runs}) > 1
        commanded = []
        for who, command, run in runs:
            try:
                measured = log.read(run)
            except (NotUnderstood, BadInput) as error:
                why = f"output of {log.name}: {error.what}"
                unused.append(Doubt(what="output that is not used", where=f"{where} {who}".strip(), why=why))
                if isinstance(error, NotJudged):
                    parts.append((where, Measured(version=1)))
            else:
                figures = (
                    msgspec.structs.replace(figure, subject=f"{who}: {figure.subject}") for figure in measured.figures
                )
                said = msgspec.structs.replace(measured, figures=tuple(figures)) if several else measured
                parts.append((f"{where} {who}".strip(), said))
                commanded.append((command, said.figures))
        if bound := of_runs(commanded):
            parts.append((where, Measured(version=1, observations=Observations(stated=bound))))
    if not parts:
        raise BadInput(unused[0].why, where=where, hint=_HINT)
    merged, doubts = merge(parts)
    if not merged.observations.stated:
        merged, doubts = merge([*parts, (where, of_people(whole[:_WRITTEN], merged.setup.nics))])
    unread = _not_understood(tools, whole, where)
    if re.search(_VIRTUAL, whole):
        why = "reserved there: those of its physical function hold, which the host shows"
        unused.append(Doubt(what="PCIe settings of a virtual function", where=where, why=why))
    return merged, " and ".join(log.name for log in tools), (*doubts, *unused[:_QUOTED], *_noted(whole, where), *unread)


def _tools(text: str) -> list[Log]:
    return [log for log in logs() if log.is_in(distinct(text) if log.everyone else text)]


def _runs(log: Log, output: str) -> list[tuple[str, str]]:
    """Return the last command before each run of a tool in a text, and the run's output."""
    if not log.begin and log.everyone:
        return [("", output)]  # its sign was looked for
    starts = [match.start() for match in re.finditer(rf"(?m){log.begin}", output)] if log.begin else []
    bounds = zip([0, *starts], [*starts, len(output)], strict=True)
    return [
        (last_command(output[max(0, start - _NEAR_COMMAND) : start + sign.end()]) if starts[1:] else "", run)
        for start, end in bounds
        if (sign := re.search(log.sign, run := output[start:end]))
    ]


def _trouble(text: str, where: str) -> Iterator[Doubt]:
    """Yield the lines of a text that tell of trouble, for people to read: nothing says what wrote them."""
    bad = islice(
        ((number, line) for number, line in enumerate(text.split("\n"), 1) if _BAD.search(line)), _MOST_COUNTED
    )
    for number, line in sorted(bad, key=_rank):
        yield Doubt(what=_TELLS, where=f"{where}:{number}", why=repr(line[:_LINE]))


def _rank(row: tuple[int, str]) -> bool:
    """Sort lines of trouble: those that say "error:", "fatal:" or "panic:" first."""
    return not _WORST.search(row[1])


def _noted(text: str, where: str) -> Iterator[Doubt]:
    """Yield lines that tell of trouble and name no cause: of each kind the first of its forms."""
    xids = set(re.findall(r"Xid \([^()\n]{1,40}\): (\d{1,4})\b", text)) if "Xid (" in text else set()
    for word, pattern, why in _TROUBLE:
        forms: set[str] = set()
        for match in re.finditer(pattern, text) if word in text else ():
            line = text[text.rfind("\n", 0, match.start()) + 1 : match.end()]
            form = re.sub(r"\d+", "", match[0])
            if len(forms) == _FORMS or form in forms or spoken(line):
                continue
            if (word == "AER: " and "PCIe Bus Error" in text) or (word == "Xid (" and xids != {"45"}):
                continue
            forms.add(form)
            number = text.count("\n", 0, match.start()) + 1
            yield Doubt(what=why, where=f"{where}:{number}", why=repr(line.strip()[-_LINE:]))


def _not_understood(tools: Sequence[Log], text: str, where: str) -> Iterator[Doubt]:
    """Yield the first lines that belong to none of the tools, with their numbers, and how many more there are.

    Those that tell of trouble come first.
    """
    mixed = re.compile("|".join(log.lines for log in logs() if log.lines))
    lines = text.split("\n")
    ends = list(accumulate(len(line) + 1 for line in lines))
    signs = (match.start() for log in tools if not log.lines for match in re.finditer(log.sign, text))
    starts = {bisect_right(ends, place) for place in signs}
    inside, unread = False, list[tuple[int, str]]()
    for number, line in enumerate(lines, 1):
        if _PROMPT.match(line) and number - 1 not in starts:
            inside = False
        elif not inside and not mixed.match(line) and not spoken(line):
            inside = number - 1 in starts
            if re.search(r"\w", line) and not inside:
                unread.append((number, line.strip()))
                if len(unread) > _MOST_COUNTED:
                    break
    bad = sorted((row for row in unread if _BAD.search(row[1])), key=_rank)[:_FORMS]
    for number, line in [*bad, *(row for row in unread if row not in bad)][:_QUOTED]:
        what = _TELLS if (number, line) in bad else "not understood"
        yield Doubt(what=what, where=f"{where}:{number}", why=repr(line[:120]))
    if len(unread) > _QUOTED:
        more = (
            f"more than {_MOST_COUNTED - _QUOTED}" if len(unread) > _MOST_COUNTED else f"{len(unread) - _QUOTED} more"
        )
        yield Doubt(what="not understood", where=where, why=f"{more} lines")


def logs() -> tuple[Log, ...]:
    """Return every tool whose output is read."""
    own = (
        Log("nccl-tests", rf"(?m)^#?[ \t]+Rank[ \t]+[0-9]+[ \t].*device|^#?.*\balgbw\b.*\bbusbw\b|^{_NCCL_ROW}",
            _nccl_tests, begin=r"^#? *nThread:? +\d",
            lines=r"#|\s*\d{1,15}\s+\d{1,15}\s+\w+\s|\s*\d+\.\d+(?:\s+\d+\.\d\d){2}\s|\s*(?:Rank +\d|Using devices)"),
        Log("NCCL_DEBUG=INFO", r"(?m)\bNCCL (?:INFO (?!Launch mode)|WARN )", _nccl_debug,
            lines=r".*\bNCCL (?:INFO|WARN|TRACE|version)\b", everyone=True),
        Log("environment variables", rf"(?m)^(?:{_SETS})", _variables, lines=_SETS, everyone=True),
        Log("perftest", rf"(?m)^.*{_PORT_TEST}|^[ \t]*#bytes[ \t]+#?iterations[ \t]+BW peak", _perftest,
            begin=rf"^(?:.*device name = \[(?:.*\n){{1,12}}?)?.*{_PORT_TEST}"),
        Log("OSU Micro-Benchmarks", r"(?m)^# OSU MPI.* Test\b", osu, begin=r"^(?:.*\bosu_\w+\b.*\n)?\n?# OSU MPI",
            lines=r"\d{1,12}(?:[ \t]+\d{1,9}\.\d{2}){1,6}(?:[ \t]+\d{1,9})?[ \t]*$"),
        Log("lines of drivers and the kernel", rf"(?m:^){KERNEL}", lines_of, everyone=True,
            also=(*WITHIN, *SPOKEN, _QEMU, _MANAGERS, RAILS, r"\bgim (?:info|warning)\b",
                  r"Peer access from [^\n]{1,120} : Yes\b",
                  r"\|[ \t]{0,4}(?:Overall Health|(?:Warning|Error)[ \t]{6,24}\|[ \t]{1,4}GPU \d"
                  r"|[A-Za-z][\w ]{2,28}\|[ \t]{1,4}(?:Pass|Fail)\b)"),
            lines=rf"{KERNEL}|[^\n]{{0,120}}?(?:\bkernel:[ \[]|\bNVRM: )|[|+][ =|+-]"),
        Log("ibstat", r"(?m)^[ \t]*CA '[^'\n]{1,64}'"
            r"|\bibstat \w{1,24} ?\|[^\n]{1,80}\n(?:[^\n]{0,60}\n){0,3}?[ \t]+Rate: \d"
            r"|^[ \t]*Infiniband device '[^'\n]{1,64}' port \d"
            r"|^[ \t]*hca_id:|^[ \t]*(?:\d+/\d+: |link )[\w.-]{1,64}/\d{1,3}:? [^\n]{0,160}physical_state "
            r"|^[ \t]*[\w.-]{1,64}[ \t]{1,8}port[ \t]{1,8}\d{1,3}[ \t]{1,8}==>[ \t]{1,8}(?!ib)",
            rdma_ports),
        Log("ip link or ifconfig", r"(?m)^[ \t]*\d{1,4}: [\w.@-]{1,32}: <[A-Z0-9_,-]{2,120}> mtu \d"
            r"|^[\w.@-]{1,32}: flags=\d{1,6}<|^\S{1,32} {1,9}Link encap:", interfaces),
        Log("a table of pairs of hosts", PAIRS, pairs),
        Log("rates of numbered GPUs", RATES, rates, lines=rf"[^\n]{{0,80}}?{RATES}"),
        # Their faults are lines of `faultlines`.
        Log("tools of GPUs", _OTHERS, nothing_more),
        Log("iblinkinfo", r"==\([^)\n]{0,80}/[^)\n]{0,20}\)==>", nothing_more,
            lines=r"Switch: 0x|CA: \S|[^\n]{1,60}==\("),
        Log("mlxlink", r"(?m)^[ \t]*Operational Info[ \t]*$", nothing_more),
        Log("show_gids", r"(?m)^[ \t]*DEV[ \t]+PORT[ \t]+INDEX[ \t]+GID", nothing_more),
        Log("ethtool -S", r"(?m)^[ \t]*(?:rx_(?:packets|discards|out_of_buffer|prio)\w{0,40}: \d"
            r"|# Port (?:extended )?counters:|(?:PortSelect|SymbolErrorCounter|PortRcvErrors):\.)", counters),
        Log("tools of RDMA ports", r"(?m)^# ?Memory domain: |^provider: \S|^[ \t]*Priority trust state: |Latency Test$"
            r"|^[ \t]*link \S{1,64}/\d{1,3}\s{1,8}rx_write_requests |^PING \S{1,253} \(|/hw_counters/\w{1,60}:\d"
            r"|^# {1,8}component \d{1,2} {1,4}: |^(?:\[\d{1,6}\] )?MPI startup\(\): |^# Port info: Lid \d"
            r"|^\S{1,40}:\d {8,40}PortGID:0x|TCP (?:STREAM|MAERTS|RR) TEST from |# Benchmarking \w"
            r"|[^\n]{0,60}\|CCL_(?:WARN|ERROR)\|",
            nothing_more),
        Log("ethtool -a or -m", r"(?m)^[ \t]*(?:Pause parameters for |Identifier {2,40}: 0x)", nothing_more),
        Log("iperf", r"(?m)^(?:Connecting to host \S+, port \d|Client connecting to \S+, |Server listening on \d"
            r"|\[[ \dSUM]{2,4}\] .*\d [GM]bits/sec)", iperf,
            begin=r"^(?:Connecting to host |Client connecting to |Server listening on )"),
        Log("ethtool", r"(?m)^[ \t]*Settings for [\w.@-]{1,32}:", ethtool),
        Log("nvbandwidth", r"(?m)\bnvbandwidth Version|\"nvbandwidth\"|^(?:> )?Running \w+_(?:ce|sm)\."
            r"|^memcpy CE [CG]PU\(row\) ", _nvbandwidth, begin=r"^nvbandwidth Version"),
        Log("fio", r'"fio version"', _fio),
        Log("numactl --hardware", r"(?m)^available: \d{1,4} nodes? \(|^[ \t]*NUMA node\(s\): ", _nodes),
        Log("systemd-detect-virt", _DETECTED, lambda text: Measured(version=1, setup=Setup(virtual=True)),
            lines=r"(?:kvm|qemu|vmware|microsoft|xen|amazon|oracle|google)$"),
        Log("lspci -t", r"(?m)^-(?:\+-)?\[[0-9a-f]{4}:[0-9a-f]{2}", nothing_more,
            lines=r"[ \t|]{0,80}[-+\\][-+]{0,4}[\[0-9a-f]|[ |]{4,80}$"),
        Log("a listing of IOMMU groups", r"(?m)^[ \t]{0,8}IOMMU [Gg]roup \d{1,4}\b", groups),
        Log("lspci -vvv", r"(?m)^(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] (?:\S.*\n\s"
            r"|[\w /-]{0,40}\b(?:controller|accelerators|bridge)\b[^\n:]{0,12}: \S)|LnkCap:.{0,80}Speed"
            r" |LnkSta:.{0,80}\(downgraded\)|ACSCtl:",
            machine_of),
    )  # fmt: skip
    makers = tuple(
        Log(log.name, log.sign, log.machine or (lambda text, log=log: of_gpus(log.gpus(text))), log.begin)  # type: ignore[misc]
        for log in LOGS
    )
    return (*own, *makers)


def nothing_more(text: str) -> Measured:
    """Read output whose faults are lines that other readers know."""
    return Measured(version=1)


# --- readers -----------------------------------------------------------------------------------------------------

_NCCL_ROW = (  # size, count, type, (redop, (root,)) time, algbw, busbw, errors
    r"[ \t]*\d{1,15}[ \t]+\d{1,15}[ \t]+[a-z]\w{2,9}(?:[ \t]+[a-z]\w{2,9})?(?:[ \t]+-?\d{1,4})?"
    r"[ \t]+\d{1,9}(?:\.\d{1,3})?"
    r"[ \t]+(\d{1,5}\.\d\d)[ \t]+(\d{1,5}\.\d\d)[ \t]+\S{1,8}[ \t]+\d"
)
# Lines of the library between the halves of a row, and glued to them: rows are printed in parts.
_LOGGED = re.compile(r"[A-Za-z][\w.-]{0,200}:\d{1,10}:\d{1,10} \[\d{1,4}\] NCCL [^\n]*\n")
_MATRIX = r"(?m)^[ \t]*D\\D[ \t].*\n(?:[ \t]*\d.*\n?)*"  # of p2pBandwidthLatencyTest, which people run, too
_RUNS = ("first", "second", "third", "fourth")
_NEAR = 0.02  # of the factor that the ranks give
_MOST_FACTOR = 1.95  # of more ranks the factor is too near 2
_RANK = re.compile(r"(?m)^#?[ \t]+Rank[ \t]+[0-9]+[ \t].*?\bon\s+(\S+)\s+device\s+[0-9]+\s+\[[^\]]*\]\s+(\S.*?)\s*$")


def _variables(text: str) -> Measured:
    lines = (line for line in text.split("\n") if re.match(_SETS, line))
    variables = {name: value.rstrip(",") for line in lines for name, value in _VARIABLE.findall(line)}
    return Measured(version=1, setup=Setup(environment=variables))


def _nccl_tests(text: str) -> Measured:
    """Read the tables of nccl-tests; several with words between them are compared. Raises BadInput."""
    text = re.sub(_MATRIX, "", _LOGGED.sub("", text))
    tables = _tables(text)
    if not 1 < len(tables) <= len(_RUNS):
        return _nccl_table(text)
    ranks = "".join(row[0] + "\n" for row in _RANK.finditer(text))
    runs = [_nccl_table(table if _RANK.search(table) else ranks + table) for table in tables]
    figures = [
        msgspec.structs.replace(figure, subject=f"{figure.subject}, {name} run")
        for name, run in zip(_RUNS, runs, strict=False)
        for figure in run.figures
    ]
    alone, started = ([n for n, table in enumerate(tables) if _by_mpirun(table) is by] for by in (False, True))
    pairs = [
        (figure.size_bytes or 0, figure.value or 0, launched.value or 0)
        for figure in (runs[alone[0]].figures if alone else ())
        for launched in (runs[started[0]].figures if started and "--bind-to none" not in tables[started[0]] else ())
        if figure.size_bytes == launched.size_bytes
    ]
    size, one_process, by_mpirun = max(pairs, default=(0, 0, 0))
    line = f"{size:.0f} bytes: {one_process:g} and {by_mpirun:g} GB/s"
    stated = (msgspec.structs.replace(BOUND, line=line),) if by_mpirun * SPREAD < one_process else ()
    return Measured(version=1, setup=runs[0].setup, figures=tuple(figures), observations=Observations(stated=stated))


def _by_mpirun(table: str) -> bool | None:
    """Return whether the words above a table say that mpirun started the ranks; None if there are none."""
    row = re.search(rf"(?m)^{_NCCL_ROW}", table)
    words = re.sub(r"(?m)^#.*|(?:no|without) mpi(?:run|exec)", "", table[: row.start()]) if row else ""
    return bool(re.search(r"\bmpi(?:run|exec)\b", words)) if row and words.strip() else None


def _tables(text: str) -> list[str]:
    """Return the tables of a text: a new one begins where sizes fall, and words without # stand between."""
    starts, size, end = [0], 0, 0
    for row in re.finditer(rf"(?m)^{_NCCL_ROW}.*", text):
        if int(row[0].split()[0]) < size and re.search(r"(?m)^[ \t]*[A-Za-z$]", text[end : row.start()]):
            starts.append(end)
        size, end = int(row[0].split()[0]), row.end()
    return [text[start:stop] for start, stop in zip(starts, [*starts[1:], len(text)], strict=True)]


def _nccl_table(text: str) -> Measured:
    rates = [(float(busbw), float(algbw)) for algbw, busbw in re.findall(rf"(?m)^{_NCCL_ROW}", text)]
    if rates and not max(rates)[0] and max(rates)[1] >= 1:
        says, remedy, source = EACH_ALONE[1:4]
        alone = Stated(says=says, line="busbw 0.00 in every row", remedy=remedy, source=source)
        return Measured(version=1, observations=Observations(stated=(alone,)))
    ran, text = _ranks_that_ran(text, rates)
    busbw, algbw = max(rates, default=(0.0, 0.0))
    if algbw and not _RANK.search(text) and not ran and _MOST_FACTOR <= busbw / algbw <= 2:
        raise NotJudged("nccl-tests", "how many ranks ran, 40 or more, is not in it")
    rows = [row[0].rstrip() for row in re.finditer(rf"(?m)^{_NCCL_ROW}.*", text)]
    names, other = _collectives(rows)
    answers, errors = [], []
    for collective in names:  # the factor between its two rates tells which one it is
        try:
            answers.append(nccl.parse(text, collective))
        except NotUnderstood as error:
            errors.append(error)
    if not answers:
        raise NotJudged("nccl-tests", f"a test that is not judged: {other}") if other else errors[0]
    ranks = _RANK.findall(text)
    hosts, models = {host for host, _ in ranks}, {model for _, model in ranks}
    many = len(hosts) or None
    each = len(ranks) // many if many and len(ranks) % many == 0 else None
    if ran and ranks:  # the last one listed: its device tells how many each host has
        final = ran - 1
        last = re.search(rf"(?m)^#?[ \t]+Rank[ \t]+{final}\b.*?\bdevice[ \t]+(\d{{1,3}})\b", text)
        each = int(last[1]) + 1 if last and ran % (int(last[1]) + 1) == 0 else None
        many = ran // each if each else None
    setup = Setup(gpu=models.pop() if len(models) == 1 else None, hosts=many, gpus_per_host=each)
    return Measured(version=1, setup=setup, figures=_figures(answers[0]))


def _collectives(rows: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Return which collectives a table can be of, and which other one has its form ("": none).

    A test without runs in place has N/A for their errors; one with a root has its number, where others have -1.
    """
    if any(row.endswith("N/A") and row.count("N/A") == 1 for row in rows):
        return ("all-to-all", "send-recv"), "hypercube, whose busbw bounds no link"
    roots = [re.search(r" ([a-z]\w+)[ \t]+(\d{1,4})(?:[ \t]+[\dN][^ \t]{0,15}){8}$", row) for row in rows]
    if roots and all(roots):
        reduces = {root[1] for root in roots if root} & {"sum", "prod", "min", "max", "avg"}
        return ("reduce",) if reduces else ("broadcast",), "gather or scatter, which the root alone limits"
    return ("all-reduce", "all-gather"), ""


def _ranks_that_ran(text: str, rates: Sequence[tuple[float, float]]) -> tuple[int, str]:
    """Return how many ranks ran where a text lists none or a part of them, and the text with each; (0, the text) else.

    Of all_reduce bus bandwidth is 2(n-1)/n times the algorithm's, of all_gather and its like (n-1)/n times.
    """
    listed = len(set(re.findall(r"(?m)^#?[ \t]+Rank[ \t]+(\d{1,6})\b", text)))
    factor = max(rates)[0] / max(rates)[1] if rates and max(rates)[1] else 0.0
    fitting = [1.0, *(count * (listed - 1) / listed for count in (1, 2))] if listed > 1 else []
    if not factor or any(abs(factor - fits) < _NEAR * fits for fits in fitting):
        return 0, text
    ran = round(2 / (2 - factor)) if 1.2 < factor < _MOST_FACTOR else 0
    ran = round(1 / (1 - factor)) if 0.6 < factor < _MOST_FACTOR - 1 else ran
    if round(factor, 2) == 1 and re.search(
        r"(?m)^[ \t]*\d+[ \t]+\d+[ \t]+\w+[ \t]+sum[ \t]+-1\b(?!.*N/A[ \t]*$)", text
    ):
        ran = 2  # only all_reduce has an operation and no root
    return ran, "".join(f"# Rank {rank} \n" for rank in range(ran)) + text


def _figures(answer: ParsedOutput) -> tuple[Any, ...]:
    return tuple(figures_of(answer.samples))


_RATES = 5  # cells of a row with the rate of messages
_ETHERNET, _FULL = (1.0, 2.5, 5.0, 10.0, 25.0, 40.0, 50.0, 100.0), 0.88  # Gb/s of ports; RoCE's part of small frames
_FRAMED, _FRAMED_GBPS = 1 << 15, 10  # bytes of a message; of slower ones the size of frames is no matter
_FRAMES = Stated(
    says="frames of RoCE are small, 1024 bytes: the interface has its default MTU of 1500", line="",
    remedy="ip link set DEV mtu 9000 (4200 is enough) on both hosts, and as much on the switch: ibv_devinfo then has"
    " active_mtu 4096; then compare the rate with the port's",
    source="NVIDIA, MTU considerations for RoCE based applications",
)  # fmt: skip
_PORT_TEST = r"(?:RDMA_Write|RDMA_Read|Send) (?:Post List )?(Bidirectional )?BW Test"


def _perftest(text: str) -> Measured:
    """Read ib_write_bw, ib_read_bw and ib_send_bw: the rate of a port, of the host's memory or a GPU's."""
    device = re.search(r"(?m)\bDevice\s*:\s*(\S{1,64})", text)
    title, layer = re.search(_PORT_TEST, text), re.search(r"(?m)^ *Link type *: (IB|Ethernet)", text)
    gpu = re.search(r"device name = \[([^]\n]{1,80})\]", text)
    reads, both = title and title[0].startswith("RDMA_Read"), title and title[1]
    rows = ((reads, "reads"), (both, "both directions"), (gpu, "GPU memory"))
    words = [device[1] if device else "port", *(row for holds, row in rows if holds)]
    kind = ("infiniband" if layer[1] == "IB" else "roce") if layer else None
    setup = Setup(gpu=gpu[1] if gpu else None, nics=Nics(kind=kind) if kind else None)  # type: ignore[arg-type]
    head, _, table = text.partition("#bytes")
    heading, *lines = table.partition("\n----")[0].split("\n")
    if "\n----" not in table:  # people leave its end out: the whole lines count
        lines = lines[:-1]
    row = re.compile(r"[ \t]{0,40}\d{1,15}[ \t]{1,40}\d{1,15}[ \t]{1,40}\d").match
    whole = list(takewhile(row, dropwhile(lambda line: not row(line), lines)))  # warnings can stand before them
    if "MsgRate" not in heading and all(len(row.split()) == _RATES for row in whole):
        heading += " MsgRate[Mpps]"
    text = "\n".join((f"{head}#bytes{heading}", *whole, "----"))
    (figure,) = _figures(tools.parse_perftest(text, ", ".join(words)))
    *_, size = re.findall(r"(?m)^[ \t]*(\d{1,12})[ \t]+\d+[ \t]+\S+[ \t]+\S", text)
    figure = msgspec.structs.replace(figure, size_bytes=int(size))
    held = any(rate * _FULL <= (figure.value or 0) <= rate for rate in _ETHERNET)
    soft = device is not None and re.match(r"(?:rxe|siw)(?:_|\d)", device[1]) is not None and not held
    line, says, remedy, source = f"Device : {words[0]}", *SOFTWARE_RDMA[1:4]
    framed = re.search(r"Mtu *: (?:256|512|1024)\[B\]", head) if kind == "roce" and int(size) > _FRAMED else None
    stated = (
        (msgspec.structs.replace(_FRAMES, line=framed[0]),)
        if framed and not held and (figure.value or 0) > _FRAMED_GBPS
        else ()
    )
    stated = (Stated(says=says, line=line, remedy=remedy, source=source),) if soft else stated
    return Measured(version=1, setup=setup, figures=(figure,), observations=Observations(stated=stated))


_TITLES = (  # NVIDIA/nvbandwidth testcases_ce.cpp
    (r"memcpy CE CPU\(row\) -> GPU\(column\)", "host_to_device_memcpy_ce"),
    (r"memcpy CE CPU\(row\) <- GPU\(column\)", "device_to_host_memcpy_ce"),
    (r"memcpy CE CPU\(row\) <-> GPU\(column\)", "host_to_device_bidirectional_memcpy_ce"),
    (r"memcpy CE GPU\(row\) -> GPU\(column\)", "device_to_device_memcpy_read_ce"),
    (r"memcpy CE GPU\(row\) <- GPU\(column\)", "device_to_device_memcpy_write_ce"),
)


def _with_sums(text: str) -> Iterator[str]:
    """Yield the output by test, each whole matrix with its sum, which people leave out."""
    for test in re.split(r"(?m)^(?=Running \w)", text):
        yield test
        name, rows = re.match(r"Running (\w+)", test), re.findall(r"(?m)^[ \t]*(\d{1,3}(?:[ \t]+\S+)*)[ \t]*$", test)
        head, *body = [row.split() for row in rows] or [[]]
        square = len(body) == (len(head) if "device_to_device" in test else 1)
        numbers = [cell for row in body for cell in row[1:] if cell != "N/A"]
        if (
            name
            and "SUM " not in test
            and square
            and all(len(row) == len(head) + 1 for row in body)
            and all(re.fullmatch(r"\d{1,6}\.\d{2}", cell) for cell in numbers)
        ):
            yield f"\nSUM {name[1]} {sum(map(float, numbers)):.2f}\n"


def _nvbandwidth(text: str) -> Measured:
    if "Running " not in text and (alone := re.search(r"(?m)^SUM (\w{1,80}) ", text)):  # its first line is left out
        text = re.sub(r"(?m)^(?=memcpy |\w{1,40} CE )", f"Running {alone[1]}.\n", text, count=1)
    if "Running " not in text:
        for title, test in _TITLES:
            text = re.sub(rf"(?m)^(?={title} bandwidth)", f"Running {test}.\n", text)
    text = "".join(_with_sums(text.replace("> Running ", "Running ")))
    last = text.rpartition("Running ")[2]
    name = re.match(r"(\w+)", last)
    if "{" not in text and name and not re.search(rf"SUM {name[1]} \S+\s*\n|Waiv|ERROR", last):
        raise NotUnderstood("nvbandwidth", f"{name[1][:80]} has no sum: the output was cut short")
    model = r"([^(\n\"]{1,80}?)"
    pattern = rf"(?m)^[ \t]*\"?(?:[0-9]+: {model} \([0-9a-fA-F]{{8}}:|Device [0-9]+: {model}[ \t]*(?:\(|$))"
    named = [one or other for one, other in re.findall(pattern, text)]
    setup = Setup(gpu=named[0] if len(set(named)) == 1 else None, hosts=1)
    # A test between GPUs is waived where their memory cannot be mapped (testcase.cpp), and on one GPU.
    form = r'Waiving device_to_device\w+|device_to_device\w+",\s*"status": "Waived'
    waived = re.search(form, text) if len(named) > 1 else None
    figures = () if waived and "SUM " not in text and "{" not in text else _figures(nvbandwidth.parse(text))
    between = r"(device_to_device_memcpy_(?:read|write))_sm"
    if not figures and not waived and re.search(between, text):  # alone they are compared; to hosts SMs are slower
        return _nvbandwidth(re.sub(between, r"\1_ce", text))
    if not figures and not waived:
        raise NotJudged("nvbandwidth", "no test that is judged, such as host_to_device_memcpy_ce")
    seen = Observations(p2p="off", said={"p2p": waived[0]}) if waived else Observations()
    return Measured(version=1, setup=setup, figures=figures, observations=seen)


def _fio(text: str) -> Measured:
    answer = tools.parse_fio(text, "fio")
    writes = [sample.metric for sample in answer.samples if "write" in sample.metric]
    if writes:
        raise NotUnderstood("fio", f"{writes[0][:60]!r} writes: a diagnosis knows reads only")
    samples = tuple(
        msgspec.structs.replace(sample, metric="disk-read", subject=sample.metric) for sample in answer.samples
    )
    return Measured(version=1, figures=tuple(figures_of(samples)))


def _nodes(text: str) -> Measured:
    """Read `numactl --hardware` and lscpu: whether memory can be far, and CPUs without memory of their own."""
    several = re.search(r"(?m)^available: (?!1 )\d|NUMA node\(s\): +(?!1[ \t\r]*$)\d", text)
    empty = re.findall(r"(?m)^node (\d{1,4}) cpus: \d[^\n]*\nnode \1 size: 0 MB", text)
    line, says = f"nodes {', '.join(empty)}: size 0 MB", "CPUs of a NUMA node have no memory of their own: all is far"
    remedy = "put modules into the channels of each node, or let the firmware make fewer nodes (NPS1, SNC off)"
    stated = (Stated(says=says, line=line, remedy=remedy, source="numactl(8), --hardware"),) if empty else ()
    return Measured(
        version=1,
        setup=Setup(virtual=True if "Hypervisor vendor:" in text else None),
        observations=Observations(memory_node=None if several else "near", stated=stated),
    )


_SET = re.compile(r"NCCL INFO (NCCL_[A-Z0-9_]{1,64}) set (?:by environment )?to (.{0,200}?)\.?\s*$", re.MULTILINE)
_VIA = re.compile(r"NCCL INFO (?:Channel|Ring) [0-9/]+ ?:.{0,120}? via (direct shared memory|[A-Za-z0-9/_()]{1,60})")
_COMM = re.compile(r"nRanks ([0-9]{1,6}) nNodes ([0-9]{1,6})\b")
_WARNED = r"NCCL WARN (?!Failed to open libibverbs)"
_HOST = re.compile(r"(?m)^(\S{1,200}?):[0-9]{1,10}:[0-9]{1,10} \[[0-9]{1,4}\] ")
_MANY_RANKS = r"NCCL INFO Channel [0-9/]{1,9} :(?:[ \t]{1,8}\d){0,16}(?:[ \t]{1,8}\d\d?){0,16}[ \t]{1,8}1[6-9]\b"
_OVER_RDMA = re.compile(  # the host of a channel over RDMA, and whether it reaches GPU memory
    r"(?m)^(\S{1,200}?):\d{1,10}:\d{1,10} \[\d{1,4}\] NCCL INFO Channel [^\n]{1,160}? via NET/IB\S{0,20}?(/GDRDMA)?"
    r"(?=\s|$|/Shared)"
)
# Of each host its ports, if the line is whole.
_HAS = (
    r"(?m)^(\S{1,200}?):\d{1,10}:\d{1,10} \[\d{1,4}\] NCCL INFO NET/IB : "
    r"(?:No device found|Using ([^\n]{1,1500}?) ?(?:\[RO\])? ?; OOB)"
)
_UNLIKE = Stated(
    says="the hosts do not have the same RDMA ports: they cannot use them all with each other",
    line="",
    remedy="ibv_devinfo on each: bring missing ports up, give each container /dev/infiniband, and name in NCCL_IB_HCA"
    " as many of one link layer on all hosts",
    source="NVIDIA/nccl src/transport/net_ib; NCCL user guide, NCCL_IB_HCA",
)
_NETWORK = r"(?m)^(\S{1,200}?):\d{1,10}:\d{1,10} \[\d{1,4}\] NCCL INFO Using network (\S[^\n]{0,40}?)[ \t]*$"
_NETWORKS = Stated(
    says="the hosts use different networks of NCCL, which do not connect with each other: the run hangs",
    line="",
    remedy="the same plugin on all hosts (libnccl-net.so in LD_LIBRARY_PATH: of HPC-X, EFA, the cloud), or on all none:"
    " NCCL_NET_PLUGIN=none, NCCL_NET=IB",
    source="NVIDIA/nccl src/plugin/net.cc; its issue 1634",
)
# kubectl get pods -o wide: pod and node, which follows the address.
_POD = r"(?m)^(\S{1,253})[ \t]+\d+/\d+[ \t]+Running[ \t][^\n]{0,60}?[ \t]\d+\.\d+\.\d+\.\d+[ \t]+(\S{1,253})"
_PODS = Stated(
    says="pods of one node are several hosts for the library: their GPUs talk over the network",
    line="ranks in several pods of one node",
    remedy="one pod with all GPUs of the node; else the same NCCL_HOSTID for pods of one node, with hostIPC, hostPID"
    " and one /dev/shm",
    source="NVIDIA/nccl src/misc/utils.cc, getHostHash; its issue 879",
)
# What a GPU reaches, with GB/s and the way; links of the tree with GB/s (NVIDIA/nccl src/graph/paths.cc, topo.cc).
_REACHED, _WAY = r"NCCL INFO GPU/\S+ :([^\n]*NET/[^\n]*)", r"NET/\S+ \(\d+/[\d.]+/([A-Z0-9]{3,4})\)"
_TREE = r"\+ PCI\[([\d.]{1,6})\] - NIC/(\S{1,24})[^\n]*\n[^\n]*?\+ NET\[([\d.]{1,6})\]"
# Of its port's rate: x16 of 8 GT/s below 200 Gb/s is usual, and x8 of a GPU beside x16. The library takes 12 GB/s where
# a guest does not show the link.
_PART, _UNREAD = 0.45, 12.0
_NO_VERBS = r"Failed to open libibverbs[^\n]{0,40}"  # nobody asks why that is so on one host
# Ports and plugins that a run on one host does not name.
_MEANT = (
    r"NCCL_IB_HCA(?:=| set (?:by environment )?to )[\"'=]?\w|Loaded net plugin [^\n]{0,20}RDMA Plugin|P2P plugin IBext"
)
_WORLD = r"(?i)\bworld[_ ]size\W{1,3}(\d{1,5})\b"


def _nccl_debug(text: str) -> Measured:
    """Read what the library says that it uses (NVIDIA/nccl, src/transport, src/init.cc: INFO and WARN lines)."""
    vias = set(_VIA.findall(text))
    ports = re.search(r"NET/IB : Using (.{0,2000})", text)
    names = re.findall(r"\[[0-9]+\]\S+?:[0-9]+/(\S+)", ports[1]) if ports else []
    nodes = {pod: node for pod, node in re.findall(_POD, text) if f"\n{pod}:" in text}
    told = [_PODS] if len(set(nodes.values())) < len(nodes) else []
    has = {host: " ".join(sorted(re.findall(r":\d+/(IB|RoCE)\b", using))) for host, using in re.findall(_HAS, text)}
    if len(set(has.values())) > 1:
        words = some([f"{host} {layers or 'none'}" for host, layers in sorted(has.items())], 4)
        told.append(msgspec.structs.replace(_UNLIKE, line=words))
    if len(set((networks := dict(re.findall(_NETWORK, text))).values())) > 1:  # of each host its last one
        words = some([f"{host}: {network}" for host, network in sorted(networks.items())], 4)
        told.append(msgspec.structs.replace(_NETWORKS, line=words))
    comm = _COMM.search(text)
    ranks, hosts = (int(comm[1]), int(comm[2])) if comm else (None, None)
    if hosts and len(set(_HOST.findall(text))) == 1 and _all_here(text):
        hosts = 1  # it counts GPUs of one host that it may not connect as of several
    seen: dict[str, Any] = {
        "transport": _transport(vias, names, text, hosts),
        "said": {"nics": ", ".join(re.findall(r"\[[0-9]+\](\S+?):[0-9]+/", ports[1]))} if ports else {},
    }
    lacking = re.search(r"NET/IB : No device found", text) if seen["transport"] in (None, "socket") else None
    if lacking := (seen["transport"] and re.search(_NO_VERBS, text)) or lacking:
        seen["said"]["transport"] = lacking[0]  # of one host that is no fault, and of several it is
    if any(via.startswith("NET/IB") for via in vias):
        direct = {
            host: bool(gdr) for host, gdr in sorted(_OVER_RDMA.findall(text))
        }  # a host with one such channel has it
        seen["gpudirect_rdma"] = all(direct.values()) if direct else any("GDRDMA" in via for via in vias)
        if without := [host for host, gdr in direct.items() if not gdr][: 4 if any(direct.values()) else 0]:
            seen["said"]["gpudirect_rdma"] = f"no channel of {', '.join(without)} has GDRDMA, those of other hosts have"
    if {way for row in re.findall(_REACHED, text) for way in re.findall(_WAY, row)} == {"SYS"}:
        seen |= {"gpu_nic_path": "SYS", "said": {**seen["said"], "gpu_nic_path": "SYS from each GPU to each NET"}}
    if multicast := re.search(r"NVLS multicast support is (not )?available", text):
        seen["nvls"] = multicast[1] is None
    for observation in stated(text):  # that it failed is said after that it is there
        seen.pop(observation, None)
    return Measured(
        version=1,
        setup=Setup(
            hosts=hosts or None,
            gpus_per_host=ranks // hosts if ranks and hosts and ranks % hosts == 0 else None,
            nics=Nics(count=len(names)) if names else None,
            environment=dict(_SET.findall(text)[:200]),
        ),
        observations=Observations(**seen, stated=(*told, *_narrow(text))),
    )


def _narrow(text: str) -> Iterator[Stated]:
    """Yield the NIC whose link carries far less than its port, or the GPU whose link carries far less than others."""
    gpus = re.findall(r"\+ PCI\[([\d.]{1,6})\] - GPU/(\S{1,24})", text)
    rows = [
        *((link, f"NIC {nic}", port, "its port") for link, nic, port in re.findall(_TREE, text)),
        *((link, f"GPU {gpu}", max(gpus, key=lambda row: float(row[0]))[0], "others") for link, gpu in gpus),
    ]
    part, (link, name, most, whose) = min(
        ((float(row[0]) / float(row[2]), row) for row in rows if float(row[0]) < _UNREAD and float(row[2])),
        default=(1.0, ("", "", "", "")),
    )
    if part < _PART:
        yield Stated(
            says=f"the PCIe link of {name} carries {link} GB/s, {whose} {most}",
            line=f"PCI[{link}] - {name.replace(' ', '/')}",
            remedy="lspci -vv: LnkSta against LnkCap; reseat it, or put it into a slot with its lanes and speed",
            source="NVIDIA/nccl src/graph/topo.cc, ncclTopoPrintRec",
        )


def _all_here(text: str) -> bool:
    """Return whether a log has as many processes as the ring has ranks: they are of one host then."""
    rings = re.findall(r"(?m)NCCL INFO Channel [0-9/]{1,9} :((?:[ \t]+\d{1,5})+)[ \t]*$", text)
    processes = set(re.findall(r"(?m)^(\S{1,200}?:\d{1,10}):\d{1,10} (\[\d{1,4}\]) ", text))
    ranks, of = (
        set(re.findall(r"\b[Rr]ank {1,3}(\d{1,6})\b", text)),
        re.search(r"\bn[rR]anks (\d{1,6})\b", text),
    )
    # A table's head lists the ranks of every host.
    return len({host for host, _ in _RANK.findall(text)}) < 2 and (
        any(1 < len(ring.split()) <= len(processes) for ring in rings) or bool(of and len(ranks) >= int(of[1]))
    )


def _of_several(text: str) -> bool:
    """Return whether the words around a log tell of several hosts, or what is said to be missing is for several."""
    if re.search(_NO_VERBS, text) or SEVERAL.search(text[:_WRITTEN]):
        return True
    world = re.search(_WORLD, text)
    here = set(re.findall(r"(?m)^(\S{1,200}?:\d{1,10}):\d{1,10} \[\d{1,4}\] ", text))
    named = re.search(_MEANT, text) if "NET/IB : No device found" in text else None
    return named is not None and ("NCCL_IB_HCA" in named[0] or (world is not None and int(world[1]) > len(here)))


def _transport(vias: set[str], ports: list[str], text: str, hosts: int | None) -> Transport | None:
    """Return what carries the data: what the channels say, and else the network of a run on several hosts.

    "NET/Socket : Using" alone is the network that the library would use; on one host it carries nothing.
    """
    network = any(via.startswith("NET/") for via in vias)
    # A host has at most 16 GPUs.
    several = (
        (hosts or len(set(_HOST.findall(text)))) > 1
        or re.search(_MANY_RANKS, text) is not None
        or (hosts is None and not _all_here(text) and not search(_WARNED, text) and _of_several(text))
    )
    if any(via.startswith("NET/Socket") for via in vias):
        return "socket"
    if not vias and several and not ports and "NET/Socket : Using" in text:
        return "socket"
    if network and ports:
        return "roce" if any("RoCE" in name for name in ports) else "ib"
    if vias and not network:
        return "shm" if any(via.startswith(("SHM", "direct shared")) for via in vias) else "p2p"
    return None
