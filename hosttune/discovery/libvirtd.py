"""Ask libvirt. Returns raw facts as one JSON text, so that a capture can replay what a live host answered.

Uses read-only connections. Only the domain capabilities need a normal connection (libvirt refuses them on a read-only
one since CVE-2019-10167), and they change nothing either. Uses libvirt-python if it can be imported, or else `virsh`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from hosttune.errors import CommandFailed, Unreadable
from hosttune.machine.system import System
from hosttune.model.values import Value, to_json

if TYPE_CHECKING:
    import libvirt


DEFAULT_URI = "qemu:///system"
URI_VARIABLE = "HOSTTUNE_LIBVIRT_URI"
# virDomainState in virsh's words.
STATES = ("no state", "running", "idle", "paused", "in shutdown", "shut off", "crashed", "pmsuspended")
_MACHINE = ("x86_64", "q35")
# RHEL and its derivatives have QEMU outside PATH, under this name.
_EMULATORS = ("qemu-system-x86_64", "/usr/libexec/qemu-kvm")
_VERSION_SECONDS = 5.0
_VERSION = re.compile(r"(?:QEMU emulator version )?([0-9]{1,4}(?:\.[0-9]{1,4}){1,3})(?![0-9.])")


class RawDomain(Value, frozen=True, kw_only=True):
    """A domain as libvirt returned it. `xml` is the live definition of an active domain, or else the persistent one.

    `starting`: libvirt has not ended its start. It is "paused" until then, and its threads are not yet pinned.
    """

    name: str
    state: str | None = None
    xml: str | None = None
    inactive_xml: str | None = None
    starting: bool = False


class LibvirtFacts(Value, frozen=True, kw_only=True):
    """What libvirt answered. `error`: it is installed but could not be asked; then `domains` is None."""

    uri: str | None = None
    error: str | None = None
    libvirt_version: str | None = None
    qemu_version: str | None = None
    domains: tuple[RawDomain, ...] | None = None
    domcapabilities: str | None = None
    capabilities_error: str | None = None


def ask_libvirt(system: System) -> str | None:
    """Return the LibvirtFacts of the live machine as JSON; None if libvirt is not installed."""
    uri = os.environ.get(URI_VARIABLE) or DEFAULT_URI
    try:
        import libvirt
    except ImportError:
        try:
            return to_json(_ask_virsh(system, uri))
        except CommandFailed as error:
            if error.reason == "not installed":
                return None
            return to_json(LibvirtFacts(uri=uri, error=f"{error.reason}: {error.output.strip()}"))
    # By default libvirt prints every error on stderr. hosttune puts them in the document instead.
    libvirt.registerErrorHandler(lambda _context, _error: None, None)
    try:
        return to_json(_ask_library(uri))
    except libvirt.libvirtError as error:
        return to_json(LibvirtFacts(uri=uri, error=str(error)))


def decode_version(number: int) -> str:
    """libvirt's version numbers: major * 1,000,000 + minor * 1,000 + release."""
    return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"


# --- libvirt-python ------------------------------------------------------------------------------------------


def _ask_library(uri: str) -> LibvirtFacts:
    """Ask through libvirt-python. Raises libvirt.libvirtError if there is no connection."""
    import libvirt

    connection = libvirt.openReadOnly(uri)
    try:
        capabilities, problem = _library_capabilities(uri)
        return LibvirtFacts(
            uri=uri,
            libvirt_version=decode_version(connection.getLibVersion()),
            qemu_version=decode_version(connection.getVersion()) if connection.getType() == "QEMU" else None,
            domains=tuple(_library_domains(connection)),
            domcapabilities=capabilities,
            capabilities_error=problem,
        )
    finally:
        connection.close()


def _library_domains(connection: libvirt.virConnect) -> list[RawDomain]:
    import libvirt

    def path_of(pool: str, volume: str) -> str | None:
        try:
            return str(connection.storagePoolLookupByName(pool).storageVolLookupByName(volume).path())
        except libvirt.libvirtError:
            return None

    library_domains = []
    for domain in connection.listAllDomains():
        try:
            state, reason = domain.state()
            persistent = domain.isPersistent() and domain.isActive()
            library_domains.append(
                RawDomain(
                    name=domain.name(),
                    state=STATES[state] if 0 <= state < len(STATES) else None,
                    xml=resolved(domain.XMLDesc(0), path_of),
                    inactive_xml=resolved(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE), path_of)
                    if persistent
                    else None,
                    starting=(state, reason) == (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP),
                )
            )
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:  # removed since it was listed
                raise
    return sorted(library_domains, key=lambda domain: domain.name)


