"""The last look at a GPU's health while its maker's driver had it, and the guests that may have had the GPU since.

On vfio-pci and in a guest a host sees nothing of it. The looks are kept beside the identities of the GPUs
(`gpus.json` in the state directory).
"""

from __future__ import annotations

from hosttune.model.validation import CheckResult
from hosttune.model.values import Value, close_lists


class SeenRun(Value, frozen=True, kw_only=True):
    """A guest that hosttune saw running with a GPU: its boot and its process ("PID.TICKS"), None if not known."""

    guest: str
    boot_id: str | None = None
    process: str | None = None


class Look(Value, frozen=True, kw_only=True):
    """What the checks of a GPU's health concluded at a time (UTC, ISO 8601), in a boot.

    `device`, `dsn`, `uuid` and `serial` tell the GPU from another one at its address (`DeviceIndex.identity`). `seen`:
    the guests that hosttune saw with it since.
    """

    at: str
    boot_id: str | None = None
    device: str | None = None
    dsn: str | None = None
    uuid: str | None = None
    serial: str | None = None
    results: tuple[CheckResult, ...] = ()
    seen: tuple[SeenRun, ...] = ()

    def __post_init__(self) -> None:
        close_lists(self)


class GuestRun(Value, frozen=True, kw_only=True):
    """One start of a guest with these functions, as `source` recorded it. Each source has a start once."""

    guest: str
    at: str
    devices: tuple[str, ...]
    source: str

    def __post_init__(self) -> None:
        close_lists(self)
