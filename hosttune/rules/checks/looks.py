"""The health of a GPU on vfio-pci or in a guest: as it was at the last look before, dated. Pure.

A look is made while the maker's driver has the GPU. It counts until a guest that had the GPU since has ended; the first
guest after it may still run. Afterwards, and without a look, the health is unknown: nothing on the host shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from hosttune.gpu import vendor_of
from hosttune.machine.system import KEPT_GPUS
from hosttune.model.evidence import LOOKED, Evidence, Look, SeenRun
from hosttune.model.gpu import Gpu
from hosttune.model.host import Host, PciDevice
from hosttune.model.index import is_another
from hosttune.model.listing import some
from hosttune.model.pci import for_vfio
from hosttune.model.validation import CheckResult
from hosttune.model.values import grouped
from hosttune.rules.checks.facts import AS_LIBVIRT, RUNNING, accelerators, guests_known, refused
from hosttune.rules.checks.on import On
from hosttune.rules.engine import Finding

_MOST_SEEN = 8  # one that has ended is enough


# --- looks to keep -------------------------------------------------------------------------------------------


def looks_to_keep(evidence: Evidence, results: Iterable[CheckResult], at: str) -> dict[str, Look]:
    """Return the looks that these results are, by address, and the kept ones of GPUs that a guest is seen with first.

    A GPU that its driver holds and does not report has been looked at too: with results that are unknown.
    """
    host, results = evidence.host, tuple(results)
    looks = {}
    for gpu in host.index.accelerators:
        function, vendor = host.index.pci[gpu.address], vendor_of(gpu.vendor)
        last, now = (evidence.looks or {}).get(gpu.address), _run_now(evidence, gpu.address)
        if vendor is not None and function.driver == vendor.driver and function.physfn is None:
            looks[gpu.address] = look_of(host, gpu.address, results, at)
        elif last is not None and now is not None and now not in last.seen:
            looks[gpu.address] = msgspec.structs.replace(last, seen=(*last.seen, now)[-_MOST_SEEN:])
    return looks


def look_of(host: Host, address: str, results: Iterable[CheckResult], at: str) -> Look:
    """Return the look at a GPU that these results are."""
    mine = tuple(result for result in results if result.subject == address and result.check in LOOKED)
    look = Look(at=at, boot_id=host.boot_id, results=mine)
    return msgspec.structs.replace(look, **host.index.identity(address))


def _run_now(evidence: Evidence, address: str) -> SeenRun | None:
    """Return the guest that runs with a device now."""
    guests = (
        running_guest for running_guest in evidence.host.guests or () if (running_guest.state or "running") in RUNNING
    )
    name = next((running_guest.name for running_guest in guests if address in running_guest.devices), None)
    if name is None:
        return None
    process = next((guest_process for guest_process in evidence.processes or () if guest_process.guest == name), None)
    known = process is not None and None not in (process.pid, process.started)
    return SeenRun(
        guest=name,
        boot_id=evidence.host.boot_id,
        process=f"{process.pid}.{process.started}" if process and known else None,
    )


# --- what a look is worth ------------------------------------------------------------------------------------


def last_look(on: On) -> Finding:
    """Return what the last look found of the GPU that the check is asked about; unknown if no look counts."""
    gpu = next(gpu for gpu in accelerators(on.host) if gpu.address == on.subject)
    look, first, why = standing(on.evidence, gpu)
    if look is None:
        return on.unknown(why, way_to_look(on.evidence, [gpu]))
    when = f"looked at {_when(look)}{f', before guest {first}' if first else ''}"
    result = next((result for result in look.results if result.check == on.check.id), None)
    if result is None:
        return on.unknown(f"{when}, without this check", way_to_look(on.evidence, [gpu]))
    again = f"{way_to_look(on.evidence, [gpu])}; with its driver: {result.hint}" if result.hint else None
    source = f"{result.source}, kept in {KEPT_GPUS}" if result.source else None
    return Finding(f"{result.actual}; {when}", on.subject, result.outcome, result.expected, source, again)


def standing(evidence: Evidence, gpu: Gpu) -> tuple[Look | None, str, str]:
    """Return (the look at a GPU, the guest that has had it since, ""); or (None, "", why no look counts)."""
    looks, address = evidence.looks, gpu.address
    if looks is None:
        why = refused(evidence, KEPT_GPUS) or "what earlier looks found cannot be read, or is not recorded here"
        return None, "", f"not known to have been looked at: {why}"
    look = looks.get(address)
    if look is None:
        no = refused(evidence, f"{KEPT_GPUS}: {address}")
        never = "never looked at while its driver had it, as far as this host's state goes"
        return None, "", f"not known to have been looked at: {no}" if no else never
    if is_another(msgspec.structs.asdict(look), evidence.host.index.identity(address)):
        return None, "", f"another GPU is there since the look of {_when(look)}"
    run = _run_now(evidence, address)
    ended = _ended(evidence, address, look, run)
    if ended is not None:
        return None, "", f"not looked at since guest {ended}, which had it and has ended (last look {_when(look)})"
    if evidence.guest_runs is None or guests_known(evidence) is None:
        return None, "", f"looked at {_when(look)}; which guests have had it since is not known"
    return look, run.guest if run else "", ""


def _ended(evidence: Evidence, address: str, look: Look, now: SeenRun | None) -> str | None:
    """Return the last guest that is known to have had a GPU since a look, and to have ended; None if none is."""
    for seen in reversed(look.seen):
        same = now is not None and (now.guest, now.boot_id) == (seen.guest, seen.boot_id)
        if not same or (now is not None and None not in (now.process, seen.process) and now.process != seen.process):
            return seen.guest
    since = [run for run in evidence.guest_runs or () if address in run.devices and run.at[:19] >= look.at[:19]]
    for runs in grouped((run.source, run) for run in since).values():
        names = [run.guest for run in sorted(runs, key=lambda run: run.at[:19])]
        if now is not None and names[-1] == now.guest:
            names.pop()
        if names:
            return names[-1]
    return None


def way_to_look(evidence: Evidence, gpus: Iterable[Gpu]) -> str:
    """Return the command that looks at these GPUs: a hand-over tests them, on the host's driver or in a test guest."""
    gpus = tuple(gpus)
    modules = {module.name for module in (evidence.host.platform.modules or () if evidence.host.platform else ())}
    loaded = all((vendor := vendor_of(gpu.vendor)) is not None and vendor.driver in modules for gpu in gpus)
    runs = {run.guest for gpu in gpus if (run := _run_now(evidence, gpu.address)) is not None}
    named = " ".join(f"--device {gpu.address}" for gpu in gpus)
    begin = f"once guest {some(sorted(runs), 3)} has ended: " if runs else ""
    if guests_known(evidence) is None:
        begin = f"{AS_LIBVIRT}; then, for what no guest has: "
    return f"{begin}hosttune handover {named}{'' if loaded else ' --test-guest IMAGE'}"


