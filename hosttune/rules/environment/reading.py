"""The variables that a text sets, and what its commands set (`commands`). Pure.

Shell, Dockerfile, options of docker and mpirun, YAML lists, libraries' own files.
Each line is read by itself. A line that sets nothing and is not empty or a comment is returned as not understood; of
lines that a backslash joins, the first, if none of them sets anything.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from itertools import takewhile

import msgspec
from msgspec.structs import replace

from hosttune.errors import BadInput
from hosttune.model.limits import check_count
from hosttune.rules.environment.commands import commands

# The library's own file (NVIDIA/nccl, src/misc/param.cc, setEnvFile).
CONFIGURATION = re.compile(r"(?:^|/)\.?[nr]ccl\.conf$")
LONGEST_LINE = 16_384  # the longest commands of guides have some 2,000 characters
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_ASSIGNMENT = re.compile(rf"({_NAME})=(.*)", re.DOTALL)
_PLAIN = re.compile(rf"{_NAME}")
_OWN = re.compile(
    "(?!GRUB_|Exec|(?:ACTION|SUBSYSTEM|KERNEL|DRIVER|TEST)$)[A-Z]"
)  # not of GRUB's file, nor keys of udev(7)
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")
_SETTERS = ("export", "unset", "declare", "typeset", "local", "readonly", "ENV", "env")
# What stands before a command.
_KEYWORDS = ("if", "then", "else", "do", "{", "$", "RUN", "!", "(", "time", "exec", "nohup")
# A word after "NAME=" and a blank that looks like the value, not like a command.
_STRAY = re.compile(r"[-+=^]?(?:[0-9A-Z_,:.]+|true|false|yes|no|on|off)")
_CONTAINERS = ("singularity", "apptainer")  # their --env is a list: A=b,C=d
# Lines are stripped before they are compared with these; no pattern can take more than linear time.
_YAML_NAME = re.compile(rf"(?:-\s*)?name:\s*[\"']?({_NAME})[\"']?(?:\s+#.*)?")
_YAML_VALUE = re.compile(r"value:(.*)")
_YAML_BOTH = re.compile(rf"(?:-\s*)?\{{\s*name:\s*[\"']?({_NAME})[\"']?\s*,\s*value:([^{{}}]*)\}},?(?:\s+#.*)?")
_YAML_PAIR = re.compile(r"(?:-\s*)?[\"']?([A-Z][A-Z0-9_]*)[\"']?\s*:\s(.*)")
_YAML_HEAD = re.compile(r"(?:-\s*)?[\"']?[A-Za-z][A-Za-z0-9_.-]*[\"']?:(?:\s*[{\[|>])?\s*(?:#.*)?")
# Of a mapping on one line, in JSON, YAML or Python; each part is short, so that no pattern looks far.
_IN_BRACES = re.compile(
    r"[{,]\s{0,20}[\"']?([A-Z][A-Z0-9_]{0,63})[\"']?\s{0,20}:\s{0,20}(\"[^\"]{0,4096}\"|'[^']{0,4096}'|[^,{}\"']{0,4096})"
)
_PYTHON_CALL = re.compile(rf"os\.(?:environ\.setdefault|putenv)\(\s*[\"']({_NAME})[\"']\s*,(.*)\)(?:\s*#.*)?")
_DEFAULT = re.compile(rf"\$\{{({_NAME}):?=.*\}}", re.DOTALL)  # of the command ":", as in  : "${{A:=b}}"
_PYTHON = re.compile(rf"os\.environ\[\s*[\"']({_NAME})[\"']\s*\]\s*=(.*)")
_SCHEDULER = re.compile(r"#(?:SBATCH|PBS) ")  # of a script's own lines, which sbatch(1), qsub(1) read as options
_NOTHING = re.compile(r"(?:#(?!SBATCH |PBS ).*|//.*)?")
_END = re.compile(r"\s#.*$")
_LOOP = re.compile(r"\bfor\s+(\w{1,40})\s+in\s+(\S{1,400}?)\s{0,20}(?:;|$)")
_USED = re.compile(r"\$\{?(\w{1,40})\}?")
_CODE = re.compile(r"`{1,2}([^`]{2,400})`")  # within a sentence or a cell of a table


class VariableSetting(msgspec.Struct, frozen=True):
    """A variable and the line that sets it. `name` None: the line was not understood. `fault`: see `_fault`.

    `doubt`: why its value is not known. `behind`: the line of a library's own file that sets the same one before.
    """

    line: int
    name: str | None
    value: str | None
    fault: str | None = None
    doubt: str | None = None
    behind: int | None = None


def settings(text: str, where: str, tools: Mapping[str, Mapping[str, str]]) -> tuple[VariableSetting, ...]:
    """Return what a text sets, in its order; `tools` as in `commands`.

    Raises BadInput if it is no text, or sets nothing at all.
    """
    if "\0" in text:
        raise BadInput("not a text: it has NUL bytes", where=where, hint="give a file with NAME=VALUE lines")
    check_count(text.count("\n"), "lines of an environment", where)
    text = text.removeprefix("\ufeff")
    variable_settings = tuple(_configuration(text) if CONFIGURATION.search(where) else _anything(text, tools))
    check_count(len(variable_settings), "variables of an environment", where)
    lost = next((setting for setting in variable_settings if setting.name is None), None)
    if lost is not None and all(setting.name is None for setting in variable_settings):
        hint = "give lines such as NAME=VALUE, export NAME=VALUE, ENV NAME=VALUE, -e NAME=VALUE, -x NAME=VALUE"
        raise BadInput(
            f"no line sets a variable; the first is {(lost.value or '')[:400]!r}",
            where=f"{where}:{lost.line}",
            hint=hint,
        )
    return variable_settings


def _configuration(text: str) -> Iterator[VariableSetting]:
    """Yield the lines of nccl.conf as the library reads them: nothing is trimmed, # counts in column 1 only."""
    first: dict[str, int] = {}
    for number, whole in enumerate(text.split("\n"), 1):
        line = whole.removesuffix("\r")
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals:
            yield VariableSetting(number, None, line)
            continue
        if (behind := first.setdefault(name, number)) != number:
            yield VariableSetting(number, name, value, behind=behind)
            continue
        bare = name.split()[-1] if name.split() else ""
        fault = _fault(name, value)
        if fault is None and line != whole and not _INTEGER.fullmatch(value):  # strtoll(3) stops at the CR
            fault = "the line ends with CR LF: NCCL before 2.30 takes the CR for a part of the value"
        yield VariableSetting(number, bare if _PLAIN.fullmatch(bare) else name, value, fault)


