"""Change a domain XML and keep every other byte: comments, order, quotes, line ends, encoding, what is not understood.

expat says at which byte each element begins; no text is searched for elements. New text is ASCII, other characters are
references, so that it is valid in every encoding of the document.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.parsers import expat

import msgspec

from hosttune.domain.reader import read_domain
from hosttune.errors import BadInput

# libvirt's own order (virDomainDefFormatInternal, virDomainCputuneDefFormat); its schema takes any order.
_ORDER = {
    parent: children.split()
    for parent, children in {
        "domain": "name uuid hwuuid genid title description metadata maxMemory memory currentMemory blkiotune memtune"
        " memoryBacking vcpu vcpus iothreads iothreadids defaultiothread cputune numatune resource bootloader"
        " bootloader_args sysinfo os idmap features cpu clock on_poweroff on_reboot on_crash on_lockfailure pm perf"
        " devices seclabel",
        "cputune": "shares global_period global_quota period quota emulator_period emulator_quota iothread_period"
        " iothread_quota vcpupin emulatorpin iothreadpin vcpusched iothreadsched emulatorsched cachetune memorytune",
        "memoryBacking": "hugepages nosharepages locked source access allocation discard",
        "numatune": "memory memnode",
        "cpu": "arch model vendor signature microcode counter topology cache maxphysaddr feature numa",
    }.items()
}
_SPACE = b" \t\r\n"


class Element(msgspec.Struct, eq=False):
    """One element: the bytes of its start tag, what is between the tags, and the bytes of its end tag (empty: `<a/>`).

    Change it by its methods only.
    """

    tag: str
    line: int
    start: bytes
    attributes: dict[str, str]
    parts: list[bytes | Element] = msgspec.field(default_factory=list)
    end: bytes = b""

    @property
    def children(self) -> list[Element]:
        """The child elements in the document's order."""
        return [part for part in self.parts if isinstance(part, Element)]

    def find(self, *path: str, **attributes: str) -> Element | None:
        """Return the first element at a path of tags; the last one has these attributes. None: there is none."""
        return next(self.all(*path, **attributes), None)

    def all(self, *path: str, **attributes: str) -> Iterator[Element]:
        """Yield the elements at a path of tags ("*": any), in the document's order; the last have these attributes."""
        for child in self.children:
            if path[0] not in (child.tag, "*"):
                continue
            if len(path) > 1:
                yield from child.all(*path[1:], **attributes)
            elif all(child.attributes.get(name) == value for name, value in attributes.items()):
                yield child

    def set(self, name: str, value: str) -> None:
        """Set an attribute: in its place and its quotes, or behind the others. The element must not have a prefix."""
        written = next((attribute for attribute in _attributes(self.start) if attribute[1] == name.encode()), None)
        if written is not None:
            _, _, at, quote, close = written
            self.start = self.start[: at + 1] + _escaped(value, quote) + self.start[close:]
        else:
            known = _attributes(self.start)
            at = known[-1][4] + 1 if known else _name_end(self.start)
            quote = known[-1][3] if known else b"'"
            self.start = (
                self.start[:at] + b" " + name.encode() + b"=" + quote + _escaped(value, quote) + quote + self.start[at:]
            )
        self.attributes[name] = value

    def unset(self, name: str) -> None:
        """Remove an attribute with the white space before it; nothing happens if there is none."""
        for begin, found, _, _, close in _attributes(self.start):
            if found == name.encode():
                self.start = self.start[:begin] + self.start[close + 1 :]
                del self.attributes[name]
                return


