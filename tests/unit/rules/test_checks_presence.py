"""Devices that one source shows and another does not, and devices that are expected: `device-present`.

The example is damaged in memory, as a machine is by a fault: its files and links are taken away or changed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from applyroots import EXAMPLE, Root, copied
from evidences import GPU, evidence, gpu, guest, host, judged, switch

from hosttune import discover
from hosttune.cli import run
from hosttune.discovery.evidence import gather
from hosttune.errors import BadInput
from hosttune.machine.capture import Archive
from hosttune.machine.opening import open_root
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu
from hosttune.model.host import DeviceSource, Host, NvSwitch, PciDevice, SeenDevice
from hosttune.model.validation import CheckResult, KnownDevice, Machine, Validation, verdict_of
from hosttune.rules.checks import judge
from hosttune.rules.checks.expected import Forgotten, of_document, of_validation, with_expectations
from hosttune.rules.checks.facts import accelerators, known_devices
from hosttune.validating import decide
from hosttune.validating.history import with_expected

GPUS = tuple(f"0000:{bus}:00.0" for bus in ("18", "29", "41", "56", "9a", "aa", "ba", "da"))
SWITCHES = tuple(f"0000:{bus}:00.0" for bus in ("83", "84", "85", "86"))
LOST = GPUS[2]
TREE = "/sys/bus/pci/devices"
SMI, MATRIX = "/.hosttune/commands/nvidia-smi-q-x", "/.hosttune/commands/nvidia-smi-topo-m"
VM = Path(__file__).parents[2] / "hosts" / "older" / "vm-x4.tar.gz"
# Checks that have one result for each GPU of the example, and judge what a GPU that is not there cannot tell.
OF_EACH_GPU = frozenset(
    (
        *("pcie-link", "numa-affinity", "pcie-payload", "aspm", "bar-size", "iommu-groups", "gpu-driver", "gpu-status"),
        *("clock-reasons", "application-clocks", "power-limit", "gpu-temperature", "ecc-mode", "ecc-errors"),
        *("row-remap", "pcie-replay", "persistence", "compute-mode", "mig-mode", "gpu-processes", "nvlink"),
        *("fabric-state", "xid", "aer"),
    )
)


@cache
def whole() -> Archive:
    found = open_root(str(EXAMPLE))
    assert isinstance(found, Archive)
    return found


def without(*patterns: str, keep_links: bool = False, put: Mapping[str, bytes | None] | None = None) -> Evidence:
    """The example without what matches a pattern (links, unless `keep_links`), with files put in (None: without)."""
    gone = re.compile("|".join(patterns) or "(?!)")
    archive = whole()
    kept = {path: data for path, data in archive._files.items() if not gone.search(path)}
    links = {path: to for path, to in archive._links.items() if keep_links or not gone.search(path)}
    for path, data in (put or {}).items():
        if data is None:
            kept.pop(path, None)
        else:
            kept[path] = data
    folders = (path for path in archive._dirs if not gone.search(path + "/"))
    return gather(Archive(kept, links, "a damaged example", folders))


def folder_of(address: str) -> str:
    """The directory of a function in the example, as a pattern; links to it keep their names."""
    return f"^/sys/devices/.*/{re.escape(address)}/"


def traces_of(*addresses: str) -> str:
    """Everything in sysfs whose path names one of these functions."""
    return f"^/sys/.*({'|'.join(map(re.escape, addresses))})"


def outcomes(found: Evidence, check: str = "device-present") -> dict[str, str]:
    return {result.subject: result.outcome for result in judge(found) if result.check == check}


def bad(found: Evidence) -> dict[str, str]:
    return {subject: outcome for subject, outcome in outcomes(found).items() if outcome != "pass"}


def result(found: Evidence, subject: str, check: str = "device-present") -> CheckResult:
    return next(one for one in judge(found) if (one.check, one.subject) == (check, subject))


def unjudged(found: Evidence, gpus: Iterable[str]) -> None:
    """No check passes these GPUs or leaves them out; the verdict is no pass."""
    results = list(judge(found))
    assert verdict_of(results) in ("fail", "unknown")
    for gpu_ in gpus:
        mine = {one.check: one.outcome for one in results if one.subject == gpu_}
        assert {check: mine.get(check) for check in OF_EACH_GPU} == dict.fromkeys(OF_EACH_GPU, "unknown")
        assert "pass" not in mine.values()
        assert "warn" not in mine.values()


# --- a healthy host ------------------------------------------------------------------------------------------


def test_a_whole_host_passes_with_every_device() -> None:
    found = without()
    assert set(outcomes(found).values()) == {"pass"}
    assert {"host", *GPUS, *SWITCHES} <= outcomes(found).keys()
    assert found.host.problems == ()
    names = {source.name for source in found.host.sources or ()}
    assert {"nvidia-smi -q -x", "the topology matrix", "the IOMMU groups", "the class nvme"} <= names


def test_a_source_that_nobody_recorded_says_nothing() -> None:
    found = without(re.escape(MATRIX), "^/sys/kernel/iommu_groups/", "^/sys/bus/pci/drivers/", "^/sys/class/")
    assert bad(found) == {}
    assert [source.name for source in found.host.sources or ()] == [
        "nvidia-smi -q -x",
        "the count of nvidia-smi -q -x",
        "the functions' folders",
    ]


def test_a_driver_that_holds_gpus_and_whose_list_is_lost_leaves_them_unknown() -> None:
    found = without(re.escape(SMI))
    assert bad(found) == dict.fromkeys(GPUS, "unknown")
    assert "was not read" in (result(found, LOST).actual or "")


def test_a_guest_with_four_of_eight_gpus_lacks_nothing() -> None:
    found = gather(open_root(str(VM)))
    assert set(outcomes(found).values()) == {"pass"}
    assert len(accelerators(found.host)) == 4


# --- devices that are gone -----------------------------------------------------------------------------------


@pytest.mark.parametrize("trace", ["folder", "links", "all"])
@pytest.mark.parametrize("gone", [(LOST,), GPUS])
def test_gpus_off_the_bus_fail_and_are_judged_by_nothing_else(gone: tuple[str, ...], trace: str) -> None:
    patterns = {
        "folder": [folder_of(address) for address in gone],  # links to it lead nowhere
        "links": [f"^{TREE}/{re.escape(address)}$" for address in gone],
        "all": [traces_of(*gone)],  # nvidia-smi alone still knows them
    }[trace]
    found = without(*patterns, keep_links=trace == "folder")
    assert {address: outcomes(found)[address] for address in gone} == dict.fromkeys(gone, "fail")
    told = result(found, gone[0])
    assert "NVIDIA H200" in (told.actual or "")
    assert "nvidia-smi -q -x" in (told.actual or "") + (told.source or "")
    unjudged(found, gone)
    others = [one for one in judge(found) if one.subject in gone and one.check != "device-present"]
    assert {one.hint for one in others if one.outcome == "unknown"} == {f"see device-present of {one}" for one in gone}
    places = {problem.where for problem in found.host.problems if problem.what == "sources of devices disagree"}
    assert {f"{TREE}/{address}" for address in gone} <= places


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("pattern", [rf"^{TREE}", r"^/sys/(bus|devices)/.*pci", r"^/sys"])
def test_without_a_pci_tree_nothing_passes(pattern: str, refused: bool) -> None:
    line = f"{TREE}\tPermission denied\n".encode()
    found = without(pattern, put={"/.hosttune/unreadable": line} if refused else {})
    assert found.host.pci == ()
    told = result(found, "host")
    assert told.outcome == "unknown"
    assert ("Permission denied" if refused else "missing, empty or not readable") in (told.actual or "")
    assert {address: outcomes(found)[address] for address in GPUS} == dict.fromkeys(GPUS, "unknown")
    unjudged(found, GPUS)
    assert any(problem.what == "no PCI tree" for problem in found.host.problems)


def test_without_a_pci_tree_and_without_any_other_source_the_host_is_unknown() -> None:
    found = without("^/sys", r"^/\.hosttune")
    assert outcomes(found) == {"host": "unknown"}
    assert verdict_of(judge(found)) == "unknown"


def test_nvswitches_off_the_bus_fail() -> None:
    assert (
        bad(without(*[folder_of(one) for one in SWITCHES], keep_links=True)).items()
        >= dict.fromkeys(SWITCHES, "fail").items()
    )
    found = without(traces_of(*SWITCHES))  # no trace in sysfs: the GPUs are on a fabric all the same
    assert bad(found) == {"host": "fail"}
    assert "no NVSwitch in the PCI tree" in (result(found, "host").actual or "")


def test_gpus_that_only_the_baseboard_misses_fail_on_a_host_and_not_in_a_guest() -> None:
    found = without(traces_of(*GPUS[4:]), re.escape(SMI), re.escape(MATRIX))
    assert bad(found) == {"host": "fail"} | dict.fromkeys(GPUS[:4], "unknown")
    assert "4 NVSwitches: 8 GPUs belong to them" in (result(found, "host").actual or "")
    inside = msgspec.structs.replace(found, host=msgspec.structs.replace(found.host, hypervisor=True))
    assert outcomes(inside)["host"] == "pass"


@pytest.mark.parametrize(("name", "data"), [("vendor", b"0xffff\n"), ("config", b"\xff" * 4096)])
def test_a_function_that_reads_all_ones_is_gone(name: str, data: bytes) -> None:
    path = next(path for path in whole()._files if path.endswith(f"/{LOST}/{name}"))
    found = without(put={path: data})
    assert bad(found) == {LOST: "fail"}
    assert "all ones" in (result(found, LOST).actual or "")
    assert LOST not in {one.address for one in found.host.gpus}
    unjudged(found, (LOST,))
    assert next(p.what for p in found.host.problems if p.where == f"{TREE}/{LOST}") == "PCI function does not answer"


def test_a_function_of_which_nothing_but_its_address_is_there_is_unknown() -> None:
    others = (re.escape(SMI), re.escape(MATRIX), "^/sys/kernel/iommu_groups/", "^/sys/bus/pci/drivers/", "^/sys/class/")
    found = without(folder_of(LOST), *others)
    assert outcomes(found)[LOST] == "unknown"
    assert "nothing of it was read but its address" in (result(found, LOST).actual or "")


def test_what_a_tool_does_not_list_although_its_driver_holds_it_is_unknown() -> None:
    text = whole()._files[SMI].decode()
    cut = re.sub(rf'<gpu id="0000{LOST.upper()}">.*?</gpu>', "", text, flags=re.DOTALL | re.IGNORECASE)
    assert len(cut) < len(text)
    found = without(re.escape(MATRIX), put={SMI: cut.encode()})
    assert bad(found) == {LOST: "unknown"}
    assert "not shown by nvidia-smi -q -x" in (result(found, LOST).actual or "")


def test_a_count_that_differs_is_the_hosts() -> None:
    found = without(traces_of(LOST), re.escape(SMI))
    assert result(found, "host").outcome == "fail"
    assert "the topology matrix has 8 GPUs, the PCI tree 7" in (result(found, "host").actual or "")


@pytest.mark.parametrize(("count", "expected"), [("9", "fail"), ("8", "pass"), ("7", "unknown"), ("?", "pass")])
def test_a_tools_own_count_is_compared_with_the_tree(count: str, expected: str) -> None:
    text = whole()._files[SMI].decode().replace("<attached_gpus>8<", f"<attached_gpus>{count}<")
    found = result(without(put={SMI: text.encode()}), "host")
    assert found.outcome == expected
    if expected != "pass":
        assert f"the count of nvidia-smi -q -x has {count} GPUs, the PCI tree 8" in (found.actual or "")


@pytest.mark.parametrize("field", ["class_code", "vendor_id"])
def test_a_function_whose_class_or_maker_was_not_read_is_unknown(field: str) -> None:
    found = without()
    functions = [
        msgspec.structs.replace(one, **{field: None}) if one.address == LOST else one for one in found.host.pci
    ]
    blank = msgspec.structs.replace(found, host=msgspec.structs.replace(found.host, pci=tuple(functions)))
    assert bad(blank) == {LOST: "unknown"}
    assert result(blank, LOST).actual == "in the PCI tree; its class or vendor id could not be read"
    assert {one.outcome for one in judge(blank) if one.subject == LOST} <= {"unknown", "fail"}


def test_the_kernels_other_list_and_the_nvidia_modules_folder_are_sources() -> None:
    files: dict[str, bytes | None] = {
        "/proc/bus/pci/devices": b"4100\t10de2335\t10\tnvidia\n1800\t10de2335\t11\tnvidia\n8300\t10de22a3\t0\t0\n",
        f"/proc/driver/nvidia/gpus/{LOST}/information": b"",
    }
    found = without("^/sys", re.escape(SMI), re.escape(MATRIX), put=files)
    assert outcomes(found) == dict.fromkeys(("host", LOST, GPUS[0], SWITCHES[0]), "unknown")
    assert known_devices(found.host)[SWITCHES[0]].kind == "nvswitch"


def test_other_makers_tools_are_sources() -> None:
    rows = (Path(__file__).parents[2] / "cases/gpu/hl-smi/gaudi3-x2.txt").read_bytes()
    kfd = b"simd_count 304\nlocation_id 6144\ndomain 1\n"
    files = {
        "/proc/version": b"",
        "/sys/class/kfd/kfd/topology/nodes/1/properties": kfd,
        "/.hosttune/commands/hl-smi-q": rows,
    }
    found = gather(Archive(files, {}, "no PCI tree"))
    makers = [one.vendor for one in accelerators(found.host)]
    assert sorted(makers) == ["amd", "habana", "habana"]
    assert accelerators(found.host)[-1].address == "0001:18:00.0"
    assert set(outcomes(found).values()) == {"unknown"}
    assert len(outcomes(found)) == 4


def test_a_device_of_a_guest_must_be_there() -> None:
    shut = guest("b", (3, 7), (GPU,), state="shut off")
    sources = tuple(
        DeviceSource(name=f"the guest {one}", read="libvirt", shows=1, beyond=(SeenDevice(address=GPU, kind="other"),))
        for one in "ab"
    )
    found = evidence(host(pci=tuple(switch()), gpus=(), guests=(guest(), shut), sources=sources))
    told = judged("device-present", found)
    assert told[GPU].outcome == "fail"
    assert "the guest a, the guest b" in (told[GPU].actual or "")


# --- documents -----------------------------------------------------------------------------------------------


def test_sources_survive_the_document() -> None:
    found = without(traces_of(LOST)).host
    read = Host.from_json(found.to_json())
    assert read == found
    assert outcomes(Evidence(host=read))[LOST] == "fail"


def test_a_gpu_that_only_a_document_lists_is_unknown() -> None:
    found = evidence(host(gpus=(Gpu(address=GPU, vendor="nvidia"), Gpu(address="0000:99:00.0", vendor="nvidia"))))
    assert {s: one.outcome for s, one in judged("device-present", found).items()} == {
        "host": "pass",
        GPU: "pass",
        "0000:99:00.0": "unknown",
    }


@pytest.mark.parametrize(("count", "hypervisor", "expected"), [
    (8, False, "pass"), (7, False, "fail"), (7, None, "unknown"), (4, True, "pass"), (1, True, "pass"),
])  # fmt: skip
def test_a_baseboards_count(count: int, hypervisor: bool | None, expected: str) -> None:
    boards = [PciDevice(address=one, vendor_id="10de", device_id="22a3", class_code="068000") for one in SWITCHES]
    gpus = [gpu(one, None) for one in GPUS[:count]]
    found = evidence(
        host(
            pci=(*boards, *gpus),
            gpus=tuple(Gpu(address=one.address, vendor="nvidia") for one in gpus),
            nvswitches=tuple(NvSwitch(address=one) for one in SWITCHES),
            hypervisor=hypervisor,
            guests=(),
        )
    )
    assert judged("device-present", found)["host"].outcome == expected


# --- expectations --------------------------------------------------------------------------------------------


def kept(*addresses: str, **more: Any) -> Validation:
    """A validation that knew these GPUs."""
    devices = tuple(KnownDevice(address=one, kind="gpu", id="10de:2335") for one in addresses)
    return Validation(machine=Machine(devices=devices), **({"at": "2026-03-01T09:30:00+00:00"} | more))


def expected(found: Evidence, *validations: Validation, out: tuple[Forgotten, ...] = ()) -> Evidence:
    named = (of_validation(one, "the validation of march", "kept.json") for one in validations)
    return with_expectations(found, named, out)


NOTHING_KNOWS = (traces_of(LOST), re.escape(SMI), re.escape(MATRIX))


@cache
def quietly_lost() -> Evidence:
    """Seven GPUs and no baseboard to tell: nothing but an expectation knows of the eighth."""
    found = without(*NOTHING_KNOWS)
    return msgspec.structs.replace(found, host=msgspec.structs.replace(found.host, hypervisor=True))


@pytest.mark.parametrize(
    "text", ['{"schema": "hosttune.host/v1"}', '{"schema": "hosttune.validation/v1", "results": []}']
)
def test_an_expectation_without_devices_is_none(text: str) -> None:
    with pytest.raises(BadInput, match="it names no device that could be expected here"):
        of_document(text.encode(), "it.json")


def test_a_first_validation_expects_nothing() -> None:
    assert LOST not in outcomes(quietly_lost())
    assert result(quietly_lost(), "host").outcome == "pass"


def test_what_the_last_validation_knew_must_be_there() -> None:
    found = expected(quietly_lost(), kept(*GPUS))
    told = result(found, LOST)
    assert (told.outcome, "expected by the validation of march" in (told.actual or "")) == ("fail", True)
    assert f"--forget {LOST} --why" in (told.hint or "")
    unjudged(found, (LOST,))
    assert {o for a, o in outcomes(found).items() if a in GPUS and a != LOST} == {"unknown"}, "their driver's list"


def test_another_card_in_its_place_is_not_the_expected_one() -> None:
    machine = Machine(devices=(KnownDevice(address=LOST, kind="gpu", id="10de:2330"),))
    found = with_expectations(without(), (of_validation(Validation(machine=machine), "it", "it.json"),), ())
    told = result(found, LOST)
    assert told.outcome == "fail"
    assert "10de:2335 is there; 10de:2330 expected by it" in (told.actual or "")


def test_an_expectation_without_a_tree_is_unknown() -> None:
    found = expected(without("^/sys", r"^/\.hosttune"), kept(LOST))
    assert outcomes(found) == {"host": "unknown", LOST: "unknown"}


def test_what_another_machine_had_is_unknown() -> None:
    here = quietly_lost()
    here = msgspec.structs.replace(here, host=msgspec.structs.replace(here.host, digest="a"))
    machine = Machine(digest="b", devices=(KnownDevice(address=LOST, kind="gpu"),))
    found = with_expectations(here, (of_validation(Validation(machine=machine), "it", "it.json"),), ())
    assert outcomes(found)[LOST] == "unknown"


def test_a_device_is_forgotten_until_it_is_seen_again() -> None:
    out = (Forgotten(address=LOST, why="sent back", who="root", at="2026-03-02T00:00:00+00:00"),)
    assert LOST not in outcomes(expected(quietly_lost(), kept(*GPUS), out=out))
    later = kept(*GPUS, at="2026-03-03T00:00:00+00:00")
    assert outcomes(expected(quietly_lost(), later, out=out))[LOST] == "fail"


def test_a_kept_validation_names_what_was_there_and_what_should_have_been() -> None:
    found = expected(quietly_lost(), kept(LOST))
    _, known = with_expected(None, found, None)
    document = decide(found, 1, None, live=False, known=known)
    devices = {one.address: one for one in (document.machine or Machine()).devices or ()}
    assert {LOST, *GPUS, *SWITCHES} <= devices.keys()
    assert (devices[GPUS[0]].kind, devices[GPUS[0]].id) == ("gpu", "10de:2335")
    assert outcomes(expected(quietly_lost(), document))[LOST] == "fail", "it is not forgotten by being missed twice"


def test_an_older_validation_names_its_devices_by_its_results() -> None:
    row = CheckResult(check="pcie-link", subject="0000:9f:00.0", outcome="pass")
    old = Validation(results=(row, CheckResult(check="pcie-link", subject="host", outcome="skip")))
    assert outcomes(expected(without(), old))["0000:9f:00.0"] == "fail"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b"{", "not a JSON document"),
        (b"[]", "it has no schema"),
        (b'{"schema":"hosttune.result/v1"}', "hosttune.result/v1"),
    ],
)
def test_what_is_no_expectation(text: bytes, what: str) -> None:
    with pytest.raises(BadInput, match=what):
        of_document(text, "x.json")


# --- the command line ----------------------------------------------------------------------------------------


class Cli:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        code = run(["validate", *arguments])
        out, err = self._capsys.readouterr()
        return code, out, err

    def present(self, *arguments: str) -> dict[str, str]:
        rows = json.loads(self(*arguments, "-o", "json")[1])["results"]
        return {row["subject"]: row["outcome"] for row in rows if row["check"] == "device-present"}


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("HOSTTUNE_STATE", str(tmp_path / "state"))
    return Cli(capsys)


def take_away(root: Root, patterns: Iterable[str]) -> None:
    """Remove from a scratch root what matches, folders and all."""
    gone = re.compile("|".join(patterns))
    for path in sorted(root.path.rglob("*"), reverse=True):
        name = f"/{path.relative_to(root.path)}"
        if gone.search(name) or gone.search(f"{name}/"):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def test_plan_validation_and_file_are_expectations_and_forgetting_is_kept(
    cli: Cli, pristine: Path, tmp_path: Path
) -> None:
    with copied(pristine, tmp_path / "root") as root:
        where = ("--root", str(root.path))
        document = tmp_path / "host.json"
        document.write_text(discover(str(root.path)).to_json())
        take_away(root, NOTHING_KNOWS)
        assert LOST not in cli.present(*where), "nothing is expected yet"
        assert cli.present(*where, "--expect", str(document))[LOST] == "fail"
        root.put("var/lib/hosttune/validations/20260301T093000-level1.json", kept(LOST, GPUS[0]).to_json())
        assert cli.present(*where)[LOST] == "fail"
        os.mknod(os.fsencode(root.path / "var/lib/hosttune/validations") + b"/\xff.json")
        assert cli.present(*where)[LOST] == "fail"  # a name that is no text is a problem, and no error of ours
        assert cli(*where, "--forget", "0000:99:00.0", "--why", "x")[0] == 2
        assert not (root.path / "var/lib/hosttune/forgotten.json").exists()
        code, _, err = cli(*where, "--forget", LOST, "--why", "sent back, RMA 4711")
        assert (code, f"no longer expected: {LOST}" in err) == (1, True)
        record = json.loads(root.get("var/lib/hosttune/forgotten.json"))["devices"]
        assert [(row["address"], row["why"], bool(row["who"]), bool(row["at"])) for row in record] == [
            (LOST, "sent back, RMA 4711", True, True)
        ]
        assert LOST not in cli.present(*where)
        root.put("var/lib/hosttune/forgotten.json", "{")
        assert cli.present(*where)["host"] == "unknown"


def test_a_validation_that_measures_nothing_keeps_which_devices_there_were(cli: Cli, tmp_path: Path) -> None:
    """This machine: what is there is kept; a device that was there the last time is missed until it is forgotten."""
    file = tmp_path / "state/validations/devices.json"
    cli()
    first = json.loads(file.read_text())
    assert (first["results"], file.stat().st_mode & 0o777) == ([], 0o644)
    gone = "00fe:1d:1f.0"
    first["machine"]["devices"] = [*(first["machine"]["devices"] or ()), {"address": gone, "kind": "gpu"}]
    file.write_text(json.dumps(first))
    assert cli.present()[gone] in ("fail", "unknown")
    assert cli.present()[gone] in ("fail", "unknown"), "it stays expected"
    cli("--forget", gone, "--why", "sent back")
    assert gone not in cli.present()
    assert gone not in file.read_text()


def test_a_plan_in_force_expects_its_devices(cli: Cli, pristine: Path, tmp_path: Path) -> None:
    with copied(pristine, tmp_path / "root") as root:
        plan = str(tmp_path / "plan.json")
        shape = ("--gpu", LOST, "--vcpus", "2", "--memory", "2GiB", "--profile", "none")
        assert run(["plan", "--root", str(root.path), *shape, "--out", plan]) == 0
        assert run(["apply", "--root", str(root.path), plan, "--yes", "--no-guests"]) == 0
        cli("--list")
        assert set(cli.present("--root", str(root.path)).values()) == {"pass"}
        take_away(root, NOTHING_KNOWS)
        found = json.loads(cli("--root", str(root.path), "-o", "json")[1])["results"]
        told = next(row for row in found if (row["check"], row["subject"]) == ("device-present", LOST))
        assert (told["outcome"], "the plan in force" in told["actual"]) == ("fail", True)
        assert cli.present("--root", str(EXAMPLE), "--expect", plan)[LOST] == "pass"


@pytest.mark.parametrize(
    ("arguments", "code", "where"),
    [
        (("--forget", LOST), 2, "--why"),
        (("--why", "x"), 2, "--forget"),
        (("--forget", LOST, "--why", " "), 2, "--why"),
        (("--forget", LOST, "--why", "a\x1b[31m"), 2, "--why"),
        (("--forget", LOST, "--why", "x" * 501), 2, "--why"),
        (("--forget", "18:00", "--why", "x"), 2, "--forget"),
        (("--forget", LOST, "--forget", LOST[5:], "--why", "x"), 2, "--forget"),
        (("--root", str(EXAMPLE), "--forget", LOST, "--why", "x"), 3, str(EXAMPLE)),
        (("--root", str(EXAMPLE), "--expect", "nothing.json"), 2, "nothing.json"),
        (("--root", str(EXAMPLE), "--expect", str(EXAMPLE.parent.parent / "pyproject.toml")), 2, "pyproject.toml"),
    ],
)
def test_what_is_refused(cli: Cli, tmp_path: Path, arguments: tuple[str, ...], code: int, where: str) -> None:
    got, out, err = cli(*arguments)
    assert (got, out) == (code, ""), err
    assert where in next(line for line in err.splitlines() if line.startswith("where:"))
    assert not (tmp_path / "state").exists()


def test_a_host_document_keeps_no_record(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    path.write_text(without().host.to_json())
    assert cli("--host", str(path), "--forget", LOST, "--why", "x")[0] == 3


# --- links ---------------------------------------------------------------------------------------------------


def file_of(address: str, name: str) -> str:
    return next(path for path in whole()._files if path.endswith(f"/{address}/{name}"))


def test_a_result_names_only_what_was_read() -> None:
    assert result(without(), LOST, "pcie-link").source == (
        f"{TREE}/{LOST}/{{current,max}}_link_{{speed,width}}, {TREE}/{LOST}/config,"
        f" {TREE}/0000:40:00.0/{{current,max}}_link_{{speed,width}}, {TREE}/0000:40:00.0/config"
    )
    told = result(without(f"/{re.escape(LOST)}/(current|max)_link", "0000:40:00.0/config"), LOST, "pcie-link")
    assert told.source == f"{TREE}/{LOST}/config, {TREE}/0000:40:00.0/{{current,max}}_link_{{speed,width}}"
    told = result(without(f"/{re.escape(LOST)}/(max_link_width|config)"), LOST, "pcie-link")
    assert told.outcome == "unknown"
    assert f"{TREE}/{LOST}/{{current_link_speed,current_link_width,max_link_speed}}" in (told.source or "")
