"""The same statement in a DSSE envelope, for tools of in-toto: an option, where `securesystemslib` is installed.

hosttune itself verifies `FILE.sig` only. https://github.com/secure-systems-lab/dsse/blob/master/envelope.md
"""

from __future__ import annotations

from typing import Any

from hosttune.errors import BadInput
from hosttune.model.values import to_json
from hosttune.state import load

PAYLOAD_TYPE = "application/vnd.in-toto+json"
SUFFIX = ".dsse.json"
_HINT = "give an SSH key without a passphrase: Ed25519, ECDSA or RSA; not its public half"


def envelope_of(text: str, key: str) -> str:
    """Return the DSSE envelope of a statement's text, as JSON, signed with a private SSH key in a file.

    Raises BadInput if the key cannot be used, or securesystemslib is not installed.
    """
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import load_ssh_private_key
        from securesystemslib.dsse import Envelope
        from securesystemslib.signer import CryptoSigner
    except ImportError as error:
        hint = "pip install 'hosttune[dsse]', or leave --dsse out"
        raise BadInput(f"{error.name} is not installed", where="--dsse", hint=hint) from error
    data = load(key, what="an SSH key", size="configuration")
    try:
        private: Any = load_ssh_private_key(data, None)
        envelope = Envelope(text.encode(), PAYLOAD_TYPE, {})
        envelope.sign(CryptoSigner(private))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadInput(f"not a key for a DSSE envelope: {error}", where=key, hint=_HINT) from error
    return to_json(envelope.to_dict())
