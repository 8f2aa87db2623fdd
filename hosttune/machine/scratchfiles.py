"""The files of a scratch root: stored completely or not at all, and nowhere outside the root."""

from __future__ import annotations

import errno
import os
import stat

from hosttune.errors import BadInput, WriteFailed
from hosttune.machine import manifest
from hosttune.machine.capture import Capture
from hosttune.machine.files import make_folder
from hosttune.machine.system import MadeFolders, put_file, remove_leftovers_of_file, take_file

NOTES = "/var/lib/hosttune/scratch"  # in the root: what must be remembered between commands


class ScratchFiles(Capture):
    """A captured host whose files can be changed."""

    def _read_own_facts(self) -> None:
        """Read the facts, but no manifest: the root changes like a machine, so the original contents prove nothing."""
        super()._read_own_facts()
        self._manifest = manifest.Manifest({})

    def lacks(self, path: str) -> bool:
        """See System. A path that is missing here counts as missing on the machine."""
        return self.complete and not self.exists(path) and self.link(path) is None

    def replace(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """See System."""
        self._made.make(path.rpartition("/")[0])
        put_file(self.inside(path), data, mode)
        self.forget()

    @property
    def _made(self) -> MadeFolders:
        return MadeFolders(self._note("folder-"), self.root, self._folder)

    def _folder(self, folder: str) -> str:
        """Return the path, on this machine, of a folder of the root."""
        self.forget()
        return self.inside(f"{folder}/made").removesuffix("/made")

    def remove(self, path: str) -> None:
        """See System."""
        take_file(self.inside(path), self.root)
        self._take_noted(path)

    def tidy(self, path: str) -> None:
        """See System."""
        remove_leftovers_of_file(self.inside(path), self.root)
        self._take_noted(path)

    def _take_noted(self, path: str) -> None:
        """Remove the folders above a file that were made for it and are empty now."""
        self._made.take(path.rpartition("/")[0])
        self.forget()

    def _held(self, path: str) -> bytes:
        held = self.read_bytes(path)
        if held is None:
            raise WriteFailed(path, os.strerror(errno.ENOENT), errno.ENOENT)
        return held

    def inside(self, path: str) -> str:
        """Return the path, on this machine, of a file of the root.

        No link on the way may lead outside, and the file itself must not be a link. Raises BadInput.
        """
        if not path.startswith("/") or "/../" in f"{path}/":
            raise BadInput(f"{path!r} leads out of the scratch root", where=self.origin, hint="correct the plan")
        folder, _, name = path.rpartition("/")
        known = folder
        while (real := self._real(known or "/")) is None:
            known = known.rpartition("/")[0]
        inside = f"{self.root}{real.rstrip('/')}{folder[len(known) :]}/{name}"
        try:
            if not stat.S_ISREG(os.lstat(inside).st_mode):
                raise BadInput(f"{path} is not a plain file", where=self.origin, hint="capture the host again")
        except FileNotFoundError:
            pass  # a new file
        except OSError as error:
            raise WriteFailed(path, error.strerror or str(error), error.errno) from error
        return inside

    def _store(self, path: str, data: bytes) -> None:
        for _ in range(8):  # the file may be behind a link of sysfs
            target = self.link(path)
            if target is None:
                break
            path = target
        self._put(path, data)

    def _put(self, path: str, data: bytes) -> None:
        """Store an attribute or an answer completely or not at all. It keeps its mode.

        The new contents are first among the notes: a process that is killed leaves nothing beside the file.
        """
        inside = self.inside(path)
        mode = os.stat(inside).st_mode & 0o777 if os.path.exists(inside) else 0o644
        put_file(inside, data, mode, self._unfinished())
        self.forget()

    def _unfinished(self) -> str:
        """Return the path, on this machine, where a file or link is made before it is moved to its place.

        Nothing is there: what a killed process left is removed.
        """
        folder = self._folder(NOTES)
        make_folder(folder)
        path = f"{folder}/unfinished"
        if os.path.lexists(path):
            os.unlink(path)
        return path

    def forget(self) -> None:
        """See System."""
        self._real_dirs = {"/": "/"}
        self._plain.clear()

    def _note(self, name: str) -> str:
        return f"{NOTES}/{name}"