def _when(look: Look) -> str:
    """Return the time of a look for people: 26 Nov 2026 14:03 UTC."""
    from datetime import datetime

    try:
        return f"{datetime.fromisoformat(look.at):%d %b %Y %H:%M} UTC"
    except ValueError:
        return look.at[:40]


# --- in one sentence -----------------------------------------------------------------------------------------


def looked(evidence: Evidence) -> str | None:
    """Return how many GPUs were looked at, and when, and how to look at the others; None if none is on vfio-pci."""
    functions, when, why, lacking = evidence.host.index.pci, [], [], []
    gpus = [gpu for gpu in accelerators(evidence.host) if not _function(functions, gpu).physfn]
    for gpu in gpus:
        function, vendor = _function(functions, gpu), vendor_of(gpu.vendor)
        if for_vfio(function.driver) and function.is_there:
            look, first, no = standing(evidence, gpu)
            if look is not None:
                when.append(f"{_when(look)}{f', before guest {first}' if first else ''}")
            else:
                why.append(no)
                lacking.append(gpu)
        elif function.is_there and vendor is not None and function.driver == vendor.driver:
            when.append("now")
        else:
            why.append("not there, or without its driver")
    if not any(for_vfio(_function(functions, gpu).driver) for gpu in gpus):
        return None
    times, lacks = (grouped((text, text) for text in texts) for texts in (when, why))
    told = [f"{len(of)} {text if text == 'now' else f'on {text}'}" for text, of in times.items()]
    text = f"{len(when)} of {len(gpus)} GPUs looked at"
    text += f": {'; '.join(told)}" if len(told) > 1 else "".join(f" {time}" for time in times)
    text = "; ".join((text, *(f"{len(of)} {no}" for no, of in lacks.items())))
    return f"{text}; look: {way_to_look(evidence, lacking)}" if lacking else text


def _function(functions: Mapping[str, PciDevice], gpu: Gpu) -> PciDevice:
    return functions.get(gpu.address, PciDevice(address=gpu.address, responds=False))
