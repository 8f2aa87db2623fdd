"""Edit a guest's present definition into what its plan decides, and keep the rest. Pure.

Three definitions count: what hosttune planned before, what libvirt has now, what is planned now. The elements and
attributes that the new plan writes are changed where they differ; what only the earlier plan wrote goes; what neither
wrote stays, byte for byte: disks, NICs, channels, metadata, passwords of others.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import msgspec

from hosttune.domain.arguments import CLIQUE, WINDOW
from hosttune.domain.compare import SECTIONS, Difference, as_changes, as_texts, compare_guests, other_elements
from hosttune.domain.edit import Element, XmlText
from hosttune.domain.guest import Guest
from hosttune.domain.planned import NO_DMA_TRANSLATION
from hosttune.domain.reader import domain_facts, read_domain, read_tree
from hosttune.domain.writer import print_guest
from hosttune.domain.xml import QEMU, UNITS
from hosttune.errors import BadInput
from hosttune.model.plan import GuestChange
from hosttune.model.values import number, parse_cpus

_NAMESPACE = QEMU.strip("{}")
_COMMANDLINE, _OVERRIDE = f"{_NAMESPACE}}}commandline", f"{_NAMESPACE}}}override"
_OF_QEMU = (_COMMANDLINE, _OVERRIDE)
# Of these elements the intent decides all: one that it does not have goes, whoever wrote it.
_ALL = {
    parent: frozenset(children.split())
    for parent, children in {
        "domain": "iothreads numatune",
        "cputune": "vcpupin emulatorpin iothreadpin",
        "numatune": "memory memnode",
        "memoryBacking": "hugepages",
        "hugepages": "page",
        "os": "kernel initrd cmdline",
        "cpu": "model vendor topology maxphysaddr",
        "numa": "cell",
        "distances": "sibling",
    }.items()
}
# Attributes that the intent decides although it writes them nowhere, with the value that counts as none.
_UNWRITTEN: dict[str, dict[str, str | None]] = {
    "vcpu": {"cpuset": None, "current": None},
    "topology": {"clusters": "1"},
    "cache": {"level": None},
    "memory": {"placement": "static"},
}
# What an attribute that libvirt leaves out means (formatdomain).
_DEFAULTS = {
    "placement": "static",
    "managed": "no",
    "unit": "KiB",
    "domain": "0",
    "device": "disk",
    "policy": "require",
}
_LISTS = ("cpuset", "nodeset", "cpus")
_IDS = {
    "vcpupin": "vcpu", "iothreadpin": "iothread", "memnode": "cellid", "cell": "id", "sibling": "id",
    "feature": "name", "timer": "name",
}  # fmt: skip
_FIRMWARE = ("loader", "firmware", "nvram")
# What libvirt adds by itself, or people change to their liking although the first definition has it.
_THEIRS = frozenset(("serial", "console", "uuid"))
_ADDED = frozenset(
    ("uuid", "emulator", "controller", "input", "audio", "watchdog", "serial", "console", "resource", "iothreadids")
)
_ADDED_BELOW = frozenset((*_FIRMWARE, "boot", "address", "alias", "mac", "target", "backingStore", "model", "protocol"))


class Updated(msgspec.Struct, frozen=True):
    """A definition with the plan's elements, what is changed for that once it is defined, and what of others it has."""

    xml: str
    changes: tuple[GuestChange, ...]
    kept: tuple[str, ...]


def updated(previous_planned_xml: str | None, present_xml: str, planned_xml: str) -> Updated:
    """Return the present definition with what the plan decides. Without changes it is the same text.

    `previous_planned_xml`: what hosttune has planned for this guest before; None: nothing, so nothing but what the plan
    decides goes. Raises BadInput for a text that is not a domain XML.
    """
    text = XmlText(present_xml.encode("utf-8", "surrogatepass"), where="present definition")
    planned = XmlText(planned_xml.encode("utf-8", "surrogatepass"), where="planned definition")
    want = planned.root
    before = XmlText(previous_planned_xml.encode("utf-8", "surrogatepass")).root if previous_planned_xml else None
    update = _Update(text)
    update.firmware(text.guest, planned.guest, want)
    update.free_places(want, before)
    update.merge(text.root, want, before)
    update.boot_order(want)
    update.arguments(text.guest, planned.guest)
    update.cliques(want)
    xml = bytes(text).decode("utf-8", "surrogatepass")
    return Updated(xml, as_changes(_changes(present_xml, xml)) if xml != present_xml else (), tuple(update.kept))