def _fault(name: str, value: str) -> str | None:
    """Return what is wrong with the form of a line of nccl.conf; None if nothing is."""
    if not _PLAIN.fullmatch(name):
        return f"the file takes neither export nor blanks: a variable called {name!r} is set, which nothing reads"
    if len(value.encode()) > 1023:
        return "the value is cut after 1,023 bytes"
    if any(quote in value for quote in "\"'"):
        return "quotes are not taken away: they become part of the value"
    if value != value.strip() or " #" in value:
        return "blanks and comments after the value are not taken away: they become part of it"
    return None


def _anything(text: str, tools: Mapping[str, Mapping[str, str]]) -> Iterator[VariableSetting]:
    pending: tuple[int, str] | None = None  # the name of a list item of YAML, whose value is on the next line
    over: dict[str, str] = {}  # variables of loops, and the files that they go over
    for lines in _chains(text):
        variable_settings: list[VariableSetting] = []
        for number, line in lines:
            value = _YAML_VALUE.fullmatch(line)
            if pending is not None and value:
                variable_settings.append(VariableSetting(*pending, _unquoted(value[1])))
                pending = None
                continue
            if pending is not None:
                variable_settings.append(VariableSetting(*pending, None))
            named = _YAML_NAME.fullmatch(line)
            pending = (number, named[1]) if named else None
            variable_settings += () if named else _line(number, _in_loop(line, over), tools)
        if not variable_settings and pending is None and not all(_silent(line) for _, line in lines):
            variable_settings = [VariableSetting(lines[0][0], None, lines[0][1])]
        yield from variable_settings
    if pending is not None:
        yield VariableSetting(*pending, None)


