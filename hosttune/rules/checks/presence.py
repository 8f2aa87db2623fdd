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
from hosttune.rules.checks.check import Check as Declared
from hosttune.rules.checks.check import failed, passed, unknown
from hosttune.rules.checks.data import table
from hosttune.rules.checks.facts import (
    HOST,
    RECORD,
    accelerators,
    known_devices,
    listed,
    lost_gpus,
    refused,
    unidentified,
)
from hosttune.rules.checks.on import Check

_ID = "device-present"
_TREE = sysfs.PCI_DEVICES
_EXPECTED = "in the PCI tree, and in every source that could show it"
_WHOLE = "a PCI tree that was read, and no source that knows of more"
_FORGET = "if it was taken out on purpose: hosttune validate --forget {0} --why TEXT"
KEPT = "/validations/"  # part of the path of a kept validation

_ALONE = (1, 2, 4, 8, 16)  # numbers of GPUs on boards of four and eight; one or two may be on an adapter
_UNREAD = "restore the file, or remove it if it is no longer needed"

Row = tuple[str, str, str, str]  # outcome, what, source, hint


def device_present(evidence: Evidence) -> Iterator[CheckResult]:
    """Yield one result for the host, and one per device that any source knows."""
    functions = evidence.host.index.pci
    yield _host(evidence)
    known = known_devices(evidence.host)
    sources = evidence.host.sources or ()
    shown = grouped((seen.address, (source, seen)) for source in sources for seen in source.beyond)
    lacking = grouped((address, source) for source in sources for address in source.lacking)
    for address in sorted(known.keys() | lacking.keys(), key=address_key):
        seen = known.get(address, SeenDevice(address=address))
        function = functions.get(address)
        if function is not None and function.is_there and not function.is_identified:
            yield _unidentified(evidence, address)
        else:
            yield _device(evidence, seen, function, shown.get(address, []), lacking.get(address, []))


# --- a device ------------------------------------------------------------------------------------------------


def _device(
    evidence: Evidence,
    seen: SeenDevice,
    function: PciDevice | None,
    shown: list[tuple[DeviceSource, SeenDevice]],
    lacking: list[DeviceSource],
) -> CheckResult:
    """Judge one device. `shown`: sources that show it beyond the tree; `lacking`: sources that lack it."""
    address = seen.address
    read = f"{_TREE}/{address}"
    if function is not None and function.responds is False:
        actual = _named(seen, "its ids or its configuration space read all ones: nothing answers there")
        return failed(_ID, address, expected=_EXPECTED, actual=actual, source=read, hint=_gone(seen.vendor))
    if function is None or not function.is_there:
        return _missing(evidence, seen, [source for source, _ in shown], listed_empty=function is not None)
    if shown:
        return _another(function, shown, read)
    if lacking:
        return _unshown(evidence, seen, lacking)
    return passed(_ID, address, expected=_EXPECTED, actual="in the PCI tree", source=read)


def _gone(vendor: str | None) -> str:
    """Return what to do about a device that is gone. `vendor`: as in `Gpu.vendor` for GPUs and their switches."""
    maker = vendor_of(vendor or "")
    events = f"{maker.hints.lost}, and for AER and link events" if maker else "AER and link events"
    return (
        f"look for {events} in the kernel log (journalctl -k); reseat it, power-cycle the host; plan no guest with it"
        " until then"
    )