def _changes(present_xml: str, xml: str) -> Iterator[Difference]:
    """Yield what is otherwise in a definition than in the present one: of the guest, and of elements that it lacks."""
    now, then = (read_tree(text, where="definition") for text in (present_xml, xml))
    guest, changed = (domain_facts(root, where="definition") for root in (now, then))
    differences, covered = list(compare_guests(changed, guest)), set[str]()
    yield from differences
    if differences:
        bare = read_tree("<domain/>", where="")
        printed = (read_tree(print_guest(present), where="") for present in (guest, changed))
        covered = {element.split()[0] for tree in printed for element, *_ in other_elements(bare, tree)}
    for other in other_elements(now, then):
        if other[0].startswith(SECTIONS) or other[0].split()[0] not in covered:
            yield other


def write_parts(text: XmlText, guest: Guest, paths: Iterable[str]) -> None:
    """Write what a guest has at these paths ("cputune/vcpupin", "vcpu/@placement") into a definition; nothing goes."""
    update, want = _Update(text), XmlText(print_guest(guest).encode()).root
    for path in paths:
        update.write(text.root, want, path.split("/"))


class _Update(msgspec.Struct):
    text: XmlText
    kept: list[str] = msgspec.field(default_factory=list)

    def write(self, now: Element, want: Element, path: Sequence[str]) -> None:
        """Write the elements, or the attribute, at a path below the wanted element."""
        tag, *below = path
        if tag.startswith("@"):
            now.set(tag[1:], want.attributes[tag[1:]])
            return
        known = {_key(child): child for child in now.children}
        for child in want.all(tag):
            same = known.get(_key(child))
            if not below:
                self._graft(now, child) if same is None else self.merge(same, child, None)
            elif child.find(*below) is not None or below[0][1:] in child.attributes:
                self.write(same or self.text.add(now, tag, child.attributes), child, below)

    def merge(self, now: Element, want: Element, before: Element | None, at: str = "") -> None:
        """Change an element into the wanted one, and its children likewise."""
        self._attributes(now, want, before)
        wanted = _text(want)
        if wanted and not want.children and not _equal(now, want, _text(now), wanted):
            self.text.set_text(now, wanted)
            if "unit" in want.attributes:
                now.set("unit", want.attributes["unit"])
        left = list(now.children)
        for child in want.children:
            if (
                child.tag in _THEIRS
                or (child.tag == "controller" and child.attributes.get("type") == "usb")
                or child.tag in _OF_QEMU
                or (want.tag == "os" and child.tag in _FIRMWARE)
                # the guest's network is set up for the one that it has; a virtual function's is the intent's
                or (child.tag == "mac" and now.find("mac") and want.attributes.get("type") != "hostdev")
            ):
                continue
            same = _counterpart(child, left)
            old = _counterpart(child, before.children) if before else None
            if same is None or _is_another(same, child):
                if same:
                    left.remove(same)
                    self.text.remove(now, same)
                self._graft(now, child)
            else:
                left.remove(same)
                self.merge(same, child, old, "" if child.tag == "devices" else f"{at} {_label(child)}".strip())
        self._leave(now, want, before, left, at)

    def _attributes(self, now: Element, want: Element, before: Element | None) -> None:
        new = {
            name: value
            for name, value in want.attributes.items()
            if not _equal(now, want, now.attributes.get(name), value, name) and (want.tag, name) != ("os", "firmware")
        }
        unwritten = _UNWRITTEN.get(want.tag, {})
        gone = [
            name
            for name, value in now.attributes.items()
            if name not in want.attributes
            and ((name in unwritten and value != unwritten[name]) or (before and name in before.attributes))
            and (want.tag, name) != ("os", "firmware")
        ]
        for name in gone:
            now.unset(name)
        for name, value in new.items():
            now.set(name, value)
        if new and "unit" in want.attributes:
            now.set("unit", want.attributes["unit"])

    def _leave(self, now: Element, want: Element, before: Element | None, left: list[Element], at: str) -> None:
        """Remove, of the children that are not wanted, what the intent decides or had before; the others stay."""
        planned = Counter(map(_key, before.children if before else ())) - Counter(map(_key, want.children))
        for child in reversed(left):
            if planned[_key(child)] > 0 and child.tag not in _THEIRS and child.tag not in _OF_QEMU:
                planned[_key(child)] -= 1
            elif child.tag not in _ALL.get(now.tag, ()):
                named = _ADDED if now.tag in ("domain", "devices") else _ADDED_BELOW
                if child.tag not in named and child.tag not in _OF_QEMU and now.tag not in ("disk", "interface"):
                    self.kept.append(f"{at} {_label(child)}".strip() + " is not in this intent")
                continue
            self.text.remove(now, child)

    def firmware(self, now: Guest, want: Guest, planned: Element) -> None:
        """Let libvirt choose the firmware again if it is another one, and Secure Boot is on or off as planned."""
        secure = want.secure_boot in (None, now.secure_boot)
        os, wanted = self.text.root.find("os"), planned.find("os")
        if os is None or wanted is None or (now.firmware == want.firmware and secure):
            return
        for child in os.children:
            if child.tag in _FIRMWARE and (child.tag != "nvram" or now.firmware != want.firmware):
                self.text.remove(os, child)
        if "firmware" in wanted.attributes:
            os.set("firmware", wanted.attributes["firmware"])
        else:
            os.unset("firmware")
        for child in wanted.all("firmware"):
            self._graft(os, child)

    def boot_order(self, want: Element) -> None:
        """Remove what libvirt adds where no device has a boot order: it refuses a definition with both."""
        os = self.text.root.find("os")
        if os is not None and want.find("devices", "disk", "boot") is not None:
            for boot in list(os.all("boot")):
                self.text.remove(os, boot)

    def free_places(self, want: Element, before: Element | None) -> None:
        """Take from other devices the PCI places that the plan gives away; libvirt finds them new ones."""
        devices = self.text.root.find("devices")
        if devices is None:
            return
        known, planned = _controllers((before or want).find("devices")), _controllers(want.find("devices"))
        here = _controllers(devices)
        new = [index for index in planned.keys() - known if index in here and here[index] != planned[index]]
        buses = {number(index) for index in (*(known.keys() - planned), *new)}
        places = {place for child in want.all("devices", "*") if (place := _place(child)) is not None}
        chassis = {element.attributes.get("chassis") for element in want.all("devices", "controller", "target")} - {
            None
        }
        fixed = {_key(child) for child in want.all("devices", "*") if _place(child) is not None}
        fixed |= {_key(child) for child in want.all("devices", "controller", type="pci")}
        for child in devices.children:
            place = _place(child)
            if _key(child) in fixed:
                continue
            if place is not None and (place in places or place[1] in buses):
                for address in list(child.all("address", type="pci")):
                    self.text.remove(child, address)
            for target in list(child.all("target")):
                if child.tag == "controller" and target.attributes.get("chassis") in chassis:
                    self.text.remove(child, target)

    def arguments(self, now: Guest, want: Guest) -> None:
        """Change the arguments to QEMU that hosttune writes; those of others stay."""
        had, wanted = _pairs(now.qemu_arguments), _pairs(want.qemu_arguments)
        new = [pair for pair in wanted if pair not in had]
        gone = [pair for pair in had if pair not in wanted and is_ours(pair)]
        if len(now.qemu_arguments) > 2 * sum(map(is_ours, had)):
            self.kept.append("other arguments to QEMU are not in this intent")
        if not new and not gone:
            return
        root = self.text.root
        parent = root.find(_COMMANDLINE)
        arguments = list(parent.children) if parent else []
        for pair in gone:
            at = next(
                n
                for n in range(len(arguments))
                if tuple(element.attributes.get("value", "") for element in arguments[n : n + 2]) == pair
            )
            for element in arguments[at : at + 2]:
                self.text.remove(parent or root, element)
            del arguments[at : at + 2]
        prefix = self._prefix() if new else ""
        if new and parent is None:
            parent = self.text.add(root, f"{prefix}commandline", {})
        for value in (value for pair in new for value in pair):
            self.text.add(parent or root, f"{prefix}arg", {"value": value})
        if parent is not None and not parent.children:
            self.text.remove(root, parent)

    def cliques(self, want: Element) -> None:
        """Change the cliques of GPUs; what others have written into `<qemu:override>` stays."""
        root = self.text.root
        parent = root.find(_OVERRIDE)
        ours = [element for element in parent.children if _clique(element)] if parent else []
        had = dict(filter(None, map(_clique, ours)))
        wanted = dict(filter(None, (_clique(element) for element in want.all(_OVERRIDE, "*"))))
        if had == wanted:
            return
        for element in ours:
            self.text.remove(parent or root, element)
        prefix = self._prefix() if wanted else ""
        if wanted and parent is None:
            parent = self.text.add(root, f"{prefix}override", {})
        for alias, value in wanted.items():
            device = self.text.add(parent or root, f"{prefix}device", {"alias": alias})
            frontend = self.text.add(device, f"{prefix}frontend", {})
            self.text.add(frontend, f"{prefix}property", {"name": CLIQUE, "type": "unsigned", "value": value})
        if parent is not None and not parent.children:
            self.text.remove(root, parent)

    def _prefix(self) -> str:
        """Return the prefix of QEMU's namespace in this definition, which declares it from now on."""
        root = self.text.root
        declared = re.search(rb"xmlns:([\w.-]+)\s*=\s*['\"]" + re.escape(_NAMESPACE.encode()), root.start)
        if declared is None:
            root.set("xmlns:qemu", _NAMESPACE)
        return f"{declared[1].decode()}:" if declared else "qemu:"

    def _graft(self, parent: Element, wanted: Element) -> None:
        child = self.text.add(parent, wanted.tag, wanted.attributes, "" if wanted.children else _text(wanted))
        for element in wanted.children:
            self._graft(child, element)


