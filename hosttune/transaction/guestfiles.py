"""Files for the inside of a guest, kept in the state directory: its seed image, and the bundle to copy into it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any, ClassVar

from hosttune.guest import GuestFiles, seed_image
from hosttune.journal.state import mode_of
from hosttune.machine.system import System, state_directory
from hosttune.model.intent import is_guest_name
from hosttune.model.values import FrozenMap
from hosttune.settings.setting import FILE, KEEP_STAGE, Setting, Targets, refuse

SEED, META, USER = "seed.iso", "meta-data", "user-data"
# All paths that can exist: a plan cannot name others.
PATHS = (
    META,
    USER,
    "bundle/expected.json",
    "bundle/hosttune-guest-apply",
    "bundle/hosttune-guest.conf",
    "bundle/hosttune-guest.service",
    "bundle/hosttune-guest.tmpfiles",
    "bundle/install.sh",
    "bundle/virtualTopology.xml",
    SEED,
)


class FilesOfGuest(Setting):
    """The files of one guest. Target: the guest's name. Value: {path: text}; None: there are no files.

    The seed image is built from its two texts. In the value it is represented by its digest ("sha256:…").
    """

    kind: ClassVar[str] = "guest-files"
    scope: ClassVar[str] = FILE
    stage: ClassVar[int] = KEEP_STAGE
    none_is_value: ClassVar[bool] = True
    may_stop_midway: ClassVar[bool] = True
    rehearsed_briefly: ClassVar[bool] = True  # the seed's texts contain the bundle a second time
    targets = Targets(is_guest_name, "{0!r} is not a guest name")

    def check(self, value: Any) -> None:
        """See Setting."""
        if not isinstance(value, Mapping) or not {META, USER} <= set(value) <= set(PATHS):
            raise refuse(self.kind, self.target, "not the files of a guest", "plan again")
        if not all(isinstance(text, str) for text in value.values()) or value.get(SEED) != _digest(_seed(value)):
            raise refuse(self.kind, self.target, "the seed is not that of its texts", "plan again")

    def read(self, system: System) -> Any:
        """See Setting."""
        folder = self._folder(system)
        files = {path: data for path in PATHS if (data := system.read_bytes(f"{folder}/{path}")) is not None}
        if not files:
            return None
        return FrozenMap(
            {path: _digest(data) if path == SEED else data.decode("utf-8", "replace") for path, data in files.items()}
        )

    def write(self, system: System, value: Any) -> None:
        """See Setting. The image is written last, because it is the file that a guest reads."""
        folder = self._folder(system)
        for path in PATHS:
            text = None if value is None else value.get(path)
            if text is None:
                if system.exists(f"{folder}/{path}"):
                    system.remove(f"{folder}/{path}")
            elif path == SEED:
                _make_folders_searchable(system, folder)
                system.replace(f"{folder}/{path}", _seed(value), mode_of(f"guests/{self.target}/{path}"))
            else:
                system.replace(f"{folder}/{path}", text.encode(), mode_of(f"guests/{self.target}/{path}"))

    def places(self, system: System) -> tuple[str, ...]:
        """See Setting."""
        return tuple(f"{self._folder(system)}/{path}" for path in PATHS)

    def _folder(self, system: System) -> str:
        return f"{'/var/lib/hosttune' if system.captured else state_directory()}/guests/{self.target}"


def _make_folders_searchable(system: System, folder: str) -> None:
    """Let QEMU search the folders above the seed: an earlier hosttune, run with umask 077, may have closed them."""
    if system.captured:
        return
    above = os.path.dirname(folder)
    ours = [path for path in (os.path.dirname(above), above, folder) if system.exists(path)]
    modes = system.run(("stat", "-c", "%a", "--", *ours)).split()
    if closed := [path for path, mode in zip(ours, modes, strict=True) if not int(mode, 8) & 0o001]:
        system.change(("chmod", "o+x", "--", *closed))


def value_of(files: GuestFiles) -> Mapping[str, str]:
    """Return the setting's value for a guest's files."""
    texts = {META: files.meta_data, USER: files.user_data}
    texts |= {f"bundle/{name}": text for name, text in files.bundle.items()}
    return FrozenMap({path: texts[path] for path in PATHS if path in texts} | {SEED: _digest(seed_image(files))})


def _seed(value: Mapping[str, str]) -> bytes:
    return seed_image(GuestFiles(name="seed", bundle={}, meta_data=value[META], user_data=value[USER], notes=()))


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
