"""When a sanitize counts as ours, new and done: every order of answers of the drive's log."""

from __future__ import annotations

from itertools import product

from msgspec.structs import replace
from sweeps import FULL

from hosttune.handover.erasing.nvme import AUSE, BLOCK_ERASE, CRYPTO_ERASE, OVERWRITE, SanitizeLog, command_dword
from hosttune.handover.erasing.progress import Sanitize, after, move_of

BEFORE = SanitizeLog(status=1, erased=True, progress=65535, cdw10=BLOCK_ERASE)
OWN = command_dword(BLOCK_ERASE, BEFORE)
LOGS = tuple(
    SanitizeLog(status=status, erased=erased, progress=0, cdw10=cdw10)
    for status in range(6)
    for erased in (False, True)
    for cdw10 in (BLOCK_ERASE, OWN, CRYPTO_ERASE)
)


def test_the_command_differs_from_the_last_one() -> None:
    for action in (BLOCK_ERASE, OVERWRITE, CRYPTO_ERASE):
        for last in range(1 << 10):
            word = command_dword(action, replace(BEFORE, cdw10=last))
            assert word != last
            assert word & 0b111 == action
            assert not word & AUSE or last == word ^ AUSE


def play(before: SanitizeLog, logs: tuple[SanitizeLog, ...]) -> tuple[str, int, list[SanitizeLog]]:
    """Ask as the erasure does, with a drive that takes every command: the last move, commands sent, logs read."""
    run = Sanitize(before=before, cdw10=command_dword(BLOCK_ERASE, before))
    sent, read, move = 0, [], "wait"
    for log in logs:
        read.append(log)
        run = after(run, log)
        move = move_of(run, log)
        if move == "send":
            sent += 1
            run = replace(run, sent=True)
        elif move in ("done", "failed", "other"):
            break
    return move, sent, read


def proven(before: SanitizeLog, own: int, read: list[SanitizeLog]) -> bool:
    """What the specification proves, without the product's code: completed, all erased, and by a new operation."""
    last = read[-1]
    if last.status not in (1, 4) or not last.erased:
        return False
    unchanged = (before.status, before.erased, before.cdw10)
    sent = False
    for log in read[:-1]:
        if log.status == 2 and (log.cdw10 == own or (sent and log.cdw10 & 7 == own & 7)):
            return log.cdw10 == last.cdw10  # seen running: the end must be of the same operation
        sent = sent or (log.status, log.erased, log.cdw10) == unchanged
    return last.cdw10 == own  # the log before had another command


def test_every_order_of_answers() -> None:
    done = failed = 0
    for logs in product(LOGS, repeat=4 if FULL else 3):
        move, sent, read = play(BEFORE, logs)
        assert sent <= 1, logs
        if sent:  # only while nothing in the log has changed
            first = next(n for n, log in enumerate(read) if log.shown == BEFORE.shown)
            assert all(log.shown == BEFORE.shown for log in read[: first + 1]), logs
        if move == "done":
            done += 1
            assert proven(BEFORE, OWN, read), logs
        elif move == "failed":
            failed += 1
            assert not proven(BEFORE, OWN, read), logs
    assert done > 1000  # neither answer is impossible
    assert failed > 1000


def test_stale_answers_are_never_done() -> None:
    for status in range(6):
        for erased in (False, True):
            stale = SanitizeLog(status=status, erased=erased, progress=65535, cdw10=BLOCK_ERASE)
            move, sent, _ = play(stale, (stale,) * 50)
            assert move == ("other" if status == 2 else "stale")
            assert sent == (0 if status == 2 else 1)


def test_the_ends_of_an_operation_of_ours() -> None:
    run = Sanitize(before=BEFORE, cdw10=OWN, sent=True)
    moves = {
        (status, erased): move_of(run, SanitizeLog(status=status, erased=erased, progress=0, cdw10=OWN))
        for status in range(6)
        for erased in (False, True)
    }
    assert {ends for ends, move in moves.items() if move == "done"} == {(1, True), (4, True)}
    assert {ends for ends, move in moves.items() if move == "failed"} == {(1, False), (4, False), (3, False), (3, True)}
    assert {ends for ends, move in moves.items() if move == "wait"} == {(2, False), (2, True)}
    assert {ends for ends, move in moves.items() if move == "other"} == {(0, False), (0, True), (5, False), (5, True)}


def test_a_drive_that_drops_a_bit_of_the_command_is_believed_only_if_it_was_seen_running() -> None:
    """Its log has the action, but not the bit that makes the command differ from the last one."""
    run = Sanitize(before=BEFORE, cdw10=OWN, sent=True)
    finished = SanitizeLog(status=1, erased=True, progress=65535, cdw10=BLOCK_ERASE)
    assert move_of(run, finished) == "stale"
    running = replace(finished, status=2, erased=False)
    assert after(run, running).shows == BLOCK_ERASE
    assert move_of(after(run, running), finished) == "done"
    exact = after(run, replace(running, cdw10=OWN))
    assert move_of(exact, finished) == "stale"  # it showed the whole command before
    assert after(replace(run, sent=False), running).shows is None  # another program's: no command of ours was taken
    assert move_of(replace(run, sent=False), running) == "other"