# --- which element is which ----------------------------------------------------------------------------------


def _counterpart(wanted: Element, among: Iterable[Element]) -> Element | None:
    """Return the element that is the wanted one: of the same tag and name; for a drive without a medium, its target."""
    known = list(among)
    same = next((element for element in known if _key(element) == _key(wanted)), None)
    if same is not None or wanted.tag != "disk":
        return same
    empty = (element for element in known if element.tag == "disk" and element.find("source") is None)
    return next((element for element in empty if _target(element) == _target(wanted)), None)


def _target(disk: Element) -> str | None:
    target = disk.find("target")
    return target.attributes.get("dev") if target else None


def _key(element: Element) -> tuple[str, ...]:
    return element.tag, *_names(element)


def _names(element: Element) -> tuple[str, ...]:
    """Return what tells an element from others of its tag."""
    tag, attributes = element.tag, element.attributes
    if tag == "controller":
        return attributes.get("type", ""), attributes.get("index", "0")
    if tag == "hostdev" or attributes.get("type") == "hostdev":
        address = element.find("source", "address")
        place = _numbers(address) if address else ()
        uuid = address.attributes.get("uuid", "") if address else ""
        return attributes.get("type", ""), uuid or "{:04x}:{:02x}:{:02x}.{:x}".format(*place) if place else uuid
    if tag in ("disk", "interface"):
        source = element.find("source")
        names = ("file", "dev", "network", "bridge", "name", "pool", "volume", "dir")
        path = [source.attributes[name] for name in names if name in source.attributes] if source else []
        return (*((attributes.get("type", ""),) if tag == "interface" else ()), *path)
    if tag == "channel":
        target = element.find("target")
        return (target.attributes.get("name", ""),) if target else ()
    return (attributes[_IDS[tag]],) if _IDS.get(tag) in attributes else ()


