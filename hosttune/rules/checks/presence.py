"""Check of devices: what one source shows and another that could show it does not, and which devices are expected.

The sources are those of `Host.sources`, each compared with the PCI tree; applied plans and earlier validations are
among them (`expected`). No other check judges a device that is missing: see `guarded`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from hosttune.gpu import maker_of, nvswitches, vendor_of
from hosttune.model import sysfs
from hosttune.model.evidence import STATE, Evidence
from hosttune.model.host import DeviceSource, PciDevice, SeenDevice
from hosttune.model.validation import CheckResult
from hosttune.model.values import address_key, grouped
from hosttune.rules.checks.data import table
from hosttune.rules.checks.facts import HOST, RECORD, accelerators, known_devices, listed, lost_gpus, refused
from hosttune.rules.checks.on import Check, On, check
from hosttune.rules.engine import Finding

_ID = "device-present"
_TREE = sysfs.PCI_DEVICES
_WHOLE = "a PCI tree that was read, and no source that knows of more"
_FORGET = "if it was taken out on purpose: hosttune validate --forget {0} --why TEXT"
KEPT = "/validations/"  # part of the path of a kept validation

_ALONE = (1, 2, 4, 8, 16)  # numbers of GPUs on boards of four and eight; one or two may be on an adapter
_UNREAD = "restore the file, or remove it if it is no longer needed"

Row = tuple[str, str, str, str]  # outcome, what, source, hint


class Sighting(msgspec.Struct, frozen=True):
    """A device that any source knows: its function in the PCI tree, and the sources that show it beyond, or lack it."""

    seen: SeenDevice
    function: PciDevice | None
    shown: list[tuple[DeviceSource, SeenDevice]]
    lacking: list[DeviceSource]


def _sightings(evidence: Evidence) -> Iterator[tuple[str, Sighting | None]]:
    """Yield the host, for which there is no sighting, and each device that any source knows."""
    yield HOST, None
    functions, known = evidence.host.index.pci, known_devices(evidence.host)
    sources = evidence.host.sources or ()
    shown = grouped((seen.address, (source, seen)) for source in sources for seen in source.beyond)
    lacking = grouped((address, source) for source in sources for address in source.lacking)
    for address in sorted(known.keys() | lacking.keys(), key=address_key):
        seen = known.get(address, SeenDevice(address=address))
        yield (address, Sighting(seen, functions.get(address), shown.get(address, []), lacking.get(address, [])))


@check(
    _ID,
    title="Every device that any source knows is there",
    about="the host; each GPU, NIC, NVMe drive, NVSwitch and expected device",
    why="a GPU that fell off the bus is in no list that a check could fail: only earlier records show it",
    source="Linux Documentation/ABI/testing/sysfs-bus-pci; nvml.h: only GPUs that the driver holds; NVIDIA, XID 79"
    " (GPU has fallen off the bus)",
    expected="in the PCI tree, and in every source that could show it",
    each=_sightings,
    inside=True,
)
def device_present(on: On, sighting: Sighting | None) -> Finding:
    if sighting is None:
        return _host(on)
    seen, function = sighting.seen, sighting.function
    on = on.reading(f"{_TREE}/{seen.address}")
    if function is not None and function.responds is False:
        text = _device_text(seen, "its ids or its configuration space read all ones: nothing answers there")
        return on.failed(text, _gone(seen.vendor))
    if function is None or not function.is_there:
        return _missing(on.reading(_TREE), sighting)
    if not function.is_identified:
        text = "in the PCI tree; its class or vendor id could not be read"
        return on.unknown(text, on.look(f"lspci -nnk -s {seen.address}"))
    if sighting.shown:
        names = listed([source.name for source, _ in sighting.shown])
        text = f"{function.ids} is there; {sighting.shown[0][1].id or 'another device'} expected by {names}"
        remedy = f"plan again with the device that is there now; {_FORGET.format(seen.address)}"
        return on.failed(text, remedy, f"{on.reads}/device")
    if sighting.lacking:
        # That a source should show a device of the tree and does not; either may be right.
        silent = [source for source in sighting.lacking if source.shows is not None]
        if silent:
            why = f"in the PCI tree, and not shown by {listed([source.name for source in silent])}, which could show it"
            reads = listed([source.read for source in silent])
            return on.unknown(why, f"compare by hand: {reads}; {_gone(sighting.seen.vendor)}")
        names, reads = (listed([getattr(source, name) for source in sighting.lacking]) for name in ("name", "read"))
        why = f"in the PCI tree; {names} could show it, and was not read"
        return on.unknown(why, f"look at {reads}" if on.evidence.complete else RECORD)
    return on.passed("in the PCI tree")


# --- a device ------------------------------------------------------------------------------------------------


def _gone(vendor: str | None) -> str:
    """Return what to do about a device that is gone. `vendor`: as in `Gpu.vendor` for GPUs and their switches."""
    maker = vendor_of(vendor or "")
    events = f"{maker.hints.lost}, and for AER and link events" if maker else "AER and link events"
    return (
        f"look for {events} in the kernel log (journalctl -k); reseat it, power-cycle the host; plan no guest with it"
        " until then"
    )


def _missing(on: On, sighting: Sighting) -> Finding:
    """Judge a device that is not in the tree: a fault if the tree was read and another source names the device."""
    seen, sources = sighting.seen, [source for source, _ in sighting.shown]
    names = [source.name for source in sources]
    expects = all(source.expects for source in sources)
    known = f"{'expected by' if expects else 'named by'} {listed(names)}" if names else "named by the document"
    remedy = f"{_FORGET.format(seen.address)}; else {_gone(seen.vendor)}" if names and expects else _gone(seen.vendor)
    if not on.host.pci:
        why = f"{known}; the PCI tree is missing, empty or was not readable"
        return on.unknown(_device_text(seen, why), _readable(on))
    why_not = refused(on.evidence, f"/{seen.address}")
    if why_not is not None or not names:
        return on.unknown(_device_text(seen, why_not or "nothing of it was read but its address"), _readable(on))
    where = "not in the PCI tree" if sighting.function is None else "its folder in the PCI tree is empty"
    if expects and all(source.could is None for source in sources):
        why = f"{where}; {known}, which may be of another machine: its digest differs"
        return on.unknown(_device_text(seen, why), remedy)
    doubt = next((source.read for source in sources if source.shows is not None and not source.expects), None)
    return on.failed(_device_text(seen, f"{where}; {known}"), remedy, f"{_TREE}, {doubt or sources[0].read}")


def _device_text(seen: SeenDevice, text: str) -> str:
    """Return a text with what is known about the device, then `text`."""
    known = seen.model or seen.id
    return f"{known}: {text}" if known else text


def _readable(on: On) -> str:
    return on.look(f"ls {_TREE}; lspci -D; run hosttune as root, and outside of a container that hides /sys")


# --- the host ------------------------------------------------------------------------------------------------


def _host(on: On) -> Finding:
    """Judge the tree as a whole: read, not empty, and no source counts more devices than it has."""
    on, evidence = on.reading(_TREE, _WHOLE), on.evidence
    rows = [*_tree(on), *_counts(evidence), *_boards(evidence), *_expectations(evidence)]
    for outcome, say in (("fail", on.failed), ("unknown", on.unknown)):
        bad = [row for row in rows if row[0] == outcome]
        if bad:
            text, read, remedy = ("; ".join(dict.fromkeys(row[n] for row in bad)) for n in (1, 2, 3))
            return say(text, remedy, read)
    agree = [source.name for source in on.host.sources or () if source.shows is not None]
    return on.passed(f"{len(on.host.pci)} functions" + (f"; {listed(agree)} know of no other" if agree else ""))


def _tree(on: On) -> Iterator[Row]:
    if not on.host.pci:
        why = refused(on.evidence, _TREE) or f"no function in {_TREE}: missing, empty or not readable"
        sources = [source for source in on.host.sources or () if source.beyond]
        known = {seen.address for source in sources for seen in source.beyond}
        others = f"; {listed([source.name for source in sources])} name {len(known)} devices" if known else ""
        yield "unknown", f"{why}{others}", _TREE, _readable(on)


def _counts(evidence: Evidence) -> Iterator[Row]:
    """Yield a row for sources that count GPUs without naming them."""
    for source in evidence.host.sources or ():
        if not source.names and source.shows is not None and source.could is not None:
            what = f"{source.name} has {source.shows} GPUs, the PCI tree {source.could}"
            if source.shows != source.could:
                verdict = "fail" if source.shows > source.could and evidence.host.pci else "unknown"
                maker = next((gpu.vendor for gpu in accelerators(evidence.host)), None)
                yield verdict, what, source.read, _gone(maker)


def _boards(evidence: Evidence) -> Iterator[Row]:
    """Compare GPUs and NVSwitches: NVSwitch boards have eight GPUs, others of their kind four. Not judged in a guest,
    which may have a part of a board."""
    host = evidence.host
    if host.hypervisor is True or not host.pci:
        return
    board = table("boards")["baseboard"]
    physical = (device for device in host.pci if device.vendor_id == nvswitches.VENDOR_ID and device.physfn is None)
    ids = {device.address: device.device_id for device in physical}
    lost = len({*(gpu.address for gpu in lost_gpus(host)), *host.index.unidentified})
    maker = maker_of(nvswitches.VENDOR_ID)
    hint = _gone(maker.name if maker else None)
    for switch, per_board in table("boards")["switches"].items():
        gpus = [gpu for gpu in host.gpus if ids.get(gpu.address) in board.get(switch, ())]
        switches = [nv_switch for nv_switch in host.nvswitches if ids.get(nv_switch.address) == switch]
        verdict = "fail" if host.hypervisor is False else "unknown"
        wanted = board["gpus"] * -(-len(switches) // per_board)
        here = f"{len(gpus)} GPUs of its kind in the PCI tree"
        if switches and len(gpus) + lost < wanted:
            yield verdict, f"{here}, {len(switches)} NVSwitches: {wanted} GPUs belong to them", _TREE, hint
        elif not switches and any(
            (gpu.fabric_state or "n/a").casefold() not in ("not supported", "not_supported", "n/a") for gpu in gpus
        ):
            yield verdict, f"no NVSwitch in the PCI tree, and {here} are on an NVSwitch fabric", _TREE, hint
        elif not switches and gpus and len(gpus) + lost not in _ALONE:
            yield "unknown", f"{here}, without NVSwitches: its boards hold 4 or 8", _TREE, hint


def _expectations(evidence: Evidence) -> Iterator[Row]:
    """Yield the sources of expected devices that could not be read."""
    for problem in evidence.problems:
        if problem.what == STATE or KEPT in problem.where:
            what = f"what is expected here could not be read: {problem.where}: {problem.why}"
            yield "unknown", what, problem.where, _UNREAD


# --- the other checks ----------------------------------------------------------------------------------------


def guarded(check: Check, evidence: Evidence, results: Iterable[CheckResult]) -> Iterator[CheckResult]:
    """Yield the results of another check; a device that is missing or not identified gets no pass, warning or skip.

    A check that uses only the PCI tree gives unknown for each GPU that is not in the tree.
    """
    if check.id == _ID:
        yield from results
        return
    lost = {gpu.address for gpu in lost_gpus(evidence.host)}
    gone = lost | {device.address for device in evidence.host.pci if device.responds is False}
    gone.update(evidence.host.index.unidentified)
    if not gone:
        yield from results
        return
    judged = list(results)
    silent = lost - {result.subject for result in judged} if check.of_tree else set()
    for result in judged:
        # What is unknown of a GPU that is not there has remedies for one that is.
        unasked = result.outcome == "unknown" and result.subject in lost
        if result.subject in gone and (unasked or result.outcome in ("pass", "warn", "skip")):
            yield msgspec.structs.replace(_not_there(check, result.subject, result.expected), source=result.source)
        elif not (silent and result.subject == HOST and result.outcome == "skip"):
            yield result
    for address in sorted(silent, key=address_key):
        yield _not_there(check, address, None)


def _not_there(check: Check, address: str, expected: str | None) -> CheckResult:
    return CheckResult(
        check=check.id,
        subject=address,
        outcome="unknown",
        expected=expected or check.title,
        actual=f"it is not there, does not answer, or could not be identified: see {_ID}",
        hint=f"see {_ID} of {address}",
    )
