"""The partitions of an NVSwitch fabric for the time of a measurement.

In mode 1 CUDA fails with error 802 on a GPU that is in no active partition
(kubernetes-sigs/dra-driver-nvidia-gpu#1264).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from hosttune.discovery import discover
from hosttune.errors import HosttuneError
from hosttune.gpu.boards import waits_for_partition
from hosttune.gpu.fmpm import INACTIVE, KIND, active_as, parts_of, target_of
from hosttune.gpu.nvswitches import MODULE as MANAGER_DRIVER
from hosttune.inventory.partitions import SHARED, Partition, read_fabric
from hosttune.journal import Journal, Store
from hosttune.journal.force import MEASURED
from hosttune.knobs.knob import make_action
from hosttune.machine.system import System
from hosttune.model.host import Host
from hosttune.model.plan import Action
from hosttune.transaction.booting import settle_left
from hosttune.transaction.engine import for_a_time
from hosttune.transaction.site import Site, facts_of, next_number, refuse_open, site_of, writable_store
from hosttune.transaction.steps import prepare, steps_of
from hosttune.transaction.writing import interruptible

_SETTLE_SECONDS = 30.0  # until the GPUs of an active partition no longer report "in progress"


@contextlib.contextmanager
def connected(system: System, host: Host, tell: Callable[[str], None]) -> Iterator[Host]:
    """Activate partitions for GPUs of the host's driver that wait for one; yield the host as it is then.

    They are steps of a transaction, which is rolled back afterwards, also after a signal; after a kill by the next
    measurement, the next boot, or `recover`. What could not be set is told, and those GPUs are not measured.
    """
    with contextlib.ExitStack() as stack:
        if read_fabric(host).mode == SHARED:
            try:
                host = _activated(system, host, tell, stack)
            except HosttuneError as error:
                tell(f"no partition of the NVSwitch fabric is activated to measure: {error.what}: {error.hint}")
        yield host


def _activated(system: System, host: Host, tell: Callable[[str], None], stack: contextlib.ExitStack) -> Host:
    """Return the host with its partitions active until the stack is closed. Raises HosttuneError."""
    site = site_of(system)
    store = writable_store(site)
    with contextlib.ExitStack() as locked:
        locked.enter_context(store.locked())
        if settle_left(site, store, tell, MEASURED):
            system.forget()
            host = discover(system)
        known = site.transactions()
        refuse_open(known)
        steps = steps_of(_action(partition) for partition in waiting_partitions(host))
        if not steps:
            return host
        stack.enter_context(locked.pop_all())
    stack.enter_context(interruptible())
    journal = store.begin(next_number(known), **facts_of(site, MEASURED))
    stack.callback(_ended, site, store, journal, tell)
    made = stack.enter_context(for_a_time(system, journal, prepare(system, steps), lambda text: None))
    opened = set[str]()
    for number, step in enumerate(steps, 1):
        number_on_fabric, gpus = parts_of(step.setting.target)
        if made[number].outcome == "done":
            opened |= {*gpus}
        else:
            tell(f"partition {number_on_fabric} of the NVSwitch fabric is not {step.want}: {made[number].why}")
    return _settled(system, opened) if opened else host


def _action(partition: Partition) -> Action:
    target, want = target_of(partition.id, partition.gpus), active_as(partition.modules)
    return make_action(KIND, target, INACTIVE, want, "its GPUs are measured")


def _ended(site: Site, store: Store, journal: Journal, tell: Callable[[str], None]) -> None:
    """Remove the journal of a measurement whose partitions are inactive again, or say that one is not."""
    journal.close()
    ended = next((transaction for transaction in site.transactions() if transaction.path == journal.path), None)
    if ended is not None and ended.state != "reverted":
        tell("a partition that was activated to measure may be active still: hosttune recover, then fmpm -l")
    elif ended is not None:
        store.forget(ended)


def waiting_partitions(host: Host) -> Iterator[Partition]:
    """Yield the largest inactive partitions whose GPUs all wait for one, none of them twice. Pure."""
    fabric = read_fabric(host)
    if fabric.mode != SHARED or fabric.assumed:
        return
    drivers = {gpu.address: host.index.pci[gpu.address].driver for gpu in host.gpus if gpu.address in host.index.pci}
    left = {
        gpu.address
        for gpu in host.gpus
        if drivers.get(gpu.address) == MANAGER_DRIVER and not gpu.mig_on and waits_for_partition(host, gpu)
    }
    for partition in sorted(fabric.partitions or (), key=lambda partition: (-len(partition.gpus), partition.id)):
        if partition.active is False and partition.gpus <= left:
            left -= partition.gpus
            yield partition


def _settled(system: System, gpus: set[str]) -> Host:
    deadline = time.monotonic() + (0.0 if system.captured else _SETTLE_SECONDS)
    while True:
        system.forget()
        host = discover(system)
        busy = any(gpu.address in gpus and gpu.fabric_state == "in progress" for gpu in host.gpus)
        if not busy or time.monotonic() > deadline:
            return host
        time.sleep(1.0)
