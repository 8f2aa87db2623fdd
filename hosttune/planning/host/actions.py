"""The actions of a plan in the order of applying: first those that guests need, then the knobs of the intent.

Pure. There is an action only if the current value is unknown or differs from the wanted one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hosttune.gpu.vgpu import stays_with_driver
from hosttune.inventory.devices import Catalogue
from hosttune.inventory.pages import NodeMemory
from hosttune.inventory.resources import Resources
from hosttune.knobs.actions import make_action, split_findings
from hosttune.knobs.context import KnobContext
from hosttune.knobs.gpus import release_actions
from hosttune.knobs.registry import plan_guests_knobs, plan_host_knobs, plan_isolation
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Action, Finding, PlannedGuest
from hosttune.model.values import CpuSet
from hosttune.planning.host.inside import inside_findings
from hosttune.planning.host.iommu import iommu_actions
from hosttune.planning.host.mounts import mount_actions
from hosttune.planning.host.page_actions import boot_page_actions, page_actions
from hosttune.planning.mig.types import mig_actions
from hosttune.settings.drivers import VFIO, Driver


def plan_actions(
    host: Host,
    intent: Intent,
    resources: Resources,
    memory: Mapping[int, NodeMemory],
    catalogue: Catalogue,
    guests: tuple[PlannedGuest, ...],
    *,
    every: bool = False,
) -> tuple[tuple[Action, ...], tuple[Finding, ...]]:
    """Return every action of a plan in the order of applying, and findings about them.

    `every`: also actions for what is as wanted now.
    """
    ctx = KnobContext(
        host=host,
        intent=intent,
        guests=guests,
        held_cpus=CpuSet(resources.pinned - resources.housekeeping),
        node_cpus={
            number: CpuSet(cpu for core in node.cores for cpu in core.cpus) for number, node in resources.nodes.items()
        },
        every=every,
    )
    findings: list[Finding] = []
    needed = [
        *page_actions(host, intent, memory, guests, findings, every=every),
        *mount_actions(host, guests, findings),
        *iommu_actions(host, intent, catalogue, guests, findings),
        *split_findings(plan_isolation(ctx))[0],
        *boot_page_actions(host, intent, memory, guests, findings),
        *_drivers(catalogue, guests, every=every),
        *mig_actions(host, catalogue, guests, every=every),
    ]
    of_guests, about_guests = split_findings(plan_guests_knobs(ctx))
    of_host, about_host = split_findings(plan_host_knobs(ctx))
    inside = [found for guest in guests for found in inside_findings(intent, host, catalogue, guest)]
    return (*needed, *of_guests, *of_host), (*findings, *about_guests, *inside, *about_host)


def _drivers(catalogue: Catalogue, guests: tuple[PlannedGuest, ...], *, every: bool) -> Iterable[Action]:
    for guest in guests:
        for device in guest.devices:
            function = catalogue.pci.get(device.address)
            driver = function.driver if function else None
            if device.vgpu_type or stays_with_driver(function):
                continue  # the function of a vGPU stays with the vendor's driver, which is also its VFIO driver
            if driver != VFIO:
                yield from release_actions(catalogue.gpus.get(device.address), driver)
            if every or driver != VFIO:
                yield make_action(
                    Driver.kind,
                    device.address,
                    driver,
                    VFIO,
                    f"guest {guest.name} gets {device.address}",
                    needed=True,
                )
