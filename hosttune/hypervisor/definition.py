"""A guest's persistent definition as a setting."""

from __future__ import annotations

import difflib
from abc import abstractmethod
from collections.abc import Collection
from typing import Any, ClassVar

from hosttune.discovery.guests import DEFINITION
from hosttune.domain.arguments import CLIQUE
from hosttune.domain.definitions import same_guest, secrets_of, without_secrets
from hosttune.domain.guest import Guest
from hosttune.domain.planned import AGENT_CHANNEL, RANDOM_SOURCE
from hosttune.domain.reader import read_domain
from hosttune.domain.update import differences, is_ours, updated
from hosttune.domain.writer import print_guest
from hosttune.domain.xml import QEMU, parse
from hosttune.errors import BadInput, CommandFailed, WriteFailed
from hosttune.hypervisor.connection import (
    CHANGE_SECONDS,
    is_active,
    read_definition,
    read_state,
    uuid_of,
    virsh,
)
from hosttune.hypervisor.removed import drop, give_back, keep
from hosttune.machine.system import System
from hosttune.model.intent import is_guest_name
from hosttune.model.limits import limit
from hosttune.settings.setting import FILE, GUEST_STAGE, EditedInPlace, Explains, Setting, Targets, refuse

GUESTS = Targets(is_guest_name, "{0!r} is not a guest name", "use letters, digits, '.', '_' and '-'")
_TYPES = {
    "domain": ("kvm", "qemu"),
    "disk": ("file", "block"),
    "interface": ("network", "bridge", "hostdev"),
    "serial": ("pty",),
    "console": ("pty",),
    "channel": ("unix",),
    "hostdev": ("pci", "mdev"),
}


class GuestDefinition(Setting, Explains):
    """The persistent definition of a guest. Target: its name. Value: domain XML; None: not defined."""

    scope: ClassVar[str] = FILE
    stage: ClassVar[int] = GUEST_STAGE
    none_is_value: ClassVar[bool] = True

    def facts_of(self, value: Any) -> Guest:
        """Return what a value says of the guest. Raises BadInput unless it is domain XML of the target."""
        if not isinstance(value, str):
            raise refuse(self.kind, self.target, f"{type(value).__name__} is not domain XML", "plan again")
        facts = read_domain(value, where=f"action {self.kind}:{self.target}")
        if facts.name != self.target:
            raise refuse(self.kind, self.target, f"the XML is that of {facts.name!r}", "plan again")
        return facts

    def agrees(self, live: Any, want: Any) -> bool:
        """See Setting. Return whether both mean the same guest."""
        if live is None or want is None:
            return live is None and want is None
        return not self.differences(live, want)

    def differences(self, live: Any, want: Any) -> tuple[str, ...]:
        """See Explains."""
        return () if live is None or want is None else self.compare(live, want)

    def shown(self, value: Any) -> Any:
        """See Setting."""
        if not isinstance(value, str):
            return value
        try:
            return without_secrets(value)
        except BadInput:
            return f"{len(value)} characters that are not a definition"

    @abstractmethod
    def compare(self, live: str, want: str) -> tuple[str, ...]:
        """Return how a definition differs from the wanted one, one text each."""


class PlannedDefinition(GuestDefinition, EditedInPlace):
    """The persistent definition of a guest. Target: its name. Value: domain XML; None: not defined.

    libvirt adds what the XML leaves open, and people add devices of their own: a definition agrees with a planned one
    if it has all that the plan decides (`domain.update`), and the rest is kept. A running guest has the new one from
    its next start. It is read with its passwords, which only the journal holds, and an original is put back whole.
    """

    kind: ClassVar[str] = "guest"
    targets = GUESTS

    def check(self, value: Any) -> None:
        """See Setting. XML that hosttune does not write is refused, because a plan may come from anywhere."""
        if value is None:
            return
        strange = _strange(value, self.facts_of(value))
        if strange:
            raise refuse(self.kind, self.target, f"the XML holds {strange}", "plan again: hosttune writes no such XML")

    def read(self, system: System) -> str | None:
        """See Setting."""
        return read_definition(system, self.target, secure=True)

    def compare(self, live: str, want: str) -> tuple[str, ...]:
        """See GuestDefinition."""
        return differences(live, want)

    def edited(self, planned: Any, live: Any, want: Any) -> tuple[Any, tuple[str, ...]]:
        """See EditedInPlace."""
        update = updated(planned, live, want)
        return update.xml, update.kept

    def is_original(self, live: Any, old: Any) -> bool:
        """See Setting. Every element counts, also what others have added to the original."""
        return not same_guest(live, old, whole=True)

    def write(self, system: System, value: Any) -> None:
        """See Setting. One call to libvirt. A planned value, of another UUID or none, edits what is there."""
        state = read_state(system, self.target)
        old = read_definition(system, self.target)
        if value is None:
            self._refuse_running(state, "it runs: shut it down first, or it would disappear when it stops")
            paths = keep(system, self.target, old) if old is not None else ()
            system.tell(DEFINITION + self.target, "", lambda: _undefine(system, self.target, paths))
            for path in paths:
                system.remove(path)
            return
        kept = False
        if old is None:
            self._refuse_running(state, "a guest of that name runs without a definition: shut it down first")
            kept = give_back(system, self.target, value)
        edits = old is not None and read_domain(value).uuid != read_domain(old).uuid
        xml = self.edited(None, read_definition(system, self.target, secure=True), value)[0] if edits else value
        # What libvirt itself has printed can fail its own schema: then the original could not be put back.
        ours = _strange(value, read_domain(value)) is None
        system.tell(DEFINITION + self.target, xml, lambda: define(system, xml, validate=ours))
        if kept:
            drop(system, self.target, value)

    def _refuse_running(self, state: str | None, why: str) -> None:
        if is_active(state):
            raise WriteFailed(f"guest {self.target}", why)


