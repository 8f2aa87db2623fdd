"""A guest's disk, made as a copy of an image where there is none. It is never written again, and never deleted."""

from __future__ import annotations

from typing import Any, ClassVar

from hosttune.domain.planned import disk_format
from hosttune.errors import BadInput
from hosttune.hypervisor.image import Image, read_image
from hosttune.machine.system import System
from hosttune.model.login import is_file_path
from hosttune.settings.setting import FILE, KEEP_STAGE, Setting, Targets, refuse

ABSENT, THERE = "absent", "there"
_COPY_SECONDS = 3600.0  # an image of 100 GiB at 30 MB/s
_MODE = 0o600  # until libvirt gives it to QEMU: a tenant's data


class CopiedDisk(Setting):
    """Whether a guest's disk is there. Target: its path. Value: "there" or "absent"; wanted: the path of its image.

    A disk that is there is as good as any: it may have a guest's data. So nothing takes it away, no rollback either.
    """

    kind: ClassVar[str] = "guest-disk"
    scope: ClassVar[str] = FILE
    stage: ClassVar[int] = KEEP_STAGE
    undone_later: ClassVar[bool] = False
    targets = Targets(is_file_path, "not the path of a file")

    def check(self, value: Any) -> None:
        """See Setting."""
        if not is_file_path(value) or value == self.target:
            raise refuse(self.kind, self.target, f"{value!r} is not the path of an image", "plan again")

    def read(self, system: System) -> str:
        """See Setting."""
        return THERE if system.exists(self.target) else ABSENT

    def agrees(self, live: Any, want: Any) -> bool:
        """See Setting."""
        return bool(live in (THERE, want))

    def write(self, system: System, value: Any) -> None:
        """See Setting. The copy gets its name when it is whole and on the medium."""
        image = image_here(system, value)
        copy = _copy_of(self.target)
        system.replace(copy, b"", _MODE)
        formats = ("-f", image.format, "-O", disk_format(self.target))
        # -t: qemu-img ignores flushes of what it writes otherwise (qemu-img(1), "unsafe")
        system.change(("qemu-img", "convert", "-t", "writeback", *formats, image.path, copy), timeout=_COPY_SECONDS)
        system.change(("sync", "--", copy), timeout=_COPY_SECONDS)
        system.change(("mv", "-n", "-T", "--", copy, self.target))
        if system.exists(copy):  # another disk has come meanwhile
            system.remove(copy)

    def places(self, system: System) -> tuple[str, ...]:
        """See Setting."""
        return (_copy_of(self.target), self.target)


def _copy_of(path: str) -> str:
    return f"{path}.hosttune-new"


def image_here(system: System, path: str) -> Image:
    """Return an image of the machine. Raises BadInput. On a scratch root it must only be there, a capture has none."""
    if not system.captured:
        return read_image(system, path)
    if system.scratch and not system.exists(path):
        raise BadInput("not an image for a guest: there is no such file", where=path, hint="give the path of a file")
    return Image(path=path, format="qcow2" if path.endswith(".qcow2") else "raw")