class XmlText:
    """A domain XML that can be changed. `bytes()` gives the text: without changes, the bytes that it was made from.

    `guest`: what it said before any change.
    """

    def __init__(self, data: bytes, *, where: str = "domain XML") -> None:
        """Read a text. Raises BadInput as `read_domain` does, and for an encoding that is not a superset of ASCII."""
        self.guest = read_domain(data, where=where)  # bounds, one <domain>, no document type, bounded depth
        if b"\0" in data:
            raise BadInput("not in UTF-8", where=where, hint="convert it to UTF-8: only such a text keeps its bytes")
        self._data, self._at = data, 0
        self._stack: list[Element] = []
        self.root: Element
        parser = expat.ParserCreate(namespace_separator="}")
        parser.StartElementHandler = lambda tag, attributes: self._started(parser, tag, attributes)
        parser.EndElementHandler = lambda tag: self._ended(parser)
        parser.StartDoctypeDeclHandler = lambda *_: _refuse_type(where)
        try:
            parser.Parse(self._data, True)
        except (expat.ExpatError, LookupError, ValueError) as error:
            raise BadInput(f"not an XML document: {error}", where=where, hint="correct it") from error
        self.newline = b"\r\n" if b"\r\n" in data else b"\n"

    def __bytes__(self) -> bytes:
        """Return the text with all changes."""
        return b"".join((self._before, *_flat(self.root), self._after))

    def add(self, parent: Element, tag: str, attributes: Mapping[str, str], text: str = "") -> Element:
        """Add a child where libvirt writes it, on a line of its own like its neighbours; return it."""
        near = (part for part in (*parent.parts, parent, self.root) if isinstance(part, Element))
        quote = next((attribute[3] for element in near for attribute in _attributes(element.start)), b"'")
        start = f"<{tag}".encode() + b"".join(
            b" " + name.encode() + b"=" + quote + _escaped(value, quote) + quote for name, value in attributes.items()
        )
        child = Element(tag, parent.line, start + (b">" if text else b"/>"), dict(attributes))
        if text:
            child.parts, child.end = [_escaped(text, b"")], f"</{tag}>".encode()
        self._open(parent)
        self._place(parent, child)
        return child

    def set_text(self, element: Element, text: str) -> None:
        """Give an element without children another text."""
        self._open(element)
        element.parts = [_escaped(text, b"")]

    def remove(self, parent: Element, child: Element) -> None:
        """Remove a child element, with its line if nothing else is on it."""
        at = next(n for n, part in enumerate(parent.parts) if part is child)
        before = parent.parts[at - 1] if at else b""
        behind = parent.parts[at + 1] if at + 1 < len(parent.parts) else b""
        if isinstance(before, bytes) and isinstance(behind, bytes) and behind.lstrip(b" \t")[:1] in (b"\r", b"\n"):
            kept = before.rstrip(b" \t")
            if kept.endswith(b"\n"):
                parent.parts[at - 1] = kept.removesuffix(b"\n").removesuffix(b"\r")
        del parent.parts[at]

    def _started(self, parser: Any, tag: str, attributes: dict[str, str]) -> None:
        begin = parser.CurrentByteIndex
        close = _tag_end(self._data, begin)
        element = Element(tag, parser.CurrentLineNumber, self._data[begin:close], dict(attributes))
        if self._stack:
            self._stack[-1].parts += [self._data[self._at : begin], element]
        else:
            self.root, self._before = element, self._data[:begin]
        self._stack.append(element)
        self._at = close

    def _ended(self, parser: Any) -> None:
        element = self._stack.pop()
        if not element.start.endswith(b"/>"):
            begin = parser.CurrentByteIndex
            close = self._data.index(b">", begin) + 1
            element.parts.append(self._data[self._at : begin])
            element.end = self._data[begin:close]
            self._at = close
        if not self._stack:
            self._after = self._data[self._at :]

    def _open(self, parent: Element) -> None:
        """Give an element that is written as one tag an end tag."""
        if parent.start.endswith(b"/>"):
            parent.start = parent.start.removesuffix(b"/>").rstrip(_SPACE) + b">"
            parent.end = b"</" + parent.start[1 : _name_end(parent.start)] + b">"

    def _place(self, parent: Element, child: Element) -> None:
        order = _ORDER.get(parent.tag, [])
        rank = order.index(child.tag) if child.tag in order else len(order)
        places = reversed(range(len(parent.parts)))  # most often the last ones: thousands of pins may be added
        at = next(
            (n for n in places if isinstance(part := parent.parts[n], Element) and _rank(order, part) <= rank), None
        )
        first = next((n for n, part in enumerate(parent.parts) if isinstance(part, Element)), None)
        if at is not None:
            parent.parts[at + 1 : at + 1] = [self._indent_before(parent, at), child]
        elif first is not None:
            parent.parts[first:first] = [child, self._indent_before(parent, first)]
        else:
            outer = self._indent_of(parent)
            inner = outer + self._step() if outer else b""
            if b"".join(_flat_parts(parent)).strip(_SPACE):  # text or a comment: it stays before the new child
                parent.parts[-1] = b"".join(_flat_parts(parent)).rstrip(_SPACE)
            else:
                parent.parts = []
            parent.parts += [inner, child, outer]

    def _indent_before(self, parent: Element, at: int) -> bytes:
        """Return the line end and the indentation before a child; empty if it does not begin a line."""
        before = parent.parts[at - 1] if at else b""
        if not isinstance(before, bytes) or b"\n" not in before:
            return b""
        tail = before[before.rindex(b"\n") + 1 :]
        return self.newline + (tail if not tail.strip(_SPACE) else b"")

    def _indent_of(self, wanted: Element) -> bytes:
        """Return the line end and the indentation before an element of the document."""
        if wanted is self.root:
            return self.newline
        pending = [self.root]
        while pending:
            parent = pending.pop()
            for n, part in enumerate(parent.parts):
                if part is wanted:
                    return self._indent_before(parent, n)
                if isinstance(part, Element):
                    pending.append(part)
        return b""

    def _step(self) -> bytes:
        """Return the indentation of one level: that of the root's first child."""
        at = next((n for n, part in enumerate(self.root.parts) if isinstance(part, Element)), None)
        indent = b"" if at is None else self._indent_before(self.root, at).lstrip(b"\r\n")
        return indent or b"  "


