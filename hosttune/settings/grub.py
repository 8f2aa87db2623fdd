"""GRUB on Debian and Ubuntu: a drop-in that grub-mkconfig sources, then update-grub.

grub-mkconfig sources /etc/default/grub, then /etc/default/grub.d/*.cfg in the order of names, with `set -e`. This is a
patch of Debian; upstream has no such folder, so hosttune checks that the script names it. hosttune's file sorts last,
because a later file may set the variables again. 10_linux writes GRUB_CMDLINE_LINUX and GRUB_CMDLINE_LINUX_DEFAULT into
normal entries, but only the first into recovery entries. hosttune's arguments go into the second, so recovery boots
without them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from hosttune.errors import CommandFailed, Unreadable
from hosttune.machine.system import System
from hosttune.model.commandline import split, text_of
from hosttune.settings.bootloader import (
    BootLoader,
    Staged,
    lacking,
    names_in,
    prove,
    refuse_unwritable,
    was_written,
    words_of,
)

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
