"""Expected devices: from applied plans, the last kept validation, and documents named by `--expect`. Pure.

Each becomes a source of devices (`DeviceSource` with `expects`) and is compared with the PCI tree like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from hosttune.errors import BadInput
from hosttune.model.documents import AnyDocument, read_any
from hosttune.model.evidence import Evidence
from hosttune.model.host import DeviceSource, Host, SeenDevice
from hosttune.model.intent import Intent
from hosttune.model.networkintent import Roce
from hosttune.model.plan import Plan
from hosttune.model.validation import KnownDevice, Validation
from hosttune.model.values import Value, address_key, is_address
from hosttune.rules.checks.facts import known_devices

_NOT_A_DEVICE = ("vf", "mdev")  # a plan creates these: they do not exist before it is applied, nor after a reboot
_OLD_CHECKS = ("pcie-link", "nvswitch")  # checks whose subjects name devices, in validations without a list of devices


class ExpectedDevices(Value, frozen=True, kw_only=True):
    """Devices that are expected here, and the source that expects them.

    `digest`: identifies the machine that the expectation is about; None = not known. `at`: when the devices were seen;
    None for a plan. `roce`: what a plan or an intent declares of the RoCE ports here.
    """

    name: str
    read: str
    devices: tuple[SeenDevice, ...]
    digest: str | None = None
    at: str | None = None
    roce: Roce | None = None


class Forgotten(Value, frozen=True, kw_only=True):
    """A device that was removed from the expectation: by whom, when (UTC, ISO 8601) and why."""

    address: str
    why: str
    who: str | None = None
    at: str | None = None


# --- where expectations come from ----------------------------------------------------------------------------


def of_plan(plan: Plan, name: str, read: str) -> ExpectedDevices:
    """Return the devices that a plan gives to guests."""
    given = [device for guest in plan.guests for device in guest.devices if device.kind not in _NOT_A_DEVICE]
    seen = {device.address: SeenDevice(address=device.address, kind=device.kind) for device in given}
    for guest in plan.guests:
        for instance in guest.mig:
            seen.setdefault(instance.gpu, SeenDevice(address=instance.gpu, kind="gpu"))
    roce = plan.intent.fabric.roce if plan.intent.fabric is not None else None
    return ExpectedDevices(name=name, read=read, devices=_ordered(seen), digest=plan.host_digest, roce=roce)


def of_validation(validation: Validation, name: str, read: str) -> ExpectedDevices:
    """Return the devices listed in a validation; for an older version without a list, those that results are about."""
    machine = validation.machine
    if machine is not None and machine.devices is not None:
        seen = {
            device.address: SeenDevice(
                address=device.address, kind=device.kind or "other", id=device.id, model=device.model
            )
            for device in machine.devices
        }
    else:
        seen = {gpu.address: SeenDevice(address=gpu.address, kind="gpu", id=gpu.id, model=gpu.model)
                for gpu in (machine.gpus if machine else ())}  # fmt: skip
        for result in validation.results:
            if result.check in _OLD_CHECKS and is_address(result.subject):
                seen.setdefault(result.subject, SeenDevice(address=result.subject, kind="other"))
    digest = machine.digest if machine else None
    return ExpectedDevices(name=name, read=read, devices=_ordered(seen), digest=digest, at=validation.at)


def of_host(host: Host, name: str, read: str) -> ExpectedDevices:
    """Return the devices of a host document."""
    return ExpectedDevices(name=name, read=read, devices=_ordered(known_devices(host)), digest=host.digest)


def of_document(text: bytes, where: str) -> ExpectedDevices:
    """Return the devices of a host document, a plan or a validation; the schema says which it is. Or what an intent
    (YAML or JSON) declares of RoCE ports.

    Raises BadInput for any other document, and for one that names no device and declares nothing.
    """
    return of_value(read_any(text, where, _WHICH), where)


def of_value(value: AnyDocument, where: str = "expect") -> ExpectedDevices:
    """Return the devices of a document; `where` names it. Raises BadInput for a document that names no device."""
    if isinstance(value, Host):
        expected_devices = of_host(value, f"the host document {where}", where)
    elif isinstance(value, Plan):
        expected_devices = of_plan(value, f"the plan {where}", where)
    elif isinstance(value, Intent):
        roce = value.fabric.roce if value.fabric is not None else None
        expected_devices = ExpectedDevices(name=f"the intent {where}", read=where, devices=(), roce=roce)
    else:
        expected_devices = of_validation(value, f"the validation {where}", where)
    if not expected_devices.devices and expected_devices.roce is None:
        what = (
            "it has no fabric.roce" if isinstance(value, Intent) else "it names no device that could be expected here"
        )
        raise BadInput(what, where=where, hint=_WHICH)
    return expected_devices


_WHICH = (
    "give a host document, a plan or a validation (-o json of discover, plan, validate), or an intent with fabric.roce"
)


def _ordered(seen: Mapping[str, SeenDevice]) -> tuple[SeenDevice, ...]:
    return tuple(seen[address] for address in sorted(filter(is_address, seen), key=address_key))


# --- what they mean for this host ----------------------------------------------------------------------------


def kept_expectations(evidence: Evidence) -> tuple[ExpectedDevices, ...]:
    """Return the expectations from the state directory: applied plans and the last validation kept for this host."""
    several = len(evidence.plans) > 1
    names = [f"plan {n} in force" if several else "the plan in force" for n in range(1, len(evidence.plans) + 1)]
    plans = [of_plan(plan, name, "the journal") for plan, name in zip(evidence.plans, names, strict=True)]
    # Reading refuses a journal of another machine, so every applied plan found here is for this machine.
    devices = [msgspec.structs.replace(plan, digest=None) for plan in plans]
    if evidence.history:
        last = evidence.history[-1]
        devices.append(of_validation(last, f"the validation of {last.at or 'unknown date'}", "the kept validation"))
    return tuple(devices)


def with_expectations(
    evidence: Evidence, expectations: Iterable[ExpectedDevices], forgotten: Iterable[Forgotten]
) -> Evidence:
    """Return the evidence with each expectation added as a source of devices, without the devices removed from it.

    A removed device that a later validation has seen is expected again. If the digest of an expectation differs, it
    may be about another machine: `could` is then None, and a device that only it names is unknown, not a fault. What
    the last one declares of RoCE ports counts.
    """
    host, expectations = evidence.host, tuple(expectations)
    out = {record.address: record for record in forgotten}
    sources = []
    for expectation in expectations:
        wanted = [device for device in expectation.devices if not was_forgotten(device.address, expectation, out)]
        if wanted:
            other = None not in (expectation.digest, host.digest) and expectation.digest != host.digest
            sources.append(_source(host, expectation, wanted, other=other))
    declared = [expectation.roce for expectation in expectations if expectation.roce is not None]
    if declared:
        evidence = msgspec.structs.replace(evidence, declared_roce=declared[-1])
    if not sources:
        return evidence
    known = msgspec.structs.replace(host, sources=(*(host.sources or ()), *sources))
    return msgspec.structs.replace(evidence, host=known)


def devices_to_keep(host: Host) -> tuple[KnownDevice, ...]:
    """Return the devices that a validation keeps: the known ones, and expected devices at addresses of others."""
    known = known_devices(host)
    for source in host.sources or ():
        if source.expects:
            known.update((seen.address, seen) for seen in source.beyond)
    return tuple(
        KnownDevice(address=address, kind=known[address].kind, id=known[address].id, model=known[address].model)
        for address in sorted(known, key=address_key)
        if known[address].kind is not None
    )


def was_forgotten(address: str, expectation: ExpectedDevices, forgotten: Mapping[str, Forgotten]) -> bool:
    """Return whether a device was removed from an expectation."""
    taken = forgotten.get(address)
    return taken is not None and (expectation.at is None or taken.at is None or expectation.at <= taken.at)


def _source(host: Host, expectation: ExpectedDevices, wanted: list[SeenDevice], *, other: bool) -> DeviceSource:
    functions = host.index.pci
    there = {address: device for address, device in functions.items() if device.is_there}
    beyond = []
    for device in wanted:
        here = there.get(device.address)
        if here is None or (None not in (device.id, here.ids) and device.id != here.ids):
            beyond.append(device)
    return DeviceSource(
        name=expectation.name,
        read=expectation.read,
        shows=len(wanted),
        could=None if other else len(there),
        beyond=tuple(beyond),
        expects=True,
    )
