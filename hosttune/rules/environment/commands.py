"""Commands and settings of a guide: what a line sets on a host, and what to. Pure.

A name is what the kernel or the tool calls it: `vm.swappiness` however it is set, `MODULE.PARAMETER` of a module, the
path of another file, the argument of a kernel's command line, the tool with its option where it has no other name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from hosttune.model import sysfs

Pair = tuple[str, str]
Tools = Mapping[str, Mapping[str, str]]

_SYSCTL = re.compile(r"-?((?:abi|debug|dev|fs|kernel|net|user|vm)(?:[./][A-Za-z0-9_*-]+)+)\s*=\s*(.*)")
# Each part is bounded, so that no line takes long.
_WRITE = re.compile(
    r"\b(?:echo|printf)\s{1,20}(?:-\w{1,3}\s{1,20})?([^|>]{1,300}?)\s{0,20}(?:>{1,2}|\|\s{0,20}(?:sudo\s{1,20})?tee\b(?:\s{1,20}-\w{1,3})?)\s{0,20}(\S{1,400})"
)
_ARGUMENTS = re.compile(
    r"(?:GRUB_CMDLINE_LINUX(?:_DEFAULT)?\+?=|(?:grubby|kernelstub)\b.{0,200}?(?:--args=|-a ))"
    r"(?:(['\"])(.*?)\1|([^\s'\"\\]+))"
)
# What sed's "s" puts there, and what stands around an argument in it.
_SED = re.compile(r"\bs([/|,#@%!:])(?:\\.|(?!\1).)*+\1((?:\\.|(?!\1).)*+)\1")
_AROUND = re.compile(r"GRUB_CMDLINE_LINUX(?:_DEFAULT)?=|\\?[\"']|\\\d|[&\s]")
_BEFORE = re.compile(r"(?:sudo|exec|do|then)$|[A-Z_]+=")  # what stands before a command, with its options
_WORD = re.compile(r"(?:[^\s'\"]|'[^']*'|\"[^\"]*\"|['\"])+")
_SHELL = re.compile(
    r"(?:/bin/|/usr/bin/)?\b(?:ba)?sh -l?c ['\"]"
)  # its end is taken off with the quotes of the last word
_SUBSTITUTED = re.compile(r"\$\([^()]{0,400}\)")
_QUERY = re.compile(r"-[qQLhH]$|--(?:query|show|list|display|hardware|help)")  # options that set nothing
_MODULE_FILE = re.compile(r"/sys/module/([^/]+)/parameters/(\S+)")
# crontab(5): when, and in a system's table as whom; limits.conf(5): who, which limit, what.
_CRON = re.compile(r"^(?:@[a-z]{4,8}|(?:[0-9*/,-]{1,40}\s{1,20}){5})\s{0,20}(?:root\s)?")
_LIMIT = re.compile(r"\S{1,64}\s+(?:soft|hard|-)\s+(\w+)\s+(\S+)")
_LIMITS = {"memlock": "-l", "nofile": "-n", "nproc": "-u", "stack": "-s", "core": "-c"}
# udev(7): what is given to an attribute (one "="), and commands.
_UDEV = re.compile(r'\b(?:ATTR\{([^}"]{1,100})\}|RUN(?:\{program\})?\+?)="([^"]{0,400})"')
_FOLDERS = {"block": "/sys/block", "cpu": sysfs.CPUS, "net": sysfs.NET}
# /etc/kernel/cmdline, /proc/cmdline, the kernel log
_BARE_ARGUMENTS = re.compile(r"(?:.{0,80}?Kernel command line: |(?=(?:BOOT_IMAGE|root)=\S+ ))")
# Arguments as a guide lists them, with their module or as a flag: NAME=VALUE alone is as well a variable of a shell.
_FLAG = r"nosmt|nosoftlockup|nowatchdog|nopti|nospectre_v[12]|rcu_nocb_poll|quiet|splash"
_ARGUMENT = re.compile(rf"[a-z][\w.-]{{0,60}}=\S+|{_FLAG}")
_SURE = re.compile(rf"[\w-]{{1,40}}\.[\w.-]{{1,60}}=.*|{_FLAG}")
_LISTED = re.compile(r"cmdline\w*\s{0,20}=\s{0,20}\+?")  # of TuneD's profiles
_ETHTOOL = {
    "--coalesce": "-C", "--features": "-K", "--offload": "-K", "--set-ring": "-G", "--set-channels": "-L",
    "--pause": "-A", "--change": "-s",
}  # fmt: skip


def commands(line: str, tools: Tools) -> list[Pair]:
    """Return what a line of a guide sets on a host; nothing for a line that sets variables or is not understood.

    `tools`: programs whose options set something, each with other names of its options.
    """
    line = _CRON.sub("", line.removeprefix("$ ").strip(), count=1)
    if "==" in line and (rules := _UDEV.findall(line)):
        kind = re.search('SUBSYSTEM=="([a-z]+)"', line)
        folder = _FOLDERS.get(kind[1], sysfs.PCI_DEVICES) if kind else _FOLDERS["block"]
        given = [[(f"{folder}/*/{name}", value)] if name else commands(value, tools) for name, value in rules]
        return [pair for pairs in given for pair in pairs]
    if (limit := _LIMIT.fullmatch(line)) and limit[1] in _LIMITS:
        return [(f"ulimit {_LIMITS[limit[1]]}", limit[2])]
    before, grub, _ = line.partition("GRUB_CMDLINE")
    if grub and re.search(r"\bsed\s", before):
        words = [word for _, put in _SED.findall(line) for word in _AROUND.split(put)]
        return list(
            _kernel_arguments(" ".join(filter(re.compile(r"(?!GRUB_)[A-Za-z][\w.-]*(?:=[^\\]*)?").fullmatch, words)))
        )
    if arguments := _ARGUMENTS.search(line):
        return list(_kernel_arguments(arguments[2] or arguments[3] or ""))
    if bare := _BARE_ARGUMENTS.match(line):
        return list(_kernel_arguments(line[bare.end() :]))
    if setting := _SYSCTL.fullmatch(line):
        return [(_dotted(setting[1]), _value(setting[2]))]
    line = line.partition(" #")[0]
    words = _LISTED.sub("", line, count=1).split()
    if words and all(map(_ARGUMENT.fullmatch, words)) and (_LISTED.match(line) or any(map(_SURE.fullmatch, words))):
        return list(_kernel_arguments(" ".join(words)))
    pairs: list[Pair] = []
    if (">" in line or "tee" in line) and (written := _WRITE.search(line)):
        pairs += _written(written[1].strip().strip("'\""), written[2].strip("'\"`;"), tools)
    for part in re.split(r"&&|\|\||[;|]", _SHELL.sub("", _SUBSTITUTED.sub("$(…)", line))):
        pairs += _command(_WORD.findall(part), tools)
    return pairs


def _value(text: str) -> str:
    return text.partition(" #")[0].strip().strip("'\"")


def _dotted(name: str) -> str:
    return name.replace("/", ".")


def _module(name: str) -> str:
    return name.replace("-", "_")


def _kernel_arguments(text: str) -> Iterator[Pair]:
    for word in text.split():
        if not word[0].isalpha():  # "..." of a guide, and what stays as it is: $GRUB_CMDLINE_LINUX
            continue
        name, equals, value = word.partition("=")
        module, dot, parameter = name.partition(".")
        yield (f"{_module(module)}.{parameter}" if dot else name), value if equals else "1" if dot else ""


def _written(value: str, path: str, tools: Tools) -> Iterator[Pair]:
    if path.startswith("/proc/sys/"):
        yield _dotted(path.removeprefix("/proc/sys/")), value
    elif module := _MODULE_FILE.fullmatch(path):
        yield f"{_module(module[1])}.{module[2]}", value
    elif path.startswith("/etc/"):
        yield from commands(value, tools)
    elif path.startswith(("/sys/", "/proc/", "/dev/")):
        yield path, value


def _command(words: Sequence[str], tools: Tools) -> Iterator[Pair]:
    start = 0
    while start < len(words) and (_BEFORE.match(words[start]) or (start and words[start].startswith("-"))):
        start += 1
    words = words[start:]
    name = words[0].rpartition("/")[2] if words else ""
    if name.startswith("set_irq_affinity"):
        yield "set_irq_affinity", " ".join(words[1:])
    elif name in tools:
        yield from _options(name, words[1:], tools[name])
    elif (read := _READERS.get(name)) is not None:
        yield from read(words[1:])


def _sysctl(words: Sequence[str]) -> Iterator[Pair]:
    for setting in filter(None, map(_SYSCTL.fullmatch, (word.strip("'\"") for word in words))):
        yield _dotted(setting[1]), _value(setting[2])


def _setpci(words: Sequence[str]) -> Iterator[Pair]:
    for word in words:
        register, equals, value = word.strip("'\"").partition("=")
        if equals and not register.startswith("-"):
            place, dot, width = re.sub(r"\+0x0*|\+0+(?=[0-9a-fA-F])", "+", register).rpartition(".")
            capability, plus, offset = place.partition("+")
            yield (
                f"{capability.upper() if plus else capability.lower()}{plus}{offset.lower()}{dot}{width.lower()}",
                re.sub(r"\b0x", "", value.lower()),
            )


def _options(tool: str, words: Sequence[str], names: Mapping[str, str]) -> Iterator[Pair]:
    """Yield a tool's options with their values, up to the command that it starts; which device is meant is none."""
    rest = [] if any(map(_QUERY.match, words)) else list(words)
    if "" in names and rest and rest[0] == names[""]:
        tool = f"{tool} {rest.pop(0)}"
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        if not equals and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        option = names.get(option, option)
        if option not in ("-i", "--id", "--gpu"):
            yield f"{tool} {option}", value.strip("'\"")


