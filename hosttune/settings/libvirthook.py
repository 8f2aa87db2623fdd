"""hosttune's hook of libvirt: see `hosttune.settings.hook`. Target: its file. Value: "installed"; None: no such file.

libvirt's daemon looks for hooks only when it starts. hosttune does not restart it for this, because nothing waits for
it; until then starts are not recorded, and `hosttune handover status` says so.
"""

from __future__ import annotations

from typing import Any, ClassVar

from hosttune.errors import WriteFailed
from hosttune.machine.system import System, state_in
from hosttune.settings.hook import MODE, PLACE, hook_text, recording_of
from hosttune.settings.setting import FILE, KEEP_STAGE, Setting, Targets, refuse

INSTALLED, FOREIGN, OLDER = "installed", "of another program", "of another version or state directory"
_OURS = "#!/bin/sh\n# Written by hosttune"


class LibvirtHook(Setting):
    """See the module."""

    kind: ClassVar[str] = "libvirt-hook"
    scope: ClassVar[str] = FILE
    stage: ClassVar[int] = KEEP_STAGE
    none_is_value: ClassVar[bool] = True
    targets = Targets(PLACE.__eq__, "not the place of hosttune's hook", f"it is {PLACE}")

    def check(self, value: Any) -> None:
        """See Setting."""
        if value != INSTALLED:
            raise refuse(self.kind, self.target, f"{value!r} is not a value that it can have", f"it is {INSTALLED!r}")

    def waits_for(self, system: System) -> str | None:
        """See Setting."""
        if hook_text(state_in(system)) is None:
            return "the path of the state directory has characters that a shell would interpret"
        if self.read(system) == FOREIGN:
            return f"{self.target} is a file of another program: move it away"
        return None

    def places(self, system: System) -> tuple[str, ...]:
        """See Setting."""
        return (self.target,)

    def read(self, system: System) -> str | None:
        """See Setting."""
        data = system.read_bytes(self.target)
        if data is None:
            return None
        text = data.decode("utf-8", "replace")
        if text == hook_text(state_in(system)):
            return INSTALLED
        return OLDER if text.startswith(_OURS) else FOREIGN

    def agrees(self, live: Any, want: Any) -> bool:
        """See Setting. A revert cannot bring back a hook of another version: then no file is right."""
        return bool(live == want or (live is None and want == OLDER))

    def write(self, system: System, value: Any) -> str | None:
        """See Setting. A hook of another version is replaced; a revert cannot bring it back, and removes the file."""
        if self.read(system) == FOREIGN:
            raise WriteFailed(self.target, "a file that hosttune did not write: move it away")
        text = hook_text(state_in(system))
        if value != INSTALLED or text is None:
            system.remove(self.target)
            return None
        system.replace(self.target, text.encode(), MODE)
        recording = recording_of(system, state_in(system))
        return recording.why if recording is not None else None