def _missing(evidence: Evidence, seen: SeenDevice, sources: list[DeviceSource], *, listed_empty: bool) -> CheckResult:
    """Judge a device that is not in the tree: a fault if the tree was read and another source names the device."""
    address = seen.address
    names = [source.name for source in sources]
    expects = all(source.expects for source in sources)
    known = f"{'expected by' if expects else 'named by'} {listed(names)}" if names else "named by the document"
    hint = f"{_FORGET.format(address)}; else {_gone(seen.vendor)}" if names and expects else _gone(seen.vendor)
    if not evidence.host.pci:
        why = _named(seen, f"{known}; the PCI tree is missing, empty or was not readable")
        return unknown(_ID, address, expected=_EXPECTED, why=why, hint=_readable(evidence), source=_TREE)
    why_not = refused(evidence, f"/{address}")
    if why_not is not None or not names:
        why = _named(seen, why_not or "nothing of it was read but its address")
        return unknown(_ID, address, expected=_EXPECTED, why=why, hint=_readable(evidence), source=_TREE)
    where = "its folder in the PCI tree is empty" if listed_empty else "not in the PCI tree"
    doubt = next((source.read for source in sources if source.shows is not None and not source.expects), None)
    if expects and all(source.could is None for source in sources):
        why = _named(seen, f"{where}; {known}, which may be of another machine: its digest differs")
        return unknown(_ID, address, expected=_EXPECTED, why=why, hint=hint, source=_TREE)
    actual = _named(seen, f"{where}; {known}")
    read = f"{_TREE}, {doubt or sources[0].read}"
    return failed(_ID, address, expected=_EXPECTED, actual=actual, source=read, hint=hint)


def _another(function: PciDevice, shown: list[tuple[DeviceSource, SeenDevice]], read: str) -> CheckResult:
    """Return the result if the address has a device that is not the expected one."""
    names = listed([source.name for source, _ in shown])
    here = f"{function.vendor_id}:{function.device_id}"
    actual = f"{here} is there; {shown[0][1].id or 'another device'} expected by {names}"
    hint = f"plan again with the device that is there now; {_FORGET.format(function.address)}"
    return failed(_ID, function.address, expected=_EXPECTED, actual=actual, source=f"{read}/device", hint=hint)


def _unshown(evidence: Evidence, seen: SeenDevice, lacking: list[DeviceSource]) -> CheckResult:
    """Return the result for a device in the tree that a source should show and does not; either may be right."""
    address = seen.address
    silent = [source for source in lacking if source.shows is None]
    silent_of = [source for source in lacking if source.shows is not None]
    if silent_of:
        why = f"in the PCI tree, and not shown by {listed([source.name for source in silent_of])}, which could show it"
        hint = f"compare by hand: {listed([source.read for source in silent_of])}; {_gone(seen.vendor)}"
    else:
        why = f"in the PCI tree; {listed([source.name for source in silent])} could show it, and was not read"
        hint = f"look at {listed([source.read for source in silent])}" if evidence.complete else RECORD
    return unknown(_ID, address, expected=_EXPECTED, why=why, hint=hint, source=f"{_TREE}/{address}")


def _unidentified(evidence: Evidence, address: str) -> CheckResult:
    why, source = "in the PCI tree; its class or vendor id could not be read", f"{_TREE}/{address}"
    hint = f"look with: lspci -nnk -s {address}" if evidence.complete else RECORD
    return unknown(_ID, address, expected=_EXPECTED, why=why, hint=hint, source=source)


def _named(seen: SeenDevice, text: str) -> str:
    """Return a text with what is known about the device, then `text`."""
    known = seen.model or seen.id
    return f"{known}: {text}" if known else text


def _readable(evidence: Evidence) -> str:
    if evidence.complete:
        return f"look with: ls {_TREE}; lspci -D; run hosttune as root, and outside of a container that hides /sys"
    return RECORD


# --- the host ------------------------------------------------------------------------------------------------


def _host(evidence: Evidence) -> CheckResult:
    """Judge the tree as a whole: read, not empty, and no source counts more devices than it has."""
    found = [*_tree(evidence), *_counts(evidence), *_boards(evidence), *_expectations(evidence)]
    for outcome in ("fail", "unknown"):
        bad = [row for row in found if row[0] == outcome]
        if bad:
            actual, read, hint = ("; ".join(dict.fromkeys(row[n] for row in bad)) for n in (1, 2, 3))
            if outcome == "fail":
                return failed(_ID, HOST, expected=_WHOLE, actual=actual, source=read, hint=hint)
            return unknown(_ID, HOST, expected=_WHOLE, why=actual, hint=hint, source=read)
    agree = [source.name for source in evidence.host.sources or () if source.shows is not None]
    actual = f"{len(evidence.host.pci)} functions" + (f"; {listed(agree)} know of no other" if agree else "")
    return passed(_ID, HOST, expected=_WHOLE, actual=actual, source=_TREE)