def _strange(xml: str, guest: Guest) -> str | None:
    """Return what the XML of a guest contains that hosttune never writes, in a few words; None for nothing.

    An element is strange if it is not there when the guest is written again. So none names a program to run, a hook or
    a log file.
    """
    written = {(element.tag, child.tag) for element in parse(print_guest(guest)).iter() for child in element}
    for element in parse(xml).iter():
        tag = str(element.tag)
        for child in element:
            if (tag, child.tag) not in written:
                return f"a <{child.tag}> in <{tag}>"
            said = (child.text or "").strip()
            if (tag, child.tag) == ("rng", "backend") and (child.get("model"), said) != ("random", RANDOM_SOURCE):
                return f"random numbers from {(said or child.get('model') or 'elsewhere')[:80]!r}"
        if tag in _TYPES and element.get("type") not in _TYPES[tag]:
            return f"a <{tag}> of type {element.get('type')!r}"
        if tag == f"{QEMU}property" and element.get("name") != CLIQUE:
            return f"the property {element.get('name')!r} of a device"
        if tag == "channel" and [target.get("name") for target in element.iterfind("target")] != [AGENT_CHANNEL]:
            return f"a <channel> other than {AGENT_CHANNEL}"
    arguments = guest.qemu_arguments
    pairs = list(zip(arguments[::2], arguments[1::2], strict=False))
    if not all(map(is_ours, pairs)) or len(arguments) % 2 or len({option for option, _ in pairs}) < len(pairs):
        return f"arguments to QEMU: {' '.join(arguments)[:80]}"
    return None


def define(system: System, xml: str, *, validate: bool) -> None:
    """Define a guest. `validate`: libvirt checks the XML with its schema. Raises CommandFailed, without secrets."""
    argv = virsh("define", *(("--validate",) if validate else ()), "/dev/stdin")
    try:
        system.change(argv, timeout=CHANGE_SECONDS, stdin=xml)
    except CommandFailed as error:
        output = error.output
        for secret in secrets_of(xml):
            output = output.replace(secret, "*****") if secret else output
        raise CommandFailed(error.argv, error.reason, output) from None


def _undefine(system: System, name: str, kept: Collection[str]) -> None:
    """Undefine a guest. Its UEFI variables and TPM state stay where they are. Fails with snapshots or a saved state."""
    uuid = uuid_of(system, name, persistent=True)
    if uuid is not None:
        tpm = ("--keep-tpm",) if any("/swtpm/" in path for path in kept) else ()
        system.change(virsh("undefine", "--keep-nvram", *tpm, uuid), timeout=CHANGE_SECONDS)


# --- definitions as text --------------------------------------------------------------------------------------


def canonical(xml: str) -> str:
    """Return the XML indented by two spaces, without comments, with sorted attributes, ending in a newline.

    Raises lxml's XMLSyntaxError or ValueError for a text that is not XML.
    """
    from lxml import etree

    root = parse(xml)
    for element in root.iter():
        if element.tail is not None:
            element.tail = None
        if len(element) and not (element.text or "").strip():
            element.text = None
        ordered = sorted(element.items())
        element.attrib.clear()
        element.attrib.update(ordered)
    etree.indent(root, space="  ")
    return str(etree.tostring(root, encoding="unicode")) + "\n"


def xml_difference(old: str | None, new: str | None) -> str:
    """Return a unified diff of two definitions in canonical form; None = no definition. Empty if they are equal.

    Raises as `canonical` does.
    """
    lines = difflib.unified_diff(
        canonical(old).splitlines(keepends=True) if old is not None else [],
        canonical(new).splitlines(keepends=True) if new is not None else [],
        fromfile="defined now" if old is not None else "not defined",
        tofile="defined then" if new is not None else "not defined",
    )
    return "".join(lines)


# --- of a guest that hosttune did not make ---------------------------------------------------------------------
# The persistent definition of a guest that hosttune did not make, as a setting.


def is_domain_name(name: str) -> bool:
    """Return whether an existing guest can have this name: libvirt takes more than hosttune gives.

    It is one line, safe as a part of a path, and virsh lists it as it is.
    """
    one_part = name.isprintable() and "/" not in name and name == name.strip() and name not in ("", ".", "..")
    return one_part and len(name.encode()) <= limit("name") - len(DEFINITION)


class AdoptedDefinition(GuestDefinition):
    """The persistent definition of an existing guest. Target: its name. Value: domain XML with all secrets.

    libvirt replaces a definition as a whole and keeps autostart, UEFI variables and whether the guest runs; a running
    guest has the new one from its next start. Two values agree if they have the same elements. The guest is never
    undefined. Only the journal, which root alone may read, has the secrets: `shown` leaves them out.
    """

    kind: ClassVar[str] = "adopted-guest"
    targets = Targets(is_domain_name, "{0!r} is not the name of a guest")

    def check(self, value: Any) -> None:
        """See Setting."""
        self.facts_of(value)

    def read(self, system: System) -> str | None:
        """See Setting."""
        return read_definition(system, self.target, secure=True)

    def compare(self, live: str, want: str) -> tuple[str, ...]:
        """See GuestDefinition."""
        return same_guest(live, want, whole=True)

    def write(self, system: System, value: Any) -> None:
        """See Setting."""
        if not isinstance(value, str):
            raise WriteFailed(f"guest {self.target}", "hosttune did not make this guest, so it does not undefine it")
        # Not validated: libvirt wrote most of this XML itself. What it drops is seen afterwards.
        system.tell(DEFINITION + self.target, value, lambda: define(system, value, validate=False))
