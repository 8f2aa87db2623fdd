"""The signature of a statement: `ssh-keygen -Y`, on the controller. The key never reaches a host.

The signature is the file `FILE.sig` beside the statement, in OpenSSH's format (PROTOCOL.sshsig), over every byte of the
statement, in the namespace `hosttune-handover`. Signers are an `allowed_signers` file (ssh-keygen(1), ALLOWED SIGNERS).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from hosttune.errors import BadInput, CommandFailed, HosttuneError
from hosttune.journal.state import load, save
from hosttune.machine.live import run_command
from hosttune.model.handover import CLOCKS, LONGEST, Statement, time_of
from hosttune.model.limits import LIMITS, limit
from hosttune.model.verification import Reason

NAMESPACE = "hosttune-handover"
SUFFIX = ".sig"
SECONDS = 60.0  # of one call; a key on a token waits to be touched
_KRL = b"SSHKRL\n\0"  # how a KRL begins (PROTOCOL.krl)
_DURATION = r"([1-9][0-9]{0,4})(m|h|d)"
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}
_INSTALL = "install OpenSSH's client (openssh-client), 8.9 or newer"


class Unclean(HosttuneError):
    """The statement must not be signed: a device of it is not clean."""


def parse_duration(text: str) -> timedelta:
    """Return a duration ("30m", "24h", "7d"), at most 30 days. Raises BadInput."""
    match = re.fullmatch(_DURATION, text)
    length = timedelta(**{_UNITS[match[2]]: int(match[1])}) if match else None
    if length is None or length > LONGEST:
        hint = "give a number with m, h or d, at most 30d: 24h"
        raise BadInput(f"{text!r} is not a time that a statement can be valid for", where="--expires", hint=hint)
    return length


def sign(path: str, key: str, expires: timedelta, *, at: datetime | None = None) -> Statement:
    """Write the expiry into the statement, sign it, and write `FILE.sig`; return the statement.

    A statement that was signed before is signed again, with the new expiry. Raises BadInput for a file that is not a
    statement, a key that cannot be used, or a wrong clock; Unclean; CommandFailed if ssh-keygen fails.
    """
    from hosttune.handover.statement import refuse_forged

    if path == "-":
        raise BadInput("not a file", where=path, hint="name the file: its signature is written beside it")
    data = load(path, what="a statement (hosttune handover writes it)", size="statement")
    statement = Statement.from_json(data, where=path)
    refuse_forged(statement, path)
    refuse_unclean(statement, path)
    load(key, what="the SSH key that signs, or its public half if ssh-agent has it", size="configuration")
    at = at or datetime.now(UTC)
    issued = statement.predicate.issued_at
    if time_of(issued, path) > at + CLOCKS:
        what = f"issued at {issued}, and it is {at.isoformat(timespec='seconds')} here: one of the clocks is wrong"
        raise BadInput(what, where=path, hint="set the clocks of this machine and of the host, then sign again")
    until = (at + expires).isoformat(timespec="seconds")
    predicate = msgspec.structs.replace(statement.predicate, expires_at=until)
    signed = msgspec.structs.replace(statement, predicate=predicate)
    text = signed.to_json()
    signature = _sign(text, key)
    # A crash between the two leaves the old signature beside the new text: void, and signed again by the next call.
    save(path, text)
    save(path + SUFFIX, signature)
    return signed


def _sign(text: str, key: str) -> str:
    argv = ("ssh-keygen", "-Y", "sign", "-q", "-n", NAMESPACE, "-f", os.path.abspath(key))
    try:
        return run_command(argv, SECONDS, text)
    except CommandFailed as error:
        if error.reason == "not installed":
            error.hint = _INSTALL
        else:
            error.hint += "\na key with a passphrase: load it into ssh-agent, and give its public half (KEY.pub)"
        raise


def refuse_unclean(statement: Statement, where: str) -> None:
    """Raise Unclean, with every reason, unless the statement has devices and each is clean."""
    lines = [f"  {device.address}: {why}" for device in statement.predicate.devices for why in device.unclean]
    if not statement.predicate.devices:
        lines = ["  it has no device"]
    if lines:
        hint = "finish the hand-over of these devices, or make a statement without them"
        raise Unclean("not signed: not every device is clean\n" + "\n".join(lines), where=where, hint=hint)


def signature_reasons(
    data: bytes, signature: str, signers: str, identity: str, revoked: Sequence[str] = ()
) -> tuple[Reason, ...]:
    """Return why the signature does not count; empty if it does.

    `signature`, `signers`, `revoked`: paths; a key that one of the lists revokes is revoked. Raises BadInput for a list
    of signers or revoked keys that cannot be read.
    """
    load(signers, what="a file of allowed signers (--signers)", size="list of SSH keys")
    for path in revoked:
        _list(path)
    if not os.path.isfile(signature):
        return (Reason(reason="no-signature", subject="statement", text=f"there is no {signature}"),)
    if os.path.getsize(signature) > limit("signature"):  # ssh-keygen reads it in a time that is the square of its size
        text = f"{signature} is larger than {LIMITS['signature'].text}: it is no signature"
        return (Reason(reason="signature", subject="statement", text=text),)
    text = data.decode()
    place, who = ("-s", os.path.abspath(signature)), ("-f", os.path.abspath(signers), "-I", identity)
    wrong = _failure(("-Y", "check-novalidate", "-n", NAMESPACE, *place), text)
    reasons = []
    if wrong is not None:
        reasons.append(Reason(reason="signature", subject="statement", text=f"the signature is not its own: {wrong}"))
    elif (wrong := _failure(("-Y", "verify", "-n", NAMESPACE, *who, *place), text)) is not None:
        what = f"{identity!r} is not a signer whom {signers} allows with this key, now: {wrong}"
        reasons.append(Reason(reason="signer", subject="statement", text=what))
    for path in revoked if not reasons else ():
        wrong = _failure(("-Y", "verify", "-n", NAMESPACE, *who, *place, "-r", os.path.abspath(path)), text)
        if wrong is not None:
            check_list(path)
            return (Reason(reason="revoked", subject="statement", text=f"its key is revoked, by {path}"),)
    return tuple(reasons)


def check_list(path: str) -> None:
    """Raise BadInput for a file that ssh-keygen takes for neither a KRL nor public keys: it accepts nothing with it."""
    if all(not line.strip() or line.lstrip().startswith(b"#") for line in _list(path).split(b"\n")):
        return
    place = ("-f", os.path.abspath(path))
    if _failure(("-Q", "-l", *place), "") is not None and _failure(("-l", *place), "") is not None:
        hint = "give a KRL (ssh-keygen -k), or a file with a public key on each line"
        raise BadInput("not a list of revoked keys", where=path, hint=hint)


def _list(path: str) -> bytes:
    """Return the bytes of a list of revoked keys. Raises BadInput for one that has lost what it had.

    ssh-keygen finds no key revoked by a file that a copy or a crash left empty, or full of zeros.
    """
    data = load(path, what="revoked keys (--revoked)", size="list of SSH keys")
    if not data.startswith(_KRL) and (b"\0" in data or not data.strip()):
        hint = "copy it again; if no key is revoked, give a KRL without keys (ssh-keygen -k -f FILE), or a comment (#)"
        raise BadInput("an empty list of revoked keys, or one with zero bytes in its text", where=path, hint=hint)
    return data


def _failure(arguments: tuple[str, ...], text: str) -> str | None:
    """Return why ssh-keygen refuses, in its words; None if it accepts. What cannot be checked is refused."""
    try:
        run_command(("ssh-keygen", *arguments), SECONDS, text)
    except CommandFailed as error:
        if error.reason == "not installed":
            return f"ssh-keygen cannot be asked: {_INSTALL}"
        return " ".join(error.output.split())[:300] or error.reason
    return None
