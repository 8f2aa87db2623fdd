"""Settings of the host as a whole that a plan wants, as actions: memory, NVMe queues, sysctl, mitigations. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from hosttune.model.commandline import text_of
from hosttune.model.host import Host, Nvme
from hosttune.model.intent import Intent
from hosttune.model.plan import Action, Finding, PlannedGuest
from hosttune.model.values import FrozenMap
from hosttune.planning.action import make_action
from hosttune.planning.devices import Catalogue, address_key
from hosttune.planning.settings import SETTINGS, reason, wanted
from hosttune.settings.block import AFFINITY, REQUESTS, SCHEDULER
from hosttune.settings.sysctl import NAMES, sysctl_path

_NAMESPACE = re.compile(r"nvme([0-9]+)n([0-9]+)")
# Part of a queue -> setting of an intent.
QUEUE = {SCHEDULER: "nvme_scheduler", REQUESTS: "nvme_requests", AFFINITY: "nvme_affinity"}
# Why the profile wants them: Documentation/admin-guide/sysctl/vm.rst.
_SYSCTL_WHY = {
    "vm.zone_reclaim_mode": "a node short of memory shall take from the others before it drops its cache",
    "vm.compaction_proactiveness": "compaction in the background moves pages about, and its latency shows elsewhere",
}


def plan_host(
    host: Host, intent: Intent, catalogue: Catalogue, guests: tuple[PlannedGuest, ...]
) -> tuple[list[Action], list[Finding]]:
    """Actions for the host as a whole, and what is worth knowing about them."""
    findings: list[Finding] = []
    actions = [
        *memory_actions(host, intent),
        *_queues(host, intent, catalogue, guests),
        *_sysctl(host, intent),
        *_mitigations(host, intent, findings),
        *_vmemmap(host, intent),
    ]
    return actions, findings


def memory_actions(host: Host, intent: Intent) -> Iterator[Action]:
    """Transparent huge pages, NUMA balancing, same-page merging."""
    now = host.memory_settings
    thp = wanted(intent, "thp")
    if thp is not None and (now is None or now.thp != thp):
        path = "/sys/kernel/mm/transparent_hugepage/enabled"
        why = reason(intent, "thp", "guests have their own pages; the host asks for its")
        yield make_action("thp", path, now.thp if now else None, thp, why)
    balancing = wanted(intent, "numa_balancing")
    if balancing is not None and (now is None or now.numa_balancing != balancing):
        current = now.numa_balancing if now else None
        why = reason(intent, "numa_balancing", "page scanning costs time and cannot move pinned memory")
        yield make_action("numa-balancing", "kernel.numa_balancing", current, balancing, why)
    ksm = wanted(intent, "ksm")
    if ksm is not None and now is not None and now.ksm_run == 1:
        why = "2 stops merging and unmerges; 0 would keep the merged pages"
        if ksm == 0:
            why = "asked for by name: settings.ksm; 0 stops merging and keeps the merged pages"
        yield make_action("ksm", "/sys/kernel/mm/ksm/run", now.ksm_run, ksm, why)


def _queues(host: Host, intent: Intent, catalogue: Catalogue, guests: Iterable[PlannedGuest]) -> Iterator[Action]:
    """Queues of the drives that stay with the host; of one whose queue is known, only what it has."""
    values = {part: wanted(intent, name) for part, name in QUEUE.items()}
    wants = {part: value for part, value in values.items() if value is not None}
    given = {device.address for guest in guests for device in guest.devices} | set(catalogue.holders)
    for drive in sorted(host.nvme, key=lambda drive: address_key(drive.address)):
        function = catalogue.pci.get(drive.address)
        if not wants or drive.address in given or function is None or function.driver != "nvme":
            continue
        for namespace in drive.namespaces:
            now = _queue(host.settings or {}, drive, namespace)
            want = {**now, **{part: value for part, value in wants.items() if part in now}} if now else wants
            if now != want:
                target = f"{drive.address} n{namespace.rpartition('n')[2]}"
                why = "the drive has queues enough: sorting before them costs time, and answers go to who asked"
                named = [QUEUE[part] for part, value in wants.items() if value != SETTINGS[QUEUE[part]].value]
                if named:
                    why = f"asked for by name: {', '.join(f'settings.{name}' for name in named)}"
                yield make_action("nvme-queue", target, FrozenMap(now) if now else None, FrozenMap(want), why)


def _queue(settings: Mapping[str, str], drive: Nvme, namespace: str) -> dict[str, str | int]:
    """What is known of a namespace's queue; of one with several paths, this drive's own (`settings.block`)."""
    found = _NAMESPACE.fullmatch(namespace)
    own = f"nvme{found[1]}c{(drive.controller or '').removeprefix('nvme')}n{found[2]}" if found else namespace
    for name in (own, namespace):
        texts = {part: settings.get(f"/sys/block/{name}/queue/{part}") for part in QUEUE}
        known = {part: text.strip() for part, text in texts.items() if text is not None}
        if known:
            return {part: int(text) if text.isdecimal() else text for part, text in known.items()}
    return {}


def _sysctl(host: Host, intent: Intent) -> Iterator[Action]:
    for name in NAMES:
        value = wanted(intent, name)
        text = (host.settings or {}).get(sysctl_path(name))
        now = None if text is None else " ".join(text.split())
        if value is not None and now != str(value):
            why = reason(intent, name, _SYSCTL_WHY.get(name, ""))
            yield make_action("sysctl", name, now, str(value), why)


def _mitigations(host: Host, intent: Intent, findings: list[Finding]) -> Iterator[Action]:
    """The kernel argument `mitigations`, as given (admin-guide/kernel-parameters)."""
    value = wanted(intent, "mitigations")
    now = text_of(host.kernel_args, "mitigations") if host.kernel_args is not None else None
    want = f"mitigations={value}"
    if value == "off":
        text = (
            "mitigations=off lets a guest read what is not its own through the CPU: never on a host that serves several"
            " tenants"
        )
        findings.append(Finding(level="warn", text=text, where="settings.mitigations"))
    if value is not None and now != want:
        why = "asked for by name: settings.mitigations"
        yield make_action("kernel-argument", "mitigations", now, want, why, effect="reboot")


def _vmemmap(host: Host, intent: Intent) -> Iterator[Action]:
    """The kernel argument `hugetlb_free_vmemmap` (admin-guide/mm/hugetlbpage), by name only.

    It gives back the kernel's own records of huge pages, 16 MiB for each of 1 GiB; then the kernel needs memory to give
    a huge page back, and each one takes longer to make and to end (Documentation/mm/vmemmap_dedup).
    """
    value = wanted(intent, "hugetlb_free_vmemmap")
    now = text_of(host.kernel_args, "hugetlb_free_vmemmap") if host.kernel_args is not None else None
    want = f"hugetlb_free_vmemmap={value}"
    if value is not None and now != want:
        why = "asked for by name: settings.hugetlb_free_vmemmap"
        yield make_action("kernel-argument", "hugetlb_free_vmemmap", now, want, why, effect="reboot")
