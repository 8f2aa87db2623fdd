"""Boot loaders: which one this machine has, and what they share; and GRUB. grubby and kernel-install are in
`kernelargs`.

They are recognized by their files and tools, never by a distribution's name. Each one keeps what is staged in one file
of hosttune and runs its own generator. A change is marked as unfinished in that file until the generator has finished,
so that a crash in between can be detected.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self, TypeVar

import msgspec

from hosttune.errors import BadInput, CommandFailed, Unreadable, WriteFailed
from hosttune.machine.system import System
from hosttune.model.commandline import split, text_of
from hosttune.model.jsontext import typed_json

# Allowed characters of a word that hosttune stages: none that a shell, GRUB's language or sed would interpret.
WORD = re.compile(r"[A-Za-z0-9_.,:/+=-]{1,1024}")
COMMAND_LINE_SIZE = 2048  # bytes with the final zero; the rest is cut off (arch/x86/include/asm/setup.h)
ENTRIES = ("/efi/loader/entries", "/boot/loader/entries", "/boot/efi/loader/entries")
STATE = "/etc/hosttune/kernel-arguments"  # hosttune's own file, if the boot loader's cannot hold this
_NAME = re.compile(r"[a-z_]{1,32}")

S = TypeVar("S", bound="Remembered")


class Staged(msgspec.Struct, frozen=True):
    """What hosttune's file stages for the next boot: name -> its arguments, None if they are removed.

    `unfinished`: names whose change was interrupted before the boot loader had it.
    """

    arguments: Mapping[str, str | None]
    unfinished: frozenset[str] = frozenset()


class BootLoader(ABC):
    """One way to set the kernel arguments of the next boot."""

    name: ClassVar[str] = ""
    files: ClassVar[tuple[str, ...]] = ()  # files that it may create

    @abstractmethod
    def read(self, system: System) -> Staged:
        """Return what hosttune's file stages. Raises Unreadable if hosttune did not write the file in this form."""

    @abstractmethod
    def stage(self, system: System, arguments: Mapping[str, str | None], names: Collection[str]) -> str | None:
        """Make exactly these the arguments that hosttune sets for the next boot; `names` are the ones that change.

        Can be repeated from any state that a crash leaves. Returns a note to report. Raises WriteFailed, CommandFailed.
        """


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """What hosttune's file holds for a boot loader whose own file cannot; a loader adds what a revert needs."""

    arguments: dict[str, str | None] = {}
    unfinished: tuple[str, ...] = ()


@dataclass(frozen=True)
class ToolLoader(BootLoader):
    """A boot loader that is configured by a tool; hosttune's file holds what is staged. `tool`: the tool's path."""

    tool: str
    tools: ClassVar[tuple[str, ...]] = ()  # possible paths; the first one that exists is used
    state: ClassVar[type[Remembered]] = Remembered
    files: ClassVar[tuple[str, ...]] = (STATE,)

    @classmethod
    def found(cls, system: System) -> Self | None:
        """Return the boot loader if its tool is installed, else None."""
        path = next((path for path in cls.tools if system.exists(path)), None)
        return cls(path) if path else None

    def read(self, system: System) -> Staged:
        """See BootLoader."""
        state = read_state(system, self.state)
        return Staged(state.arguments, frozenset(state.unfinished))


def entries_folder(system: System) -> str | None:
    """Return the folder with the entries of the Boot Loader Specification; None if there are none."""
    return next((path for path in ENTRIES if any(name.endswith(".conf") for name in system.list(path))), None)


def entry_lines(system: System) -> list[tuple[str, ...]]:
    """Return the command line of each entry of the Boot Loader Specification. Raises Unreadable."""
    folder = entries_folder(system)
    names = [name for name in system.list(folder) if name.endswith(".conf")] if folder else []
    lines = []
    for name in names:
        rows = (line.split(None, 1) for line in (system.read(f"{folder}/{name}") or "").splitlines())
        lines.append(split(" ".join(row[1] for row in rows if len(row) == 2 and row[0] == "options")))
    return lines