def _after(tool: str, place: int) -> Callable[[Sequence[str]], Iterator[Pair]]:
    """Return a reader of NAME=VALUE words after some others."""

    def read(words: Sequence[str]) -> Iterator[Pair]:
        for word in words[place:]:
            name, equals, value = word.partition("=")
            if equals and not name.startswith("-"):
                yield f"{tool} {name}", value

    return read


def _ethtool(words: Sequence[str]) -> Iterator[Pair]:
    if len(words) >= 4 and words[0].startswith("-"):
        for name, value in zip(words[2::2], words[3::2], strict=False):
            yield f"ethtool {_ETHTOOL.get(words[0], words[0])} {name}", value


def _cpupower(words: Sequence[str]) -> Iterator[Pair]:
    words = words[2:] if words[:1] in (["-c"], ["--cpu"]) else words  # of which CPUs
    if words and not words[0].endswith("-info"):
        yield from _options(f"cpupower {words[0]}", words[1:], {"--governor": "-g", "--disable-by-latency": "-D"})


def _ulimit(words: Sequence[str]) -> Iterator[Pair]:
    if len(words) >= 2:
        yield f"ulimit {words[0].replace('H', '').replace('S', '') if len(words[0]) > 2 else words[0]}", words[1]


def _modprobe(words: Sequence[str]) -> Iterator[Pair]:
    names = [word.strip("'\"") for word in words if not word.startswith("-")]
    if parameters := [word for word in names[1:] if "=" in word]:
        yield from _module_options([names[0], *parameters])
    else:
        modules = names[:1] if {"-a", "-r"}.isdisjoint(words) else names
        yield from ((f"modprobe {'-r ' if '-r' in words else ''}{_module(name)}", "") for name in modules)


