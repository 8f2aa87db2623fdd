"""What a guest's existing definition holds besides the guest: its digest, its secrets, the programs that manage it.

Pure. Also the comparison of two such definitions, which must not lose anything that hosttune does not understand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from hosttune.domain.compare import same_guest
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
_SECRET = "passwd"  # of <graphics>: all that --security-info adds (libvirt, virDomainGraphicsAuthDefFormatAttr)


def digest_of(xml: str) -> str:
    """Return the SHA-256 of a definition as `virsh dumpxml --inactive` prints it, in hex.

    White space before and behind the text does not count. Of a text with secrets it is the same as without them.
    """
    return sha256(f"{without_secrets(xml).strip()}\n".encode("utf-8", "surrogatepass")).hexdigest()


def without_secrets(xml: str) -> str:
    """Return the definition without passwords, as libvirt prints it without --security-info; all else byte for byte.

    Raises BadInput for a text that is not a domain XML and has the word of a password in it.
    """
    if _SECRET not in xml:
        return xml
    text = XmlText(xml.encode("utf-8", "surrogatepass"))
    for element in _with_secrets(text):
        element.unset(_SECRET)
    return bytes(text).decode("utf-8", "surrogatepass")


def secrets_of(xml: str) -> tuple[str, ...]:
    """Return the passwords of a definition, in its order. Raises as `without_secrets` does."""
    if _SECRET not in xml:
        return ()
    return tuple(
        element.attributes[_SECRET] for element in _with_secrets(XmlText(xml.encode("utf-8", "surrogatepass")))
    )


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
        if _SECRET in element.attributes:
            secrets.append(element)
        pending += reversed(element.children)
    return secrets


def differences(live_xml: str, want_xml: str) -> tuple[str, ...]:
    """Return how a live definition differs from the wanted one, without secrets; empty if all elements are the same.

    The wanted one was made from libvirt's own text, so libvirt leaves it as it is. The order of elements does not
    count. Live XML that cannot be read counts as different. Raises BadInput if the wanted XML is not a domain.
    """
    if live_xml == want_xml:
        return ()
    want = _elements(without_secrets(want_xml))
    try:
        if secrets_of(live_xml) != secrets_of(want_xml):
            return ("the password of a graphics device differs",)
        live = _elements(without_secrets(live_xml))
    except BadInput as error:
        return (f"{error.where}: {error.what}",)
    if live == want:
        return ()
    missing, added = want - live, live - want
    texts = (*(f"{written}: missing" for written in missing), *(f"{written}: not wanted" for written in added))
    return same_guest(live_xml, want_xml) or texts


class _Written(NamedTuple):
    """An element: the tags from the root to it, its text, its attributes."""

    path: str
    text: str
    attributes: frozenset[tuple[str, str]]

    def __str__(self) -> str:
        said = "".join(f" {name}={value!r}" for name, value in sorted(self.attributes))
        return f"{self.path}{said}{f' {self.text!r}' if self.text else ''}"


# What newer versions add to an element that hosttune writes (libvirt 10.1, virCPUDefFormatBuf).
_ADDED = {"topology": ("clusters", "1")}


def _elements(xml: str) -> Counter[_Written]:
    elements: Counter[_Written] = Counter()
    pending = [(read_tree(xml, where="domain XML"), "")]
    while pending:
        element, above = pending.pop()
        path = f"{above}{element.tag}"
        attributes = {(str(name), str(value)) for name, value in element.items()}
        attributes.discard(_ADDED.get(str(element.tag), ("", "")))
        elements[_Written(path, (element.text or "").strip(), frozenset(attributes))] += 1
        pending += [(child, f"{path}/") for child in element]
    return elements