def _tree(evidence: Evidence) -> Iterator[Row]:
    host = evidence.host
    if not host.pci:
        why = refused(evidence, _TREE)
        known = {seen.address for source in host.sources or () for seen in source.beyond}
        names = [source.name for source in host.sources or () if source.beyond]
        others = f"; {listed(names)} name {len(known)} devices" if known else ""
        yield (
            "unknown",
            f"{why or f'no function in {_TREE}: missing, empty or not readable'}{others}",
            _TREE,
            _readable(evidence),
        )


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
    ids = {device.address: device.device_id for device in host.pci if device.vendor_id == nvswitches.VENDOR_ID}
    lost = len({*(gpu.address for gpu in lost_gpus(host)), *unidentified(host)})
    maker = maker_of(nvswitches.VENDOR_ID)
    hint = _gone(maker.name if maker else None)
    for switch, per_board in table("boards")["switches"].items():
        gpus = [gpu for gpu in host.gpus if ids.get(gpu.address) in board.get(switch, ())]
        switches = [one for one in host.nvswitches if ids.get(one.address) == switch]
        verdict = "fail" if host.hypervisor is False else "unknown"
        wanted = board["gpus"] * -(-len(switches) // per_board)
        here = f"{len(gpus)} GPUs of its kind in the PCI tree"
        if switches and len(gpus) + lost < wanted:
            yield verdict, f"{here}, {len(switches)} NVSwitches: {wanted} GPUs belong to them", _TREE, hint
        elif not switches and any(_on_fabric(gpu.fabric_state) for gpu in gpus):
            yield verdict, f"no NVSwitch in the PCI tree, and {here} are on an NVSwitch fabric", _TREE, hint
        elif not switches and gpus and len(gpus) + lost not in _ALONE:
            yield "unknown", f"{here}, without NVSwitches: its boards hold 4 or 8", _TREE, hint


def _on_fabric(state: str | None) -> bool:
    return state is not None and state.casefold() not in ("not supported", "not_supported", "n/a")


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
    gone.update(unidentified(evidence.host))
    if not gone:
        yield from results
        return
    found = list(results)
    silent = lost - {result.subject for result in found} if check.of_tree else set()
    for result in found:
        if result.subject in gone and result.outcome in ("pass", "warn", "skip"):
            yield msgspec.structs.replace(_not_there(check, result.subject, result.expected), source=result.source)
        elif not (silent and result.subject == HOST and result.outcome == "skip"):
            yield result
    for address in sorted(silent, key=address_key):
        yield _not_there(check, address, None)


def _not_there(check: Check, address: str, expected: str | None) -> CheckResult:
    why = f"it is not there, does not answer, or could not be identified: see {_ID}"
    return unknown(check.id, address, expected=expected or check.title, why=why, hint=f"see {_ID} of {address}")


CHECKS = (
    Declared(
        id=_ID,
        title="Every device that any source knows is there",
        subjects="the host; each GPU, NIC, NVMe drive, NVSwitch and device that another source or an expectation names",
        why="a GPU that fell off the bus is in no list that a check could fail: only earlier records show it",
        source=(
            "Linux Documentation/ABI/testing/sysfs-bus-pci; NVIDIA, NVML API reference (nvml.h): only GPUs that the"
            " driver holds; NVIDIA, XID 79 (GPU has fallen off the bus)"
        ),
        judge=device_present,
        inside=True,
    ),
)