def _library_capabilities(uri: str) -> tuple[str | None, str | None]:
    """Return (the domain capabilities, None) or (None, the reason why there are none)."""
    import libvirt

    problem = None
    try:
        connection = libvirt.open(uri)
    except libvirt.libvirtError as error:
        return None, str(error)
    try:
        for kind in ("kvm", None):
            try:
                return connection.getDomainCapabilities(None, *_MACHINE, kind), None
            except libvirt.libvirtError as error:
                problem = str(error)
    finally:
        connection.close()
    return None, problem


# --- virsh ---------------------------------------------------------------------------------------------------


def _ask_virsh(system: System, uri: str) -> LibvirtFacts:
    """Ask through virsh. Raises CommandFailed if virsh is missing or cannot connect."""

    def virsh(*arguments: str) -> str:
        return system.run(("virsh", "--readonly", "--quiet", "--connect", uri, *arguments))

    versions = virsh("version", "--daemon")
    uuids = virsh("list", "--all", "--uuid").split()
    domains = [_virsh_domain(system, uri, uuid) for uuid in uuids]
    capabilities, problem = _virsh_capabilities(system, uri)
    libvirt_version, qemu_version = read_versions(versions)
    return LibvirtFacts(
        uri=uri,
        libvirt_version=libvirt_version,
        qemu_version=qemu_version,
        domains=tuple(sorted((domain for domain in domains if domain), key=lambda domain: domain.name)),
        domcapabilities=capabilities,
        capabilities_error=problem,
    )


def read_versions(text: str) -> tuple[str | None, str | None]:
    """Return the versions of libvirt and QEMU in the output of `virsh version --daemon`.

    The daemon's version is preferred to the library's.
    """
    versions = {}
    for line in text.splitlines():
        what, colon, version = line.partition(":")
        if colon:
            versions[what.strip()] = version.strip()
    library = versions.get("Using library", "").removeprefix("libvirt").strip()
    hypervisor = versions.get("Running hypervisor", "")
    return (
        versions.get("Running against daemon") or library or None,
        hypervisor.removeprefix("QEMU").strip() if hypervisor.startswith("QEMU") else None,
    )


def ask_client_version(system: System) -> str | None:
    """Return the output of `virsh --version`, which needs no daemon; None if virsh is not installed.

    Raises Unreadable.
    """
    return _ask_version(system, "virsh")


def ask_qemu_version(system: System) -> str | None:
    """Return what the installed QEMU prints for `--version`; None if QEMU is not installed. Raises Unreadable."""
    for program in _EMULATORS:
        text = _ask_version(system, program)
        if text is not None:
            return text
    return None


def _ask_version(system: System, program: str) -> str | None:
    try:
        return system.run((program, "--version"), timeout=_VERSION_SECONDS)
    except CommandFailed as error:
        if error.reason == "not installed":
            return None
        raise Unreadable(f"{program} --version", f"{error.reason}: {error.output.strip()}".rstrip(": ")) from error


def read_version(text: str) -> str | None:
    """Return the version in a program's output: a line "9.0.0", or "QEMU emulator version 7.2.22 (Debian …)"."""
    match = _VERSION.match(text.strip())
    return match[1] if match else None


def _virsh_domain(system: System, uri: str, uuid: str) -> RawDomain | None:
    def virsh(*arguments: str) -> str:
        return system.run(("virsh", "--readonly", "--quiet", "--connect", uri, *arguments)).strip()

    def path_of(pool: str, volume: str) -> str | None:
        try:
            return virsh("vol-path", "--pool", pool, "--vol", volume)
        except CommandFailed:
            return None

    def definition(*options: str) -> str:
        return resolved(virsh("dumpxml", *options, uuid), path_of)

    try:
        state, _, reason = virsh("domstate", "--reason", uuid).partition(" (")
        return RawDomain(
            name=virsh("domname", uuid),
            state=state,
            xml=definition(),
            inactive_xml=None if state == "shut off" else definition("--inactive"),
            starting=reason == "starting up)",
        )
    except CommandFailed as error:
        if "failed to get domain" in error.output or "Domain not found" in error.output:
            return None  # removed since it was listed
        raise


def _virsh_capabilities(system: System, uri: str) -> tuple[str | None, str | None]:
    arch, machine = _MACHINE
    ask = ("virsh", "--quiet", "--connect", uri, "domcapabilities", "--arch", arch, "--machine", machine)
    problem = None
    for kind in (("--virttype", "kvm"), ()):
        try:
            return system.run((*ask, *kind)), None
        except CommandFailed as error:
            problem = f"{error.reason}: {error.output.strip()}"
    return None, problem


def resolved(xml: str, path_of: Callable[[str, str], str | None]) -> str:
    """Return a domain's XML with its volumes of storage pools as the disks that they are (`resolve_volumes`)."""
    if "'volume'" not in xml:
        return xml
    from hosttune.discovery.volumes import resolve_volumes  # few guests have any, and this loads lxml

    return resolve_volumes(xml, path_of)