def words_of(arguments: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return all words that hosttune sets, in order. Raises WriteFailed for a word with unsafe characters."""
    words = tuple(word for text in arguments.values() if text for word in text.split())
    for word in (*words, *arguments):
        if not WORD.fullmatch(word):
            raise WriteFailed("the kernel's command line", f"{word[:80]!r} has characters that are not safe there")
    return words


def lacking(lines: Iterable[Sequence[str]], arguments: Mapping[str, str | None]) -> str | None:
    """Return why none of these command lines has exactly these arguments; None if one of them has."""
    best: list[str] | None = None
    for words in lines:
        heard = tuple(words)[: list(words).index("--")] if "--" in words else words  # words after "--" are for init
        wrong = [text or f"the removal of {name}" for name, text in arguments.items() if text_of(heard, name) != text]
        if not wrong and len(" ".join(words)) >= COMMAND_LINE_SIZE:
            wrong = [f"room: the kernel reads {COMMAND_LINE_SIZE - 1} bytes at most"]
        if not wrong:
            return None
        best = wrong if best is None or len(wrong) < len(best) else best
    return "there is no boot entry" if best is None else f"no boot entry has {', '.join(best)}"


def prove(path: str, why: str | None) -> None:
    """Raise WriteFailed, naming the generated configuration, if it lacks what was staged."""
    if why:
        raise WriteFailed(path, f"the boot loader's tool succeeded, but {why}: something sets them after hosttune")


def was_written(system: System, path: str, data: bytes) -> bool:
    """Return whether the file has what was just written; False in a rehearsal or capture, where nothing is written."""
    return not system.captured and system.read_bytes(path) == data


def refuse_unwritable(system: System, path: str) -> None:
    """Raise WriteFailed if the boot partition of `path` is not mounted, or is mounted read-only."""
    mounts = [line.split() for line in (system.read("/proc/mounts") or "").splitlines()]
    mounted = {row[1]: row[3].split(",") for row in mounts if len(row) > 3}  # the last mount at a place counts
    if not mounted:
        return  # a capture
    for line in (system.read("/etc/fstab") or "").splitlines():
        row = line.split()
        place = row[1].rstrip("/") if len(row) > 2 and not row[0].startswith("#") else ""
        if (
            place
            and place not in mounted
            and f"{path}/".startswith(f"{place}/")
            and place.startswith(("/boot", "/efi"))
        ):
            raise WriteFailed(place, "is a file system of its own that is not mounted: mount it first")
    place = max((p for p in mounted if f"{path}/".startswith(f"{p.rstrip('/')}/")), key=len, default="")
    if "ro" in mounted.get(place, ()):
        raise WriteFailed(place, "is mounted read-only: make it writable first")


def names_in(text: str) -> frozenset[str]:
    """Return the names of arguments in a list of words; anything else in it is dropped."""
    return frozenset(word for word in text.split() if _NAME.fullmatch(word))


def by_hand(arguments: Mapping[str, str | None]) -> str:
    """Return what the administrator has to do to a command line that hosttune leaves alone."""
    words = " ".join(words_of(arguments))
    gone = ", ".join(name for name, text in arguments.items() if text is None)
    steps = (f"add {words}" if words else "", f"remove {gone}" if gone else "")
    return " and ".join(step for step in steps if step) or "change nothing"


def read_state(system: System, kind: type[S]) -> S:
    """Return what hosttune's file holds; the kind's defaults if there is no file. Raises Unreadable."""
    data = system.read_bytes(STATE)
    try:
        return kind() if data is None else typed_json(data, kind, where=STATE)
    except BadInput as error:
        raise Unreadable(STATE, f"not as hosttune writes it: {error.what}") from error


def state_bytes(state: Remembered) -> bytes:
    """Return the contents of hosttune's file."""
    return msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n"


# --- GRUB ------------------------------------------------------------------------------------------------------
# GRUB on Debian and Ubuntu: a drop-in that grub-mkconfig sources, then update-grub.
# grub-mkconfig sources /etc/default/grub, then /etc/default/grub.d/*.cfg in the order of names, with `set -e`. This
# is a patch of Debian; upstream has no such folder, so hosttune checks that the script names it. hosttune's file
# sorts last, because a later file may set the variables again. 10_linux writes GRUB_CMDLINE_LINUX and
# GRUB_CMDLINE_LINUX_DEFAULT into normal entries, but only the first into recovery entries. hosttune's arguments go
# into the second, so recovery boots without them.

DROP_IN = "/etc/default/grub.d/zz-hosttune.cfg"
CONFIG = "/boot/grub/grub.cfg"
_GENERATORS = ("/usr/sbin/update-grub", "/sbin/update-grub")
_SECONDS = 300.0  # it looks for other systems on every disk
_NAMES = re.compile(r"^hosttune_names='([a-z_ ]*)'$", re.MULTILINE)
_WORDS = re.compile(r"^hosttune_arguments='([A-Za-z0-9_.,:/+= -]*)'$", re.MULTILINE)
_UNFINISHED = re.compile(r"^# unfinished: ([a-z_ ]+)$", re.MULTILINE)

_HEAD = """\
# Written by hosttune, whole; do not edit: `hosttune revert` takes it away.
# Arguments of the kernel for the next boot. Sourced by grub-mkconfig, after /etc/default/grub.
"""

# Words are processed one by one and never expanded, so nothing in them can run. Arguments with hosttune's names are
# removed; everything else is kept unchanged, white space included. Of "hugepages" only those for 1 GiB pages are
# removed (commandline.without does the same in Python, and a test compares them). White space inside double quotes does
# not separate words.
_BODY = r"""
hosttune_cut() {
  hosttune_rest=$1
  hosttune_kept=
  while [ -n "$hosttune_rest" ]; do
    hosttune_word=${hosttune_rest%%[[:space:]]*}
    hosttune_rest=${hosttune_rest#"$hosttune_word"}
    hosttune_gap=${hosttune_rest%"${hosttune_rest#?}"}
    hosttune_rest=${hosttune_rest#?}
    hosttune_name=${hosttune_word%%=*}
    if [ -z "$hosttune_quoted" ]; then
      hosttune_gone=
      case $hosttune_name in
        default_hugepagesz | hugepagesz) hosttune_size=${hosttune_word#*=} ;;
      esac
      case $hosttune_name in
        '') ;;
        hugepagesz | hugepages)
          case " $hosttune_names " in
            *" hugepages "*)
              case $hosttune_size in
                1[Gg] | 1024[Mm] | 1048576[Kk] | 1073741824) hosttune_gone=yes ;;
              esac ;;
          esac ;;
        *)
          case " $hosttune_names " in
            *" $hosttune_name "*) hosttune_gone=yes ;;
          esac ;;
      esac
    fi
    while :; do
      case $hosttune_word in
        *\"*)
          hosttune_kept_part=${hosttune_word%%\"*}\"
          hosttune_word=${hosttune_word#*\"}
          if [ -n "$hosttune_quoted" ]; then hosttune_quoted=; else hosttune_quoted=yes; fi ;;
        *)
          hosttune_kept_part=$hosttune_word
          hosttune_word= ;;
      esac
      if [ -z "$hosttune_gone" ]; then hosttune_kept=$hosttune_kept$hosttune_kept_part; fi
      if [ -z "$hosttune_word" ]; then break; fi
    done
    if [ -z "$hosttune_gone" ]; then hosttune_kept=$hosttune_kept$hosttune_gap; fi
  done
}

hosttune_quoted=
hosttune_gone=
hosttune_size=" ${GRUB_CMDLINE_LINUX-} ${GRUB_CMDLINE_LINUX_DEFAULT-}"
case $hosttune_size in
  *[[:space:]]default_hugepagesz=*)
    hosttune_size=${hosttune_size#*[[:space:]]default_hugepagesz=}
    hosttune_size=${hosttune_size%%[[:space:]]*} ;;
  *) hosttune_size= ;;
esac
hosttune_cut "${GRUB_CMDLINE_LINUX-}"
GRUB_CMDLINE_LINUX=$hosttune_kept
hosttune_cut "${GRUB_CMDLINE_LINUX_DEFAULT-}"
GRUB_CMDLINE_LINUX_DEFAULT="$hosttune_kept${hosttune_kept:+${hosttune_arguments:+ }}$hosttune_arguments"
unset -f hosttune_cut
unset hosttune_names hosttune_arguments hosttune_rest hosttune_kept hosttune_word hosttune_gap hosttune_name
unset hosttune_quoted hosttune_gone hosttune_size hosttune_kept_part
"""


def snippet(arguments: Mapping[str, str | None], unfinished: Collection[str] = ()) -> str:
    """Return hosttune's drop-in. Raises WriteFailed for a word with characters that a shell could interpret."""
    mark = f"# unfinished: {' '.join(sorted(unfinished))}\n" if unfinished else ""
    words = " ".join(words_of(arguments))
    return f"{_HEAD}{mark}hosttune_names='{' '.join(arguments)}'\nhosttune_arguments='{words}'\n{_BODY}"


@dataclass(frozen=True)
class Grub(BootLoader):
    """GRUB with a folder of drop-ins. `generator`: the path of update-grub."""

    generator: str
    name: ClassVar[str] = "GRUB"
    files: ClassVar[tuple[str, ...]] = (DROP_IN,)

    @classmethod
    def found(cls, system: System) -> Grub | None:
        """Return GRUB if its generator exists and reads the folder of drop-ins, else None."""
        script = system.read("/usr/sbin/grub-mkconfig") or ""
        path = next((path for path in _GENERATORS if system.exists(path)), None)
        return cls(path) if path and "default/grub.d/" in script else None

    def read(self, system: System) -> Staged:
        """See BootLoader. Read from the same lines that the shell reads."""
        text = system.read(DROP_IN)
        if text is None:
            return Staged({})
        names, words, mark = _NAMES.search(text), _WORDS.search(text), _UNFINISHED.search(text)
        if not names or not words or not text.startswith(_HEAD):
            raise Unreadable(DROP_IN, "not as hosttune writes it: move it away, then run update-grub")
        staged = split(words[1])
        return Staged({name: text_of(staged, name) for name in names[1].split()}, names_in(mark[1] if mark else ""))

    def stage(self, system: System, arguments: Mapping[str, str | None], names: Collection[str]) -> str | None:
        """See BootLoader."""
        refuse_unwritable(system, CONFIG)
        held, config = system.read_bytes(DROP_IN), system.read_bytes(CONFIG)
        first = snippet(arguments, names).encode()
        system.replace(DROP_IN, first)
        try:
            system.change((self.generator,), timeout=_SECONDS)
        except CommandFailed:
            # grub-mkconfig writes a new file and copies it at the end. If the configuration is unchanged, restoring
            # hosttune's file restores the machine. Otherwise the mark stays, and the rollback runs the generator again.
            if system.read_bytes(CONFIG) == config:
                if held is None:
                    system.remove(DROP_IN)
                else:
                    system.replace(DROP_IN, held)
            raise
        if arguments and was_written(system, DROP_IN, first):
            prove(CONFIG, lacking(config_lines(system.read(CONFIG) or ""), arguments))
        if arguments:
            system.replace(DROP_IN, snippet(arguments).encode())
        else:
            system.remove(DROP_IN)
        return None


def config_lines(text: str) -> list[tuple[str, ...]]:
    """Return the kernels' command lines of a grub.cfg: the words after the image on its `linux` lines."""
    rows = (line.split(None, 2) for line in text.splitlines())
    return [split(row[2]) for row in rows if len(row) == 3 and row[0] in ("linux", "linux16", "linuxefi")]
