"""What launchers and collectors of logs write in front of a tool's lines: ranks, pods, hosts, times."""

from __future__ import annotations

import re

_PASTED, _BROKEN = 20_000, re.compile(r"(?m)^([^\n]{60,200})\n(?![\w.@-]{1,64}[:\[=/])(?=[a-z])")  # characters
_MOST = 4  # labels in front of each other: time, pod, rank
_SAMPLE = 4000  # lines that decide whether a label is there
_ANSI = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")
_QUOTES = str.maketrans("\u2018\u2019\u201c\u201d", "''\"\"")  # those of pages, which no program prints
_TIME = r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
# A pattern, and the part of the lines that must have it: some can also begin a line of a tool. What its group holds
# tells the lines of one rank, pod or host from those of another.
_LABELS = tuple(
    (re.compile(pattern), part)
    for pattern, part in (
        (rf"[A-Z][a-z]{{2}} [A-Z][a-z]{{2}} [ \d]\d {_TIME} \d{{4}}:? ?", 0.0),  # mpirun --timestamp-output
        (rf"\[?\d{{4}}-\d\d-\d\d[T ]{_TIME}(?:Z|[+-]\d\d:?\d\d)?\]?:?(?: |\t|$)", 0.0),  # docker, kubectl --timestamps
        (  # journald; "kernel: " stays, which tells that a line is the kernel's
            rf"[^\W\d_]{{3,10}}\.? [ \d]?\d {_TIME} (\S{{1,64}})"
            r" (?:(?=kernel: )|[^\s\[:]{1,64}(?:\[\d{1,10}\])?: ?)",
            0.0,
        ),
        (r"\[([^\]\s<>]{0,80}\d,\d{1,7})\]<std(?:out|err)>: ?", 0.0),  # mpirun --tag-output
        (r"\[?(pod/[\w.-]{1,253}(?:/[\w.-]{1,63})?)\]?:? ", 0.0),  # kubectl logs --prefix
        (r"\[((?:rank|default|node)\d{1,6})\]:? ?", 0.0),  # torchrun
        (r"\((\w[^()]{0,120}\bpid=\d{1,10}[^()]{0,80})\) ", 0.0),  # ray
        (r"> ?", 0.9),  # quoted in a message
        (r" {0,6}(\d{1,6}):(?![0-9a-f]{2}:| [\w.@-]{1,32}: <[A-Z]) ?", 0.6),  # srun --label; not ip link
        (r"\[(\d{1,6})\]:? ?", 0.6),
        (
            r"(?!Lnk|NVRM|AMD-Vi|DMAR|mce|nvidia-(?:nvswitch|container|modeset|uvm)|kernel:|vfio-pci:|qemu-|kvm:|modprobe:"
            r"|(?:amdgpu|nvidia(?:_\w{2,8})?|ice|igb|i40e|irdma|qede):|ibwarn:|ping:|iperf3:|mlx[45]:"
            r"|(?i:error|fatal|warning):|[A-Z_]{4,60}:"
            # figures of GPU 7, not lines of a host of that name
            r"|(?i:gpu|hpu|rank)(?:0|[1-9]\d{0,2}): (?![ #]|\S{1,64}:\d{1,10}:\d)"
            r"|\d{1,4}: [\w.@-]{1,32}: <|[\w.]{1,60}(?:Error|Exception):|lib[\w+-]{2,40}\.so"
            r"|(?:[gs]et_mempolicy|mbind|panic|orted|prted|srun|slurm\w{1,8}|enroot-\w{1,16}): )"
            r"([\w.-]{1,64}): (?!\d+$)",
            0.9,
        ),  # pdsh, stern; not lspci and the kernel
        (  # docker compose; not sensors of ipmitool
            r"([\w.-]{1,64}) {1,40}\| ?(?![^|\n]{0,30}\|(?:[^|\n]{0,14}\|)? ?(?:ok|cr|nr|nc|na|ns)\b)",
            0.9,
        ),
    )
)
_ROW = re.compile(r"\s*\d{1,15}\s+\d{1,15}\s+\w")


def decoded(content: bytes) -> str:
    """Return the text of a file; UTF-16, which PowerShell writes, by its mark or its zeros."""
    wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    if not wide and content[:2].count(0) == 1:
        return content.decode("utf-16-le" if content[1] == 0 else "utf-16-be", "replace")
    return content.decode("utf-16" if wide else "utf-8-sig", "replace")


def rejoined(text: str) -> str:
    """Return a text that somebody pasted with the lines joined that a page broke; a long log as it is."""
    return _BROKEN.sub(r"\1 ", text) if len(text) < _PASTED else text


def unlabelled(text: str) -> list[tuple[str, str]]:
    """Return each line with who wrote it ("" if that is not said), without what stands in front of all of them."""
    plain = [line.removesuffix("\r") for line in _ANSI.sub("", text).translate(_QUOTES).split("\n")]
    margin = min((len(line) - len(line.lstrip(" ")) for line in plain if line.strip()), default=0)
    lines = [("", line[margin:]) for line in plain]  # a page indents what it quotes
    for _ in range(_MOST):
        sample = [line for _, line in lines[:_SAMPLE] if line.strip()]
        pattern = next(
            (
                label
                for label, part in _LABELS
                if sum(label.match(line) is not None for line in sample) > part * len(sample)
            ),
            None,
        )
        if pattern is None:
            break
        lines = [_without(pattern, who, line) for who, line in lines]
    return lines


def _without(label: re.Pattern[str], who: str, line: str) -> tuple[str, str]:
    match = label.match(line)
    if match is None:
        return who, line
    rest = line[match.end() :]
    if _ROW.match(rest):  # a tool that prints a row in parts gets the label before each
        rest = rest.replace(match[0].strip(), " ")
    return " ".join(filter(None, (who, *match.groups()))), rest
