"""What a definition holds besides the guest (digest, secrets, managers), and whether two mean the same guest. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from hosttune.domain.compare import SECRET, as_texts, differing, in_words, other_elements
from hosttune.domain.edit import Element, XmlText
from hosttune.domain.reader import read_tree
from hosttune.errors import BadInput

# Namespaces of the metadata that other managers of guests write.
_MANAGERS = {
    "http://openstack.org/xmlns/libvirt/nova/": "OpenStack Nova",
    "http://ovirt.org/vm/": "oVirt",
    "http://kubevirt.io": "KubeVirt",
    "http://opennebula.org/xmlns/libvirt/": "OpenNebula",
}


def digest_of(xml: str) -> str:
    """Return the SHA-256 of a definition as `virsh dumpxml --inactive` prints it, in hex.

    White space before and behind the text does not count. Of a text with secrets it is the same as without them.
    """
    return sha256(f"{without_secrets(xml).strip()}\n".encode("utf-8", "surrogatepass")).hexdigest()


def without_secrets(xml: str) -> str:
    """Return the definition without passwords, as libvirt prints it without --security-info; all else byte for byte.

    Raises BadInput for a text that is not a domain XML and has the word of a password in it.
    """
    if SECRET not in xml:
        return xml
    text = XmlText(xml.encode("utf-8", "surrogatepass"))
    for element in _with_secrets(text):
        element.unset(SECRET)
    return bytes(text).decode("utf-8", "surrogatepass")


def secrets_of(xml: str) -> tuple[str, ...]:
    """Return the passwords of a definition, in its order. Raises as `without_secrets` does."""
    if SECRET not in xml:
        return ()
    return tuple(element.attributes[SECRET] for element in _with_secrets(XmlText(xml.encode("utf-8", "surrogatepass"))))


def same_guest(live_xml: str, want_xml: str, *, whole: bool = False) -> tuple[str, ...]:
    """Return how the live XML differs from the wanted one, one text each; empty if both mean the same guest.

    `whole`: the wanted one was made from libvirt's own text, so every element and password counts, in any order. Live
    XML that cannot be read counts as different. Raises BadInput if the wanted XML is not a domain.
    """
    if whole and live_xml == want_xml:
        return ()
    want = read_tree(want_xml, where="wanted XML")
    try:
        if whole and secrets_of(live_xml) != secrets_of(want_xml):
            return ("the password of a graphics device differs",)
        live = read_tree(live_xml, where="live XML")
        others = list(other_elements(live, want))
        differences = [*differing(live, want)] if others or not whole else []
    except BadInput as error:
        return (f"{error.where}: {error.what}",)
    return as_texts(in_words(differences or (others if whole else ())))


def managers_of(text: XmlText) -> tuple[str, ...]:
    """Return the names of other programs that manage a guest, by its metadata."""
    return managers_in([child.tag for element in text.root.all("metadata") for child in element.children])


def managers_in(spaces: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the programs that write metadata in these namespaces."""
    return tuple(manager for space, manager in _MANAGERS.items() if any(one.startswith(space) for one in spaces))


def _with_secrets(text: XmlText) -> list[Element]:
    """Return the elements, of any kind, that have a password."""
    secrets, pending = [], [text.root]
    while pending:
        element = pending.pop()
        if SECRET in element.attributes:
            secrets.append(element)
        pending += reversed(element.children)
    return secrets
