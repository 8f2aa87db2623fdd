"""Starts of guests that have devices of this host: who records them, and how a device's epoch is counted.

Two files in the state directory. `handover/starts` is written by hosttune's hook of libvirt, for every start of a
guest by any program; `handover/own-starts` by hosttune for its own starts. A line is `ADDRESS HOW TIME GUEST`;
HOW is "guest" (the guest has the function), "function" (it has a virtual function or mediated device of it) or
"hand-over" (the device was quarantined: so no epoch is 0, and a lost file shows). A line that cannot be read counts
for every device. The epoch of a device is the number of its lines in both files; only whether it has changed matters,
so a start that both record is counted twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from hosttune.model.hostfields import Problem
from hosttune.model.values import is_address

FOLDER = "handover"  # in the state directory
REGISTER = f"{FOLDER}/register.json"
REGISTER_ANSWER = "handover-register"  # in a capture: of quarantined devices only what planning needs
# For the hook: the addresses of the register that no guest may have, one a line, and how many they are.
QUARANTINED = f"{FOLDER}/quarantined"
STARTS = f"{FOLDER}/starts"
OWN_STARTS = f"{FOLDER}/own-starts"
TEST_GUEST = f"{FOLDER}/test-guest"  # the guest of a hand-over that may have quarantined devices, for the hook
REVOKED = f"{FOLDER}/revoked"  # every list of revoked keys that this host was given
COURSES = f"{FOLDER}/transactions"  # journals of hand-overs
SIGNED = f"{FOLDER}/signed"  # statements that were valid here, with their signatures
_SECOND = 19  # characters of a time to its seconds, in UTC
GUEST, FUNCTION, HANDOVER = "guest", "function", "hand-over"


def start_line(address: str, how: str, when: str, guest: str) -> str:
    """Return the line of one device of one start, with its newline."""
    return f"{address} {how} {when} {' '.join(guest.split())}\n"


def count_starts(text: str, address: str, physical: str | None = None) -> int:
    """Return how many lines are about a device. `physical`: for a virtual function, the function that it belongs to.

    The start of a guest that has the physical function ends its virtual functions, so that it counts for them too.
    """
    return sum(1 for line in text.split("\n") if line and _is_about(line.split(" ", 2), address, physical))


def starts_mark(starts: str, own: str, address: str, physical: str | None = None) -> str:
    """Return what tells the lines about a device from any others, however many there are: their sha256.

    `starts`, `own`: the contents of the two records. Where one was lost and written anew, the number can be as before.
    """
    import hashlib

    def lines_of(text: str) -> str:
        lines = (line.rstrip() for line in text.split("\n") if line)
        return "\n".join(line for line in lines if _is_about(line.split(" ", 2), address, physical))

    return hashlib.sha256(f"{lines_of(starts)}\0{lines_of(own)}".encode()).hexdigest()


def no_start_before(starts: str, own: str, address: str, physical: str | None = None) -> bool:
    """Return whether no start with a device is recorded since it was last quarantined, or ever if it never was.

    `starts`, `own`: the contents of the two records. `physical`: as in `count_starts`.
    """
    since, started = "", False
    for line in starts.split("\n"):
        words = line.split(" ", 3)
        if _is_quarantine(words, address):
            since, started = words[2][:_SECOND], False
        else:
            started = started or bool(line and _is_about(words, address, physical))
    mine = [words for line in own.split("\n") if line and _is_about(words := line.split(" ", 3), address, physical)]
    return not started and not any(len(words) < 3 or words[2][:_SECOND] >= since for words in mine)


def count_quarantines(starts: str, address: str) -> int:
    """Return how often a device was quarantined, by the record of starts."""
    return sum(1 for line in starts.split("\n") if _is_quarantine(line.split(" ", 3), address))


def _is_quarantine(words: list[str], address: str) -> bool:
    return words[:2] == [address, HANDOVER] and len(words) > 2


def _is_about(words: list[str], address: str, physical: str | None) -> bool:
    if len(words) < 3 or words[1] not in (GUEST, FUNCTION, HANDOVER) or not is_address(words[0]):
        return True
    return words[0] == address or (words[0] == physical and words[1] == GUEST)


def quarantine_list(addresses: Collection[str]) -> str:
    """Return the text of the hook's list of quarantined devices. Its last line tells how many they are."""
    return "".join(f"{address}\n" for address in sorted(addresses)) + f"end {len(addresses)}\n"


def trace_of_register(
    folder: str, names: Callable[[str], Sequence[str]], read: Callable[[str], str | None]
) -> str | None:
    """Return a file that proves that a state directory had a register; None if nothing is there that does.

    `names` and `read`: as in `disks.drive_serial`. An empty list is none: it is written before the first register.
    """
    listed, starts = (read(f"{folder}/{name}") for name in (QUARANTINED, STARTS))
    if listed is not None and listed.strip() != quarantine_list(()).strip():
        return QUARANTINED
    if any(f" {HANDOVER} " in line for line in (starts or "").splitlines()):
        return STARTS
    beside = [f"{FOLDER}/{name}" for name in names(f"{folder}/{FOLDER}") if name.startswith("statement-")]
    return next((name for name in (*beside, SIGNED, COURSES) if name in beside or names(f"{folder}/{name}")), None)


def unread_register(problems: Iterable[Problem]) -> Problem | None:
    """Return why a host's register could not be read; None if it was, or if the host document says nothing of one."""
    return next((problem for problem in problems if problem.where.endswith((REGISTER, REGISTER_ANSWER))), None)
