"""The agent as a service: the unit that is shipped, installed, started and read back."""

from __future__ import annotations

import os
import re

from hosttune.assets import shipped_text
from hosttune.errors import BadInput, CommandFailed, Refused, WriteFailed
from hosttune.machine.system import System

NAME = "hosttune-watch.service"
PLACE = f"/etc/systemd/system/{NAME}"
PACKAGED = f"/usr/lib/systemd/system/{NAME}"
TEXTFILE = "/var/lib/prometheus/node-exporter/hosttune.prom"
_COMMAND = "/opt/hosttune/bin/hosttune watch"  # as the shipped unit has it
_PLAIN = re.compile(r"/[A-Za-z0-9_./+-]+")  # systemd would read "%", quotes and spaces


def unit(command: str, textfile: str, interval: float | None, *, keep: bool) -> str:
    """Return the shipped unit for this command and textfile. Raises BadInput for a path that a unit cannot name."""
    for path in (command, textfile):
        if not _PLAIN.fullmatch(path):
            hint = "use an absolute path of letters, digits and _ . / + -"
            raise BadInput(f"a unit cannot name this path: {path}", where="--install", hint=hint)
    words = [f"{command} watch", *(["--keep"] if keep else []), *([f"--interval {interval:g}"] if interval else [])]
    text = shipped_text("playbooks/files", NAME).replace(_COMMAND, " ".join(words))
    text = text.replace(TEXTFILE, textfile).replace(
        f"-{os.path.dirname(TEXTFILE)}\n", f"-{os.path.dirname(textfile)}\n"
    )
    if keep:  # it writes what drifted
        text = text.replace("ProtectKernelTunables=yes\n", "ProtectKernelTunables=no\nReadWritePaths=-/etc/sysctl.d\n")
    return text


def install(system: System, text: str) -> tuple[str, ...]:
    """Install, enable and start the unit; return lines that say what was done and what undoes it.

    A unit of a package that says the same is used as it is. Raises Refused if somebody else's unit is there, without
    systemd, and if the agent does not run afterwards.
    """
    if not system.captured and not system.exists("/run/systemd/system"):
        raise Refused("systemd does not run here", where=NAME, hint="run hosttune watch by what runs services here")
    data, held = text.encode(), system.read_bytes(PLACE)
    if held is not None and not held.startswith(data.partition(b"\n")[0]):
        raise Refused(f"another unit is there: {PLACE}", where=NAME, hint="move it away, or start it as it is")
    packaged = held is None and system.read_bytes(PACKAGED) == data
    if not packaged:
        system.replace(PLACE, data)
    system.change(("systemctl", "daemon-reload"))
    system.change(("systemctl", "enable", NAME))
    system.change(("systemctl", "start" if held == data else "restart", NAME))
    if not packaged and system.read_bytes(PLACE) != data:
        raise WriteFailed(PLACE, "it reads differently after it was written")
    if not system.captured:
        for state in ("is-enabled", "is-active"):
            try:
                system.run(("systemctl", state, "--quiet", NAME))
            except CommandFailed as error:
                hint = f"see journalctl -u {NAME}; take it away with systemctl disable --now {NAME}"
                raise Refused(f"it does not run: systemctl {state} says no", where=NAME, hint=hint) from error
    remove = "" if packaged else f" && rm {PLACE} && systemctl daemon-reload"
    return (
        f"{'the package has' if packaged else 'written'}: {PACKAGED if packaged else PLACE}",
        f"{'enabled and running' if not system.captured else 'enabled'}: {NAME}",
        f"undo: systemctl disable --now {NAME}{remove}",
    )