def _label(element: Element) -> str:
    return " ".join((element.tag.rpartition("}")[2], *filter(None, _names(element))))


def _numbers(address: Element) -> tuple[int, ...]:
    """Return domain, bus, slot and function of a PCI address; empty if it is none, or libvirt chooses it."""
    given = address.attributes
    if given.get("type", "pci") != "pci" or "bus" not in given:
        return ()
    return tuple(_number(given.get(name, "0")) or 0 for name in ("domain", "bus", "slot", "function"))


def _place(device: Element) -> tuple[int, ...] | None:
    address = device.find("address")
    return (_numbers(address) or None) if address else None


def _controllers(devices: Element | None) -> dict[str, tuple[str | None, tuple[int, ...] | None]]:
    """Return the models and places of PCI controllers by their indexes."""
    known = devices.all("controller", type="pci") if devices else ()
    return {
        element.attributes.get("index", "0"): (element.attributes.get("model"), _place(element)) for element in known
    }


def _is_another(controller: Element, wanted: Element) -> bool:
    """Return whether the index of a controller goes to one of another model: nothing of the one suits the other."""
    model = controller.attributes.get("model")
    return wanted.tag == "controller" and model is not None and model != wanted.attributes.get("model")


# --- values --------------------------------------------------------------------------------------------------