def _chains(text: str) -> Iterator[list[tuple[int, str]]]:
    """Yield lines with their numbers, together where a backslash at the end joins the next one.

    They are one line if no blank is around the backslash: it is within a word then.
    """
    chain: list[tuple[int, str]] = []
    within = False
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.rstrip()
        body = bare.removesuffix("\\")
        if within and not line[:1].isspace():
            first, before = chain.pop()
            longer = before if len(before) > LONGEST_LINE else before + body  # such a line is not understood anyway
            chain.append((first, longer.strip()))
        else:
            chain.append((number, body.strip()))
        if bare == body:
            yield chain
            chain = []
        within = bare != body and body == body.rstrip() != ""
    if chain:
        yield chain


def _in_loop(line: str, over: dict[str, str]) -> str:
    """Return a line with the files that the loops around it go over in place of their variables."""
    full = _USED.sub(lambda used: over.get(used[1], used[0]), line) if over and len(line) <= LONGEST_LINE else line
    if loop := _LOOP.search(full[:LONGEST_LINE]):
        files = loop[2].replace('"', "").replace("//", "/")
        over[loop[1]] = files if files.startswith("/") else f"${loop[1]}"
        full = _USED.sub(lambda used: over.get(used[1], used[0]), full)
    return full if len(full) <= LONGEST_LINE else line


def _silent(line: str) -> bool:
    """Return whether a line says nothing: empty, a comment, or the head of a block of YAML."""
    return (
        bool(_NOTHING.fullmatch(line))
        or line.startswith("#")
        or (len(line) <= LONGEST_LINE and bool(_YAML_HEAD.fullmatch(line)))
    )


def _line(number: int, line: str, tools: Mapping[str, Mapping[str, str]]) -> list[VariableSetting]:
    if _NOTHING.fullmatch(line) or len(line) > LONGEST_LINE:
        return []
    line = _SCHEDULER.sub("", line, count=1) if _SCHEDULER.match(line) else line
    if (
        pair := _PYTHON.fullmatch(line)
        or _PYTHON_CALL.fullmatch(line)
        or _YAML_BOTH.fullmatch(line)
        or _YAML_PAIR.fullmatch(line)
    ):
        return [VariableSetting(number, pair[1], _unquoted(pair[2]))]
    codes = [settings for code in _CODE.findall(line) if (settings := _line(number, code, tools))]
    if len(codes) > 1:  # each is a command of its own
        return [setting for settings in codes for setting in settings]
    variable_settings = [setting for words in _commands(line) for setting in _shell(number, words)]
    if pairs := commands(line, tools):
        own = (setting for setting in variable_settings if setting.name and _OWN.match(setting.name))
        before = [setting for setting in own if (setting.name, setting.value) not in pairs]  # BOOT_IMAGE is both
        return [*before, *(VariableSetting(number, name, value) for name, value in pairs)]
    if any(setting.name != (setting.name or "").lower() for setting in variable_settings):
        return variable_settings
    # NAME={"A": "b"} of Python looks like an assignment of a shell.
    braced = [VariableSetting(number, pair[1], _unquoted(pair[2])) for pair in _IN_BRACES.finditer(line)]
    return braced or variable_settings or [setting for settings in codes for setting in settings]


def _unquoted(text: str) -> str:
    text = text.strip()
    if text[:1] in ("'", '"') and (end := text.find(text[0], 1)) > 0:
        return text[1:end]
    return _END.sub("", text).rstrip(", ")


