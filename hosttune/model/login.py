"""Who may log in to a guest, and the image of its disk: what may be written of them in an intent and in a plan."""

from __future__ import annotations

import binascii
import os
import re
from collections.abc import Sequence

from hosttune.errors import BadInput
from hosttune.model.limits import check_count

# useradd(8), "CAVEATS": at most 32 characters
_USER = "[a-z_][a-z0-9_-]{0,31}"
# sshd(8), "AUTHORIZED_KEYS FILE FORMAT". Not ssh-dss, which OpenSSH has given up.
_KEY = (
    r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)|sk-(?:ssh-ed25519|ecdsa-sha2-nistp256)@openssh\.com)"
    r" ([A-Za-z0-9+/]{32,16384}={0,2})( [ -~]{0,255})?"
)


def check_login(user: str | None, keys: Sequence[str], at: str) -> None:
    """Raise BadInput for a name that no user can have, a user without a key, and what is not a public key."""
    if user is not None and not re.fullmatch(_USER, user):
        hint = "at most 32 lower-case letters, digits, '_' and '-', the first no digit"
        raise BadInput(f"{user!r} is not the name of a user", where=f"{at}.user", hint=hint)
    if user is not None and not keys:
        hint = "give public keys in ssh_keys: a guest gets no password"
        raise BadInput("a user who cannot log in", where=f"{at}.user", hint=hint)
    check_count(len(keys), "SSH keys", f"{at}.ssh_keys")
    for n, key in enumerate(keys):
        if not _is_key(key):
            secret = "PRIVATE KEY" in key
            what = "a private key: keep it to yourself" if secret else f"{key[:60]!r} is not a public SSH key"
            hint = "give the line of the file that ends in .pub (ssh-ed25519, ssh-rsa, ecdsa-sha2-…), without options"
            raise BadInput(what, where=f"{at}.ssh_keys[{n}]", hint=hint)


def _is_key(text: str) -> bool:
    """Return whether a line is a public key: its data begin with the name of its type, after four bytes of length."""
    match = re.fullmatch(_KEY, text)
    try:
        data = binascii.a2b_base64(match[2], strict_mode=True) if match else b""
    except binascii.Error:
        return False
    return match is not None and data.startswith(len(match[1]).to_bytes(4, "big") + match[1].encode())


def is_file_path(path: object) -> bool:
    """Return whether this may be the path of a file: absolute, in normal form, and not among devices."""
    return (
        isinstance(path, str)
        and path.startswith("/")
        and path.isprintable()
        and os.path.normpath(path) == path
        and not path.startswith(("//", "/dev/", "/proc/", "/sys/"))
        and path != "/"
    )
