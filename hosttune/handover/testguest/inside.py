"""The work in a test guest: `hosttune handover inside ORDER`, run by its seed. It runs on no other machine."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from hosttune import __version__
from hosttune.discovery import discover
from hosttune.errors import HosttuneError
from hosttune.gpu import maker_of
from hosttune.handover import gpumemory
from hosttune.handover.statement import read_firmware
from hosttune.handover.testguest.order import GuestAnswer, GuestOrder
from hosttune.machine.system import System
from hosttune.model.validation import Validation


def answer_of(system: System, order: GuestOrder, validate: Callable[[int], Validation]) -> GuestAnswer:
    """Return what this guest answers to an order. `validate`: validates this guest at a level."""
    empty = GuestAnswer(nonce=order.nonce, version=__version__)
    try:
        host = discover(system)
        if host.hypervisor is not True:
            return msgspec.structs.replace(empty, problem="this machine is not a guest, or that is unknown")
        if order.task == "validate":
            validation = validate(order.level)
            firmware = {device.address: read_firmware(system, host, device.address) for device in order.devices}
            return msgspec.structs.replace(empty, validation=validation, firmware=firmware)
        address = order.devices[0].address
        gpu, function = host.index.gpus.get(address), host.index.pci.get(address)
        maker = maker_of(function.vendor_id) if function is not None else None
        if gpu is None or maker is None or not maker.memory_search:
            return msgspec.structs.replace(empty, problem=f"{address} is no GPU whose memory hosttune can search")
        memory = gpumemory.ask(system, maker.memory_search, order.task, address, order.pattern or "")
        return msgspec.structs.replace(empty, memory=memory, memory_bytes=gpu.memory_bytes)
    except HosttuneError as error:
        return msgspec.structs.replace(empty, problem=" ".join(str(error).split())[:2000])