def _module_options(words: Sequence[str]) -> Iterator[Pair]:
    for word in words[1:]:
        name, _, value = word.partition("=")
        yield f"{_module(words[0])}.{name}", value.strip("'\"") or "1"


def _service(words: Sequence[str]) -> Iterator[Pair]:
    names = [word.removesuffix(".service") for word in words if not word.startswith("-")]
    for name in names[1:] if names[:1] not in (["status"], ["is-active"], ["is-enabled"]) else ():
        yield f"systemctl {name}", names[0]


_READERS: Mapping[str, Callable[[Sequence[str]], Iterator[Pair]]] = {
    "sysctl": _sysctl,
    "setpci": _setpci,
    "cpupower": _cpupower,
    "mlxconfig": _after("mlxconfig", 1),
    "mstconfig": _after("mlxconfig", 1),
    "ethtool": _ethtool,
    "ulimit": _ulimit,
    "modprobe": _modprobe,
    "options": lambda words: _module_options(words) if words else iter(()),
    "blacklist": lambda words: ((f"blacklist {_module(name)}", "") for name in words[:1]),
    "softdep": lambda words: ((f"softdep {_module(words[0])}", " ".join(words[1:])),) if words else (),  # type: ignore[dict-item, return-value]
    "systemctl": _service,
    "service": lambda words: _service(words[1::-1]),
    "setenforce": lambda words: (("enforcing", word) for word in words[:1]),
    "x86_energy_perf_policy": lambda words: (("x86_energy_perf_policy", word) for word in words[-1:] if word[0] != "-"),
    "rpm-ostree": lambda words: _kernel_arguments(
        " ".join(word.partition("=")[2].strip("'\"") for word in words if word.startswith("--append"))
    ),
    "swapoff": lambda words: (("swapoff", word) for word in words[:1]),
    "tuned-adm": lambda words: (("tuned-adm profile", " ".join(words[1:])) for word in words[:1] if word == "profile"),
}
