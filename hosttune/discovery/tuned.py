"""System → what TuneD's active profiles set: their tuned.conf files, with what they include, merged as TuneD does.

Sources: tuned/profiles/locator.py, loader.py, merger.py, variables.py, unit.py (TuneD 2.28). Functions (`${f:…}`) are
not evaluated, because some of them run commands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from hosttune.model.host import Tuned, TunedKey
from hosttune.reader import Reader
from hosttune.tuned import ACTIVE, may_match

POST_LOADED = "/etc/tuned/post_loaded_profile"  # tuned/consts.py: POST_LOADED_PROFILE_FILE, …
MAIN = "/etc/tuned/tuned-main.conf"
# The user's folders come before the system's (consts.py, locator.py). Older releases have no folder profiles/ in them.
FOLDERS = ("/etc/tuned/profiles", "/etc/tuned", "/usr/lib/tuned/profiles", "/usr/lib/tuned")
MOST_FILES, MOST_BYTES, MOST_KEYS, MOST_TEXT = 32, 64 << 10, 300, 4096  # TuneD's own need 4 files, 4 KiB, 40 keys
_NAME = re.compile(r"\.*[a-zA-Z0-9_-][a-zA-Z0-9_.-]*")  # loader.py, safe_name; must not be only dots
_LIST = re.compile(r"[,;]")
_VARIABLE = re.compile(r"(?<!\\)\$\{(\w+)\}")
_ESCAPED = re.compile(r"\\(\$\{\w+\})")
_OURS = ("/etc/tuned/", "/usr/lib/tuned/")
_TRUE = ("True", "true", "1")
_ARCHES = ("aarch64", "ppc64", "ppc64le", "s390x", "x86_64", "riscv64")
# Plugins whose keys set what hosttune also sets (`hosttune.tuned`). `_OF_DEVICES`: those in which a unit can name some
# devices.
_PLUGINS = ("cpu", "vm", "sysctl", "sysfs", "irqbalance", "irq", "scheduler", "bootloader", "disk", "service")
_OF_DEVICES = ("cpu", "irq", "disk")
_UNIT_WORDS = (
    "priority", "type", "enabled", "replace", "prepend", "drop", "devices", "devices_udev_regex", "cpuinfo_regex",
    "uname_regex", "script_pre", "script_post",
)  # fmt: skip
Sections = dict[str, dict[str, str]]


class _Unreadable(Exception):
    """A file that cannot be read as TuneD's configuration. Its text is the reason."""


@dataclass
class _Unit:
    """A section of the merged profile: the value of each of its options, and the file that sets it."""

    plugin: str
    words: dict[str, str] = field(default_factory=dict)
    options: dict[str, tuple[str, str]] = field(default_factory=dict)


@dataclass
class _Profile:
    """What has been merged so far, what was read, and what could not be read."""

    reader: Reader
    folders: tuple[str, ...] = FOLDERS
    units: dict[str, _Unit] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    names: int = 0
    unread: list[str] = field(default_factory=list)


def read_tuned(reader: Reader, active: str | None, arch: str | None) -> Tuned | None:
    """Return what the profiles in `active` set; None if it names none.

    `arch`: the machine's architecture, for conditions.
    """
    names = (active or "").split()
    if not names:
        return None
    later = (reader.text(POST_LOADED) or "").split()
    profile = _Profile(reader)
    main = _main(profile)
    for name in (*names, *later):
        _load(profile, name)
    variables = _variables(profile)
    keys: list[TunedKey] = []
    for key in _keys(profile, variables, arch):
        if len(keys) == MOST_KEYS:
            profile.unread.append(f"{ACTIVE}: its profile sets more than {MOST_KEYS} keys")
            break
        keys.append(key)
    return Tuned(
        profiles=(*names, *later),
        keys=tuple(keys),
        unread=tuple(dict.fromkeys(profile.unread)),
        reapply_sysctl=main.get("reapply_sysctl", "1").strip().lower() in ("1", "yes", "true", "on"),
        reapply_sysctl_exclude=tuple(_words(main.get("reapply_sysctl_exclude", ""))),
    )


def _words(text: str) -> list[str]:
    return [word.strip() for word in _LIST.split(text) if word.strip()]


# --- files ---------------------------------------------------------------------------------------------------


def _main(profile: _Profile) -> Mapping[str, str]:
    """Return the options of tuned-main.conf. In `profile_dirs`, later folders come first in the search."""
    data = profile.reader.data(MAIN)
    found: Mapping[str, str] = {}
    if data is not None:
        try:
            found = _parsed(b"[main]\n" + data)["main"]
        except _Unreadable as error:
            profile.unread.append(f"{MAIN}: {error}")
    elif not _lacked(profile.reader, MAIN):
        profile.unread.append(f"{MAIN}: could not be read")
    folders = [folder for folder in _words(found.get("profile_dirs", "")) if folder.startswith("/")]
    if folders:
        profile.folders = tuple(folder.rstrip("/") for folder in reversed(folders))
    return found


