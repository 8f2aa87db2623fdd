"""Check of guests on an NVSwitch fabric: the GPUs of each running guest are exactly one active partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hosttune.gpu import vendor_of
from hosttune.gpu.boards import fabric_gpus
from hosttune.model.evidence import Evidence
from hosttune.rules.checks.facts import RUNNING, accelerators
from hosttune.rules.checks.on import On, check
from hosttune.rules.checks.subjects import nothing_given
from hosttune.rules.engine import Finding, inapplicable


def _guests_on_it(evidence: Evidence) -> Iterator[tuple[str, Mapping[str, int | None]]]:
    """Yield each running guest that has whole GPUs of the fabric, with the module ids of these."""
    host = evidence.host
    modules = {gpu.address: gpu.module_id for gpu in fabric_gpus(host)}
    running = [guest for guest in host.guests or () if (guest.state or "running") in RUNNING]
    having = {guest.name: {a: modules[a] for a in guest.devices if a in modules} for guest in running}
    having = {name: gpus for name, gpus in having.items() if gpus}
    lacking = all(
        (vendor := vendor_of(gpu.vendor)) is None or not vendor.fabric or "fabric_state" in (gpu.lacks or ())
        for gpu in accelerators(host)
    )
    if not having and not modules and lacking and accelerators(host):
        raise inapplicable("no GPU here is on an NVSwitch fabric")
    if not having:
        nothing_given(evidence, "no running guest has GPUs of an NVSwitch fabric")
    if host.fabric is not None and host.fabric.mode == 0 and not host.fabric.partitions:
        raise inapplicable("mode 0 has no partitions (see fabric-manager-mode)")
    yield from having.items()


@check(
    "fabric-partition",
    title="The GPUs of each guest are one active partition",
    about="host, each running guest with GPUs of an NVSwitch fabric",
    why="Without its partition CUDA does not start; with two, copies fail and tenants are not isolated",
    source="Fabric Manager user guide: Shared NVSwitch virtualization model",
    expected="its GPUs are exactly one active partition",
    reads="fmpm -l",
    each=_guests_on_it,
)
def fabric_partition(on: On, gpus: Mapping[str, int | None]) -> Finding:
    """Compare each running guest that has whole GPUs of the fabric with the active partitions."""
    modules = {module for module in gpus.values() if module is not None}
    unread = ", ".join(address for address, module in gpus.items() if module is None)
    if unread:
        hint = "compare fmpm -l with the module ids that nvidia-smi -q reported before the GPUs went to vfio-pci"
        on.give_up(f"the module ids of {unread} are unknown", hint)
    partitions = on.need(
        on.host.fabric.partitions if on.host.fabric else None, "the list of partitions", look="fmpm -l"
    )
    touching = [part for part in partitions if part.active and modules & set(part.module_ids)]
    numbers = ", ".join(str(part.id) for part in touching)
    actual = f"module ids {', '.join(map(str, sorted(modules)))}; active of them: partition {numbers or 'none'}"
    if len(touching) == 1 and set(touching[0].module_ids) == modules:
        return on.passed(actual)
    own = [part.id for part in partitions if set(part.module_ids) == modules]
    if own:
        others = "".join(f"fmpm -d {part.id}, " for part in touching if part.id != own[0])
        return on.failed(actual, f"{others}fmpm -a {own[0]}: until then CUDA fails in it (error 802)")
    hint = "stop it and plan it again: its GPUs are not a partition, and NVLink between them fails or reaches others"
    return on.failed(actual, hint)
