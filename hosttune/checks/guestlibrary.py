"""Check that the collectives library of a guest has the settings that the guest's plan gives it, and no others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hosttune.checks.check import Check, failed, passed, skipped, unknown
from hosttune.checks.facts import HOST
from hosttune.model.evidence import Evidence
from hosttune.model.guestplan import PLACE, UNREADABLE, ExpectedLibrary
from hosttune.model.host import Host
from hosttune.model.validation import CheckResult

_ID = "guest-library-file"
_AGAIN = (
    "systemctl restart hosttune-guest writes it anew; a file without its first line is left alone: move it away first"
)


def guest_library_file(evidence: Evidence) -> Iterable[CheckResult]:
    """Yield one result for the library's settings file."""
    plan = evidence.guest_plan
    if plan is None:
        broken = next((problem for problem in evidence.problems if problem.what == UNREADABLE), None)
        if broken is None:
            yield skipped(_ID, HOST, f"no plan of a guest is here: a planned guest's seed or bundle brings {PLACE}")
            return
        hint = "write the guest's seed or bundle again (hosttune apply on its host) and install it"
        yield unknown(_ID, HOST, expected="what its plan says", why=broken.why, hint=hint, source=PLACE)
    elif plan.library is None:
        yield skipped(_ID, HOST, "its plan has no settings for a collectives library")
    else:
        yield _file(evidence, plan.library)


def _file(evidence: Evidence, library: ExpectedLibrary) -> CheckResult:
    path = library.path
    names = _names(evidence.host, library.nics)
    files = evidence.library_files or {}
    wanted = _wanted(library, names)
    expected = ", ".join(f"{name}={value}" for name, value in wanted.items())
    if path not in files:
        return unknown(_ID, path, expected=expected, why="it could not be read", hint=f"read {path}", source=path)
    text = files[path]
    if text is None:
        return failed(_ID, path, expected=expected, actual="no such file", source=path, hint=_AGAIN)
    found = settings_of(text)
    actual = ", ".join(f"{name}={value}" for name, value in found.items()) or "no setting"
    lost = [address for address, name in names.items() if name is None]
    if lost:
        why = f"the RDMA device of {', '.join(lost)} is unknown"
        hint = "load the NIC's RDMA driver, then systemctl restart hosttune-guest"
        return unknown(_ID, path, expected=expected, why=why, hint=hint, source=path)
    if found != wanted:
        return failed(_ID, path, expected=expected, actual=actual, source=path, hint=_AGAIN)
    return passed(_ID, path, expected=expected, actual=actual, source=path)


def _names(host: Host, nics: Iterable[str]) -> Mapping[str, str | None]:
    rdma = {nic.address: nic.rdma for nic in host.nics or ()}
    return {address: rdma.get(address) for address in nics}


def _wanted(library: ExpectedLibrary, names: Mapping[str, str | None]) -> Mapping[str, str]:
    known = [name for name in names.values() if name is not None]
    topology = {"NCCL_TOPO_FILE": library.topology}
    return topology | {"NCCL_IB_HCA": f"={','.join(known)}"} if known else topology


def settings_of(text: str) -> Mapping[str, str]:
    """Return the settings of a file as the library reads it: # in column 1 only, nothing trimmed.

    Source: NVIDIA/nccl, src/misc/param.cc, setEnvFile.
    """
    lines = (line.partition("=") for line in text.split("\n") if line and not line.startswith("#"))
    return {name: value for name, equals, value in lines if equals}


CHECKS = (
    Check(
        id=_ID,
        title="The collectives library has the plan's settings",
        subjects="the library's settings file, where the guest's plan names one",
        why="a setting of a guide in this file holds for every program: NICs unused, or an algorithm forced",
        source="the guest's plan (docs/guest.md); NVIDIA/nccl, src/misc/param.cc",
        judge=guest_library_file,
        inside=True,
    ),
)
