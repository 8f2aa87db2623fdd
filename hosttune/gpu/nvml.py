"""NVML, live: a child process asks it about the GPUs that may be asked, and answers as `nvml_dump` writes it down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from signal import SIG_SETMASK, pthread_sigmask

import msgspec

from hosttune.errors import ChildDied, HosttuneError
from hosttune.machine.child import Child

ANSWER_SECONDS = 60.0  # eight GPUs without persistence take about ten; a driver that hangs never answers


class Asking:
    """A question to NVML about the GPUs at these PCI addresses: a child process has it from the start on.

    If the driver hangs, only this answer is lost, and no device stays open in this process. A child that died is
    started once more, and the answer then says so in "crashed". `dump` is another one in tests.
    """

    def __init__(self, addresses: Iterable[str], dump: Callable[..., str] | None = None) -> None:
        self.addresses = frozenset(addresses)
        self._dump = dump or dump_nvml
        self._child = Child(partial(self._dump, sorted(self.addresses), {}), "NVML")
        pthread_sigmask(SIG_SETMASK, self._child.held)  # it only reads: an interrupt need not wait for it

    def answer(self) -> str:
        """Return what `dump` returned, or {"error": reason}."""
        try:
            try:
                return self._child.answer(ANSWER_SECONDS) or ""
            except ChildDied as error:
                again = Child(partial(self._dump, sorted(self.addresses), {"crashed": error.reason}), "NVML")
            return again.answer(ANSWER_SECONDS) or ""
        except HosttuneError as error:
            return _failed(error.what)


def dump_nvml(addresses: Iterable[str], notes: Mapping[str, str]) -> str:
    """Ask NVML about the GPUs at these PCI addresses: {"driver", "0": {"busId", …}, "1": …}, or {"error": reason}.

    `notes` are told with the facts. nvmlInit_v2 initialises no GPU, and nvmlDeviceGetHandleByPciBusId_v2 initialises
    only the named one (nvml.h), so a device that is not in `addresses` is not woken. Raises nothing.
    """
    try:
        import pynvml

        from hosttune.gpu.nvml_dump import dump_from
    except ImportError as error:
        return _failed(str(error))
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return _failed(str(error))
    try:
        return dump_from(pynvml, addresses, notes)
    finally:
        pynvml.nvmlShutdown()


def _failed(why: str) -> str:
    return msgspec.json.encode({"error": why}).decode()