def _lacked(reader: Reader, path: str) -> bool:
    """Return whether a file is absent, as far as that can be known: not every capture can prove it."""
    return reader.lacks(path) or not reader.system.complete


def _load(profile: _Profile, name: str) -> None:
    """Merge a profile into what has been merged so far, after the profiles that it includes.

    Each profile is taken only once, so that a loop ends.
    """
    optional, plain = name.startswith("-"), name.removeprefix("-").rpartition("/")[2]
    if not _NAME.fullmatch(plain):
        profile.unread.append(f"{ACTIVE}: {name[:80]!r} is not the name of a profile")
        return
    profile.names += 1
    if profile.names > MOST_FILES:
        profile.unread.append(f"{ACTIVE}: its profile is made of more than {MOST_FILES} profiles")
        return
    taken = False
    for folder in profile.folders:
        path = f"{folder}/{plain}/tuned.conf"
        if path in profile.done:
            taken = True
            continue
        data = profile.reader.data(path)
        if data is not None:
            profile.done.append(path)
            _take(profile, path, data)
            return
        if not _lacked(profile.reader, path):
            profile.unread.append(f"{path}: could not be read")
            return
    if not (taken or optional):
        profile.unread.append(
            f"{profile.folders[0]}/{plain}/tuned.conf: no such profile there, nor in the other folders"
        )


def _take(profile: _Profile, path: str, data: bytes) -> None:
    try:
        sections = _parsed(data)
    except _Unreadable as error:
        profile.unread.append(f"{path}: {error}")
        return
    include = sections.get("main", {}).get("include")
    if include is not None and "${" in include:
        profile.unread.append(f"{path}: include={include[:80]}: which profile that is is worked out when TuneD starts")
    elif include is not None:
        for name in _words(include):
            _load(profile, name)
    folder = path.rpartition("/")[0]
    for name, options in sections.items():
        if name != "main":
            _merge(
                profile, name, {key: text.replace("${i:PROFILE_DIR}", folder) for key, text in options.items()}, path
            )


def _merge(profile: _Profile, name: str, options: Mapping[str, str], path: str) -> None:
    """Merge one unit. A later unit of the same name adds to the earlier one or replaces it (merger.py, _merge_two)."""
    words = {word: options[word] for word in _UNIT_WORDS if word in options}
    values = {key: text for key, text in options.items() if key not in words}
    replace = words.get("replace") in _TRUE
    if words.get("type", name) == "variables":
        if replace:
            profile.variables.clear()
        before = dict(profile.variables) if words.get("prepend") in _TRUE else {}
        profile.variables = {**values, **before, **values} if before else {**profile.variables, **values}
        return
    unit = profile.units.get(name)
    if unit is None or replace:
        unit = profile.units[name] = _Unit(plugin=name)
    unit.plugin = words.get("type", name)
    for word in ("enabled", "devices"):
        unit.words.pop(word, None)
    unit.words.update(words)
    for key in _words(words.get("drop", "")):
        unit.options.pop(key, None)
    unit.options.update({key: (text, path) for key, text in values.items()})


def _parsed(data: bytes) -> Sections:
    """Return the sections of a file, read as Python's ConfigParser does with TuneD's options.

    Only `=` separates a key from its value, and ` #` starts a comment. Raises _Unreadable if that parser would refuse
    the file, and if the file is too large.
    """
    if len(data) > MOST_BYTES:
        raise _Unreadable(f"larger than {MOST_BYTES} bytes")
    sections: Sections = {}
    options: dict[str, str] | None = None
    last, indent = "", 0
    for number, raw in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        line = _uncommented(raw)
        text = line.strip()
        depth = len(line) - len(line.lstrip())
        if not text:
            continue
        if options is not None and last and depth > indent:
            options[last] += f"\n{text}"
        elif text.startswith("[") and "]" in text[2:]:
            options, last = sections.setdefault(text[1 : text.rindex("]")], {}), ""
        elif options is None or "=" not in text or text.startswith("="):
            raise _Unreadable(f"line {number} is not configuration")
        else:
            key, _, value = text.partition("=")
            last, indent = key.strip(), depth
            options[last] = value.strip()
    return sections


def _uncommented(line: str) -> str:
    if line.lstrip()[:1] in ("#", ";"):
        return ""
    found = re.search(r"(?:^|\s)#", line)
    return line[: found.start()] if found else line


# --- variables -----------------------------------------------------------------------------------------------