def _text(element: Element) -> str:
    own = b"".join(part for part in element.parts if isinstance(part, bytes))
    return html.unescape(own.decode("utf-8", "replace")).strip()


def _equal(now: Element, want: Element, one: str | None, other: str, name: str = "") -> bool:
    """Return whether two values of an attribute, or the texts if it has no name, mean the same to libvirt."""
    one = _DEFAULTS.get(name) if one is None else one
    if one is None or one == other or (name == "unit" and one):
        return one is not None
    if "unit" in want.attributes and name in ("", "size", "memory"):
        return _bytes(now, one) == _bytes(want, other)
    if name in _LISTS:
        try:
            return parse_cpus(one) == parse_cpus(other)
        except ValueError:
            return False
    if name == "machine":
        return other in one.split("-")
    switches = {"yes": "on", "no": "off"}
    count = _number(one)
    return count == _number(other) if count is not None else switches.get(one, one) == switches.get(other, other)


def _number(value: str) -> int | None:
    try:
        return int(value, 16 if value.lower().startswith("0x") else 10)
    except ValueError:
        return None


def _bytes(element: Element, value: str) -> int | None:
    count, scale = _number(value), UNITS.get(element.attributes.get("unit", "KiB").lower())
    return None if count is None or scale is None else count * scale


def _pairs(arguments: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the pairs of an option and its value that hosttune can write; what others write has any form."""
    return [pair for pair in pairwise(arguments) if is_ours(pair)]


def _clique(device: Element) -> tuple[str, str] | None:
    """Return alias and clique of a device whose override names nothing else."""
    properties = list(device.all(f"{_NAMESPACE}}}frontend", "*"))
    if [element.attributes.get("name") for element in properties] != [CLIQUE]:
        return None
    return device.attributes.get("alias", ""), properties[0].attributes.get("value", "")


def is_ours(pair: tuple[str, ...]) -> bool:
    """Return whether hosttune writes an option to QEMU with its value."""
    return pair == NO_DMA_TRANSLATION or (pair[0] == "-fw_cfg" and re.fullmatch(WINDOW, pair[1]) is not None)


def differences(live_xml: str, want_xml: str) -> tuple[str, ...]:
    """Return how a live definition differs from the planned one in what the plan decides; empty if in nothing.

    Live XML that cannot be read counts as different. Raises BadInput if the planned XML is not a domain.
    """
    read_domain(want_xml, where="planned definition")
    try:
        changes = updated(None, live_xml, want_xml).changes
    except BadInput as error:
        return (f"{error.where}: {error.what}",)
    return as_texts((change.element, change.becomes, change.was) for change in changes)
