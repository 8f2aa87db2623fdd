"""What a guest has besides its definition and disks: UEFI variables and TPM state. Kept while the guest is taken away.

They are copied to the state directory before the guest is undefined, each under its own path with "%" for "/", beside
the definition. They come back when the same guest is defined again: the same name and UUID (on a scratch root, where no
libvirt gives one, the same definition).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hosttune.domain.reader import read_domain
from hosttune.domain.xml import parse
from hosttune.errors import BadInput, Unreadable
from hosttune.hypervisor.connection import ask, has_managed_save, uuid_of
from hosttune.machine.system import System, state_in
from hosttune.model.listing import some

REMOVED = "removed"
_NVRAM = "/var/lib/libvirt/qemu/nvram/{name}_VARS.fd"  # where the system's libvirt keeps UEFI variables
_TPM = "/var/lib/libvirt/swtpm/{uuid}"  # libvirt's qemuTPMEmulatorInitPaths: in it a folder for the TPM's version
_DEFINITION = "definition"
_MODE = 0o600
_UUID = r"(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|none)"


def nvram_of(xml: str, name: str) -> str | None:
    """Return the path of a guest's UEFI variables; None for a guest without."""
    named = (parse(xml).findtext("os/nvram") or "").strip()
    return named or (_NVRAM.format(name=name) if read_domain(xml).firmware == "efi" else None)


def keep(system: System, name: str, xml: str) -> tuple[str, ...]:
    """Copy what a guest has to the state directory. Return the paths of what was copied."""
    paths = tuple(_files(system, name, xml))
    folder = _folder(system, name, xml)
    for path in paths:
        data = system.read_bytes(path)
        if data is None:
            raise Unreadable(path, "it cannot be read, and would be lost")
        system.replace(f"{folder}/{path.replace('/', '%')}", data, _MODE)
    if paths:
        system.replace(f"{folder}/{_DEFINITION}", xml.encode(), _MODE)
    return paths


def give_back(system: System, name: str, xml: str) -> bool:
    """Put what was kept of this guest where it was. Return whether something was kept of it."""
    folder = _folder(system, name, xml)
    ours = system.read_bytes(f"{folder}/{_DEFINITION}")
    if ours is None or (folder.endswith("none") and ours != xml.encode()):
        return False
    for kept in _kept(system, folder):
        path, data = kept.replace("%", "/"), system.read_bytes(f"{folder}/{kept}")
        if data is not None and not system.exists(path):  # where it is, undefining was cut off before it was removed
            system.replace(path, data, _MODE)
    return True


def drop(system: System, name: str, xml: str) -> None:
    """Delete what was kept of this guest."""
    _delete(system, _folder(system, name, xml))


def forget(system: System, name: str) -> tuple[str, ...]:
    """Delete what was kept of all guests of a name that were taken away. Return what that was. Raises BadInput."""
    paths = kept_of(system, name)
    for folder in _folders(system, name):
        _delete(system, folder)
    return paths


def kept_of(system: System, name: str) -> tuple[str, ...]:
    """Return where what was kept of all guests of a name came from. Raises BadInput if nothing is kept."""
    above = f"{state_in(system)}/{REMOVED}"
    folders = _folders(system, name)
    if not folders:
        kept = sorted({re.sub(rf"-{_UUID}$", "", one) for one in system.list(above)})
        hint = f"kept is what was of: {', '.join(kept)}" if kept else "nothing is kept of any guest"
        raise BadInput(f"nothing is kept of a guest {name!r}", where=above, hint=hint)
    return tuple(kept.replace("%", "/") for folder in folders for kept in _kept(system, folder))


def _folders(system: System, name: str) -> list[str]:
    above = f"{state_in(system)}/{REMOVED}"
    return [f"{above}/{one}" for one in system.list(above) if re.fullmatch(rf"{re.escape(name)}-{_UUID}", one)]


def obstacles(system: System, name: str) -> Iterator[str]:
    """Yield why a guest cannot be undefined without loss, each with the way to free it. Raises Unreadable."""
    if has_managed_save(system, name):
        yield f"it has a managed save: start it, or virsh managedsave-remove {name}"
    for word in ("snapshot", "checkpoint"):
        if system.captured:
            names = [one.removesuffix(".xml") for one in system.list(f"/var/lib/libvirt/qemu/{word}/{name}")]
        else:
            uuid = uuid_of(system, name, persistent=True)
            names = ask(system, f"{word}-list", "--name", uuid).split() if uuid else []
        if names:
            yield f"it has {word}s: {some((f'virsh {word}-delete {name} {one}' for one in names), between='; ')}"


def _files(system: System, name: str, xml: str) -> Iterator[str]:
    nvram = nvram_of(xml, name)
    if nvram is not None and system.exists(nvram):
        yield nvram
    uuid = _uuid(xml)
    above = _TPM.format(uuid=uuid)
    for version in system.list(above) if uuid != "none" else ():
        yield from (f"{above}/{version}/{file}" for file in system.list(f"{above}/{version}") if file != ".lock")


def _kept(system: System, folder: str) -> list[str]:
    return [one for one in system.list(folder) if one != _DEFINITION]


def _delete(system: System, folder: str) -> None:
    for one in (*_kept(system, folder), _DEFINITION):  # last what says whose it is
        if system.exists(f"{folder}/{one}"):
            system.remove(f"{folder}/{one}")


def _uuid(xml: str) -> str:
    try:
        return read_domain(xml).uuid or "none"
    except BadInput:
        return "none"


def _folder(system: System, name: str, xml: str) -> str:
    return f"{state_in(system)}/{REMOVED}/{name}-{_uuid(xml)}"