def _rank(order: Sequence[str], element: Element) -> int:
    """Return the place of an element in libvirt's order; one that is not in it counts as last."""
    return order.index(element.tag) if element.tag in order else len(order)


def _flat(element: Element) -> Iterator[bytes]:
    yield element.start
    yield from _flat_parts(element)
    yield element.end


def _flat_parts(element: Element) -> Iterator[bytes]:
    for part in element.parts:
        if isinstance(part, Element):
            yield from _flat(part)
        else:
            yield part


def _tag_end(data: bytes, begin: int) -> int:
    """Return the offset behind the ">" of a well-formed start tag: the first one outside quotes."""
    at = begin
    while True:
        close = data.index(b">", at)
        opened = [n for n in (data.find(b"'", at, close), data.find(b'"', at, close)) if n >= 0]
        if not opened:
            return close + 1
        first = min(opened)
        at = data.index(data[first : first + 1], first + 1) + 1


def _name_end(start: bytes) -> int:
    return next(n for n, byte in enumerate(start) if byte in b" \t\r\n/>")


def _attributes(start: bytes) -> list[tuple[int, bytes, int, bytes, int]]:
    """Return of each attribute: begin (its white space), name, opening quote, the quote itself, closing quote."""
    attributes = []
    at = _name_end(start)
    while (equals := start.find(b"=", at)) >= 0:
        opened = min(n for n in (start.find(b"'", equals), start.find(b'"', equals)) if n >= 0)
        quote = start[opened : opened + 1]
        close = start.index(quote, opened + 1)
        attributes.append((at, start[at:equals].strip(_SPACE), opened, quote, close))
        at = close + 1
    return attributes


def _escaped(value: str, quote: bytes) -> bytes:
    # xml.sax.saxutils has this, and loads 40 modules that are about networks: a tenth of a command's start.
    quotes = {"'": "&apos;"} if quote == b"'" else {'"': "&quot;"} if quote else {}
    special = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", **quotes})
    return value.translate(special).encode("ascii", "xmlcharrefreplace")


def _refuse_type(where: str) -> None:
    raise BadInput("holds a document type", where=where, hint="a domain XML has none: take it out")