def _commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each command of a line, without quotes and comments; nothing where quotes do not close."""
    reader = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    reader.whitespace_split, reader.commenters = True, ""
    try:
        words = list(reader)
    except ValueError:
        if (bare := _END.sub("", line)) != line:  # an apostrophe in a comment
            yield from _commands(bare)
        return
    command: list[str] = []
    for word in words:
        if word.startswith("#"):
            break
        word = word.removeprefix("(") if not command else word
        if set(word) <= set(";&|"):
            yield command
            command = []
        elif command or word not in _KEYWORDS:
            command.append(word)
    yield command


def _shell(number: int, words: list[str]) -> Iterator[VariableSetting]:
    """Yield the variables that a command or an instruction sets."""
    start = 0
    while start < len(words) and (words[start] == "sudo" or (start and words[start].startswith("-"))):
        start += 1
    words = words[start:]
    first, rest = (words[0], words[1:]) if words else ("", [])
    if first in ("setenv", "ENV") and len(rest) == 2 and _PLAIN.fullmatch(rest[0]):
        yield VariableSetting(number, rest[0], rest[1])
    elif first == ":":
        for default in filter(None, map(_DEFAULT.fullmatch, rest)):
            yield VariableSetting(number, default[1], default[0])
    elif first in _SETTERS:
        for n, word in enumerate(rest):
            yield from _doubted(_assigned(number, word, alone=first in ("export", "unset")), rest[n + 1 :])
    elif first not in ("echo", "printf"):
        own = words[1:] if first == "-" else words
        for n, word in enumerate(takewhile(_ASSIGNMENT.fullmatch, own)):
            yield from _doubted(_assigned(number, word), own[n + 1 :])
        yield from _options(number, words)


def _doubted(variables: Iterator[VariableSetting], after: list[str]) -> Iterator[VariableSetting]:
    """Yield settings; one such as "NAME= 1" is empty in a shell, and 1 in a file of variables."""
    for setting in variables:
        if setting.value == "" and len(after) == 1 and _STRAY.fullmatch(after[0]):
            why = f"a blank stands after =: in a shell it is empty, in a file of variables {after[0]!r}"
            yield replace(setting, doubt=why)
        else:
            yield setting


def _assigned(number: int, word: str, *, alone: bool = False) -> Iterator[VariableSetting]:
    match = _ASSIGNMENT.fullmatch(word)
    if match and match[1] == "Environment":  # systemd.exec(5): its first word; the others are assignments themselves
        match = _ASSIGNMENT.fullmatch(match[2])
    if match:
        yield VariableSetting(number, match[1], match[2])
    elif alone and _PLAIN.fullmatch(word):
        yield VariableSetting(number, word, None)


def _options(number: int, words: list[str]) -> Iterator[VariableSetting]:
    """Yield what options of mpirun, docker, Slurm, PBS and Apptainer set: -x A=b, -e A=b, --env=A=b, -genv A b."""
    several = any(word.rpartition("/")[2] in _CONTAINERS for word in words[:3])
    for n, word in enumerate(words):
        option, equals, value = word.partition("=")
        after = words[n + 1 : n + 3]
        if option == "--env" and equals:
            yield from _listed(number, value) if several else _assigned(number, value, alone=True)
        elif option == "--export" and (equals or after):  # srun(1), sbatch(1): a list
            yield from _listed(number, value if equals else after[0])
        elif n == 0 and word == "-v" and after:  # qsub(1), in lines of a script: a list
            yield from _listed(number, after[0])
        elif word == "mca_base_env_list" and after:  # Open MPI: a list
            for one in after[0].split(";"):
                yield from _assigned(number, one)
        elif word in ("-genv", "-env") and len(after) == 2 and _PLAIN.fullmatch(after[0]):
            yield VariableSetting(number, after[0], after[1])
        elif word == "--env" and after and several:
            yield from _listed(number, after[0])
        elif word in ("-x", "-e", "--env") and after:
            yield from _assigned(number, after[0], alone=word == "-x")


def _listed(number: int, text: str) -> Iterator[VariableSetting]:
    """Yield the variables of a list "ALL,A=b,C=d". A comma always separates: none can be in a value."""
    for part in text.split(","):
        yield from _assigned(number, part)