def _variables(profile: _Profile) -> Mapping[str, str]:
    """Return all variables, with earlier ones expanded in later ones.

    `include` names another file of them (variables.py).
    """
    found: dict[str, str] = {}
    for name, text in profile.variables.items():
        if name != "include":
            found[name] = _expanded(text, found)
            continue
        for key, value in _variables_of(profile, text).items():
            found[key] = _expanded(value, found)
    return found


def _variables_of(profile: _Profile, path: str) -> Mapping[str, str]:
    """Return the variables in a file.

    Only files in TuneD's own folders are read, because a capture keeps what is read.
    """
    if not path.startswith(_OURS) or ".." in path.split("/") or "${" in path or len(path) > MOST_TEXT:
        profile.unread.append(f"{path[:80]}: variables that are not in TuneD's folders are not read")
        return {}
    data = profile.reader.data(path)
    if data is None:
        profile.unread.append(f"{path}: could not be read")
        return {}
    try:
        return _parsed(b"[variables]\n" + data)["variables"]
    except _Unreadable as error:
        profile.unread.append(f"{path}: {error}")
        return {}


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    """Return the text with known variables expanded.

    An unknown one stays in the text, which then has no certain value.
    """
    full = _VARIABLE.sub(lambda match: variables.get(match[1], match[0]), text)
    full = full if len(full) <= MOST_TEXT else "${too long}"
    return full if _VARIABLE.search(full) or "${f:" in full else _ESCAPED.sub(r"\1", full)


# --- keys ----------------------------------------------------------------------------------------------------


def _keys(profile: _Profile, variables: Mapping[str, str], arch: str | None) -> Iterator[TunedKey]:
    partial = {unit.plugin for unit in profile.units.values() if _on(unit) and _devices(unit) != "*"}
    for unit in profile.units.values():
        applies = _applies(unit, arch)
        if unit.plugin not in _PLUGINS or not _on(unit) or applies is False:
            continue
        if unit.plugin == "disk" and not _may_be_nvme(_devices(unit)):
            continue
        sure = applies is True and not (unit.plugin in _OF_DEVICES and unit.plugin in partial)
        for key, text, where in _options(unit, lambda text: _expanded(text, variables)):
            whole = sure and ("${" not in text or unit.plugin == "bootloader")
            yield TunedKey(plugin=unit.plugin, key=key, value=text, where=where, sure=whole)


def _options(unit: _Unit, expanded: Callable[[str], str]) -> Iterator[tuple[str, str, str]]:
    """Yield (key, value, file) for each option of a unit.

    For [bootloader], the command line that its options make together.
    """
    values = {key: (expanded(text), path) for key, (text, path) in unit.options.items()}
    if unit.plugin == "bootloader":
        line = _command_line({key: text for key, (text, _) in values.items() if key.startswith("cmdline")})
        paths = dict.fromkeys(path for key, (_, path) in values.items() if key.startswith("cmdline"))
        if line:
            yield "cmdline", line, ", ".join(paths)
        return
    keeps_irqs = values.get("irq_process", ("true", ""))[0].strip().lower() in ("0", "false", "no", "off", "n", "f")
    for key, (text, path) in values.items():
        if not (unit.plugin == "scheduler" and (key != "isolated_cores" or keeps_irqs)):
            yield key, text, path


def _command_line(parts: Mapping[str, str]) -> str:
    """Return the kernel command line. + adds words, - removes words, anything else adds (see below).

    Source: plugin_bootloader.py, _get_effective_options.
    """
    words: list[str] = []
    for text in parts.values():
        if text.startswith("-"):
            gone = text[1:].split()
            words = [word for word in words if word not in gone]
        else:
            words += (text[1:] if text.startswith("+") or text[:2] in ("\\\\", "\\+", "\\-") else text).split()
    return " ".join(words)


def _on(unit: _Unit) -> bool:
    return unit.words.get("enabled", "true") in _TRUE


def _devices(unit: _Unit) -> str:
    return unit.words.get("devices_udev_regex") or unit.words.get("devices", "*").strip() or "*"


def _may_be_nvme(devices: str) -> bool:
    """Return whether a unit's devices can be NVMe drives (device_matcher.py: names with wildcards; `!` excludes)."""
    names = [name for name in re.split(r"[\s,;]+", devices) if name and not name.startswith("!")]
    return not names or any(may_match(name, "nvme") for name in names)


def _applies(unit: _Unit, arch: str | None) -> bool | None:
    """Return whether a unit's conditions hold on this machine; None if unknown.

    Most `uname_regex` are an architecture.
    """
    uname, cpuinfo = unit.words.get("uname_regex"), unit.words.get("cpuinfo_regex")
    if uname in _ARCHES and arch is not None and uname != arch:
        return False
    return True if cpuinfo is None and (uname is None or uname == arch) else None
