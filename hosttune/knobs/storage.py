"""Knobs of the NVMe drives that stay with the host. The three are parts of one setting: see `settings.block`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hosttune.knobs.knob import HOST, Knob, KnobContext, by_name, make_action, wanted
from hosttune.model.host import Host, Nvme
from hosttune.model.plan import Action
from hosttune.model.values import FrozenMap, address_key, number
from hosttune.settings.block import (
    AFFINITIES,
    AFFINITY,
    FEWEST_REQUESTS,
    MOST_REQUESTS,
    REQUESTS,
    SCHEDULER,
    NvmeQueue,
)

_NAMESPACE = re.compile(r"nvme([0-9]+)n([0-9]+)")
_WHY = (
    "an NVMe drive has enough queues of its own: an I/O scheduler only adds latency, and the CPU that made a request"
    " completes it"
)
_SOURCE = "Documentation/ABI/stable/sysfs-block"

# Part of a queue -> its knob.
PARTS: Mapping[str, Knob[Host]] = {
    SCHEDULER: Knob(
        name="nvme_scheduler",
        setting=NvmeQueue,
        profiles=HOST,
        value="none",
        values=("none", "mq-deadline", "kyber", "bfq"),
        sets="of the drives that stay with the host",
        why=_WHY,
        source=_SOURCE,
    ),
    REQUESTS: Knob(
        name="nvme_requests",
        setting=NvmeQueue,
        profiles=HOST,
        value=1023,
        numbers=range(FEWEST_REQUESTS, MOST_REQUESTS + 1),
        sets="likewise; a drive whose queue is smaller gets what its queue holds, and the result says so",
        why=_WHY,
        source=_SOURCE,
    ),
    AFFINITY: Knob(
        name="nvme_affinity",
        setting=NvmeQueue,
        profiles=HOST,
        value=2,
        values=AFFINITIES,
        sets="likewise: which CPU completes a request",
        takes="`2` (the one that made it), `1` (one near it), `0` (any)",
        why=_WHY,
        source=_SOURCE,
    ),
}
KNOBS = tuple(PARTS.values())


def plan_queues(ctx: KnobContext) -> Iterator[Action]:
    """Yield the actions for queues of the drives that stay with the host.

    If a drive's queue is known, only the parts that it has are set.
    """
    values = {part: wanted(ctx.intent, knob) for part, knob in PARTS.items()}
    wants = {part: value for part, value in values.items() if value is not None}
    for drive in sorted(ctx.host.nvme, key=lambda drive: address_key(drive.address)):
        function = ctx.devices.pci.get(drive.address)
        if not wants or drive.address in ctx.given or function is None or function.driver != "nvme":
            continue
        for namespace in drive.namespaces:
            now = _queue(ctx.host.settings or {}, drive, namespace)
            want = {**now, **{part: value for part, value in wants.items() if part in now}} if now else wants
            if ctx.every or now != want:
                target = f"{drive.address} n{namespace.rpartition('n')[2]}"
                named = [PARTS[part].name for part, value in wants.items() if value != PARTS[part].value]
                why = by_name(*named) if named else _WHY
                yield make_action(NvmeQueue.kind, target, FrozenMap(now) if now else None, FrozenMap(want), why)


def _queue(settings: Mapping[str, str], drive: Nvme, namespace: str) -> dict[str, str | int]:
    """Return the known values of a namespace's queue; with several paths, those of this drive (`settings.block`)."""
    match = _NAMESPACE.fullmatch(namespace)
    own = f"nvme{match[1]}c{(drive.controller or '').removeprefix('nvme')}n{match[2]}" if match else namespace
    for name in (own, namespace):
        texts = {part: settings.get(f"/sys/block/{name}/queue/{part}") for part in PARTS}
        known = {part: text.strip() for part, text in texts.items() if text is not None}
        if known:
            return {part: text if (count := number(text)) is None else count for part, text in known.items()}
    return {}
