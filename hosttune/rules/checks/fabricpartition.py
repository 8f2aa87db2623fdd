"""Check of guests on an NVSwitch fabric: the GPUs of each running guest are exactly one active partition."""

from __future__ import annotations

from collections.abc import Iterable

from hosttune.gpu import vendor_of
from hosttune.gpu.boards import fabric_gpus
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import FabricPartition
from hosttune.model.host import Host, RunningGuest
from hosttune.model.validation import CheckResult
from hosttune.rules.checks.check import Check, failed, passed, skipped, unknown
from hosttune.rules.checks.facts import HOST, RUNNING, accelerators, none_given

_PARTITION = "fabric-partition"
_EXPECTED = "its GPUs are exactly one active partition"
_READ = "fmpm -l"


def fabric_partition(evidence: Evidence) -> Iterable[CheckResult]:
    """Compare each running guest that has whole GPUs of the fabric with the active partitions."""
    host = evidence.host
    modules = {gpu.address: gpu.module_id for gpu in fabric_gpus(host)}
    partitions = host.fabric.partitions if host.fabric else None
    guests = host.guests or ()
    having = [(g, [a for a in g.devices if a in modules]) for g in guests if (g.state or "running") in RUNNING]
    having = [(guest, gpus) for guest, gpus in having if gpus]
    if not having and not modules and _none_on_a_fabric(host):
        yield skipped(_PARTITION, HOST, "no GPU here is on an NVSwitch fabric")
    elif not having:
        yield none_given(evidence, _PARTITION, "no running guest has GPUs of an NVSwitch fabric")
    elif host.fabric is not None and host.fabric.mode == 0 and not partitions:
        yield skipped(_PARTITION, HOST, "mode 0 has no partitions (see fabric-manager-mode)")
    else:
        for guest, gpus in having:
            yield _judged(guest, {address: modules[address] for address in gpus}, partitions)


def _none_on_a_fabric(host: Host) -> bool:
    """Return whether every GPU is from a maker without such fabrics, or reported by its driver as on no fabric."""
    gpus = accelerators(host)
    vendors = [(gpu, vendor_of(gpu.vendor)) for gpu in gpus]
    return bool(gpus) and not any(
        vendor is not None and vendor.fabric and "fabric_state" not in (gpu.lacks or ()) for gpu, vendor in vendors
    )


def _judged(
    guest: RunningGuest, gpus: dict[str, int | None], partitions: tuple[FabricPartition, ...] | None
) -> CheckResult:
    missing = [address for address, module in gpus.items() if module is None]
    if partitions is None or missing:
        why = f"the module ids of {', '.join(missing)} are unknown" if missing else "no list of partitions was read"
        hint = f"compare {_READ} with the module ids that nvidia-smi -q reported before the GPUs went to vfio-pci"
        return unknown(_PARTITION, guest.name, expected=_EXPECTED, why=why, hint=hint)
    modules = {module for module in gpus.values() if module is not None}
    touching = [part for part in partitions if part.active and modules & set(part.module_ids)]
    numbers = ", ".join(str(part.id) for part in touching)
    actual = f"module ids {', '.join(map(str, sorted(modules)))}; active of them: partition {numbers or 'none'}"
    if len(touching) == 1 and set(touching[0].module_ids) == modules:
        return passed(_PARTITION, guest.name, expected=_EXPECTED, actual=actual, source=_READ)
    own = [part.id for part in partitions if set(part.module_ids) == modules]
    hint = "stop it and plan it again: its GPUs are not a partition, and NVLink between them fails or reaches others"
    if own:
        others = "".join(f"fmpm -d {part.id}, " for part in touching if part.id != own[0])
        hint = f"{others}fmpm -a {own[0]}: until then CUDA fails in it (error 802)"
    return failed(_PARTITION, guest.name, expected=_EXPECTED, actual=actual, source=_READ, hint=hint)


CHECKS: tuple[Check, ...] = (
    Check(
        _PARTITION,
        "The GPUs of each guest are one active partition",
        "host, each running guest with GPUs of an NVSwitch fabric",
        "Without its partition CUDA does not start; with GPUs of two, copies fail and tenants are not isolated",
        "NVIDIA, Fabric Manager for NVIDIA NVSwitch systems, user guide: Shared NVSwitch virtualization model",
        fabric_partition,
    ),
)
