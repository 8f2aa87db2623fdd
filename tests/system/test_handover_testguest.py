"""`hosttune handover --test-guest`: devices without a driver on the host, tested in a guest that may say anything."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from courses import passing, states, steps
from cutshort import KilledError
from faultkills import memory_folder
from lxml import etree
from sweeps import FULL, sample
from testguests import GPU, MEMORY, GuestHost, good, place, qcow2, root_of, tried
from xmledits import edited

from hosttune.cli import run
from hosttune.errors import BadInput, Refused
from hosttune.handover.gpumemory import searched
from hosttune.handover.running import Handed, lines_of
from hosttune.handover.targets import Asked
from hosttune.handover.testguest import TestGuest, read_image
from hosttune.handover.testguest.inside import answer_of
from hosttune.handover.testguest.listening import listen
from hosttune.handover.testguest.order import GuestOrder, OrderedDevice, Unanswered, read_answer
from hosttune.handover.testguest.planned import NAME
from hosttune.hypervisor.disk import Image
from hosttune.journal.register import record_devices
from hosttune.machine.system import STATE_INSIDE
from hosttune.model.handover import HandoverStep
from hosttune.model.quarantine import DeviceRecord
from hosttune.model.starts import STARTS
from hosttune.model.validation import Machine, MeasuredGpu
from hosttune.model.values import to_json

WHOLE = ["quarantined", "reset", "taken-back", "erased", "tested", "reset", "returned"]


@pytest.fixture
def root() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hosttune-guest-", dir=memory_folder()))
    yield root_of(folder / "root")
    shutil.rmtree(folder)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return qcow2(tmp_path / "image.qcow2")


def step(found: Handed, name: str) -> Any:
    """The first step of the GPU with a name."""
    (device,) = (one for one in found.statement.predicate.devices if one.address == GPU)
    return next(one for one in device.steps if one.step == name)


def guest_of(found: Handed, name: str) -> Mapping[str, Any]:
    evidence = step(found, name).evidence
    assert evidence is not None
    told = evidence["guest"]
    assert isinstance(told, Mapping)
    return told


# --- the whole way -----------------------------------------------------------------------------------------------


def test_a_gpu_without_a_driver_on_the_host_becomes_clean(root: Path, image: Path) -> None:
    system = GuestHost(root)
    found = tried(system, image)
    want = [(name, "not-needed" if name == "taken-back" else "done") for name in WHOLE]
    assert (steps(found), found.clean, states(root)) == (want, True, {GPU: "clean"})
    assert [order["task"] for order in system.orders] == ["search", "write", "search", "validate"]
    assert len({order["nonce"] for order in system.orders}) == 4
    assert len({order.get("pattern") for order in system.orders[:3]}) == 1
    (device,) = found.statement.predicate.devices
    assert (dict(device.firmware or {}), device.driver) == ({"vbios": "96.00.61"}, "vfio-pci")
    erased, tested = step(found, "erased"), step(found, "tested")
    assert erased.method == "searched for data; pattern written, reset, searched, in test guests"
    assert (erased.evidence["memory_bytes"], erased.evidence["reset"]) == (MEMORY, "bus reset")
    assert guest_of(found, "erased")["memory_bytes_by"] == "the driver in the guest"
    assert tested.evidence["results"]["pass"] == ("bench-device-copy", "ecc-errors", "pcie-link")  # not the guest's own
    look = json.loads((root / "var/lib/hosttune/gpus.json").read_text())[GPU]["look"]
    assert [(one["check"], one["subject"], one["outcome"]) for one in look["results"]] == [("ecc-errors", GPU, "pass")]
    assert guest_of(found, "tested")["image"] == str(image)
    assert found.statement.predicate.validation is not None
    assert system.left() == []
    starts = (root / "var/lib/hosttune" / STARTS).read_text()
    assert starts.count(f"{GPU} guest ") == 4, "the hook records the starts of test guests too"


def test_the_guest_is_the_planners_and_has_only_these_devices(root: Path, image: Path) -> None:
    system = GuestHost(root)
    tried(system, image)
    uuids = set()
    for xml in system.made:
        domain = etree.fromstring(xml)
        uuids.add(domain.findtext("uuid"))
        sources = [one.attrib for one in domain.iterfind("devices/hostdev/source/address")]
        assert [one["bus"] for one in sources] == ["0x41"]
        disk = domain.find("devices/disk[@device='disk']")
        assert disk is not None
        base = disk.find("backingStore")
        assert base is not None
        source, label = base.find("source"), base.find("source/seclabel")
        assert source is not None
        assert label is not None
        assert (source.get("file"), sorted(label.items())) == (str(image), [("model", "dac"), ("relabel", "no")])
        assert base.find("backingStore") is not None, "libvirt looks for no other file"
        assert domain.find("devices/interface") is None
    assert len(uuids) == 4


def test_dry_run_says_it_and_changes_nothing(root: Path, image: Path) -> None:
    system = GuestHost(root)
    wanted = TestGuest(image=Image(path=str(image), format="qcow2"))
    (line, *_) = lines_of(place(system), Asked(guest="vm"), wanted)
    assert f"leave it on vfio-pci for test guests of {image} (qcow2, efi)" in line
    assert "validate --guest --level 1 in one" in line
    assert (system.orders, system.left(), states(root)) == ([], [], {})


def test_without_the_option_it_is_unknown_as_before(root: Path, image: Path) -> None:
    found = tried(GuestHost(root), image, inside=False)
    assert (step(found, "tested").outcome, step(found, "taken-back").outcome) == ("unknown", "unknown")
    assert states(root) == {GPU: "quarantined"}


# --- what a guest can say ----------------------------------------------------------------------------------------


IN_GUEST = "0000:05:00.0"
ORDER = GuestOrder(
    nonce="ab", task="validate", devices=(OrderedDevice(address=IN_GUEST, ids="10de:2335"),), level=1
)  # fmt: skip


def said(change: Callable[[dict[str, Any]], None] = lambda answer: None, order: GuestOrder = ORDER) -> str:
    """The answer to an order, with a change."""
    answer = good(json.loads(to_json(order)))
    change(answer)
    return json.dumps(answer)


def ended(text: str, order: GuestOrder = ORDER) -> tuple[str, str, str]:
    """How an answer that does not count ended, the outcome of its step, and why."""
    with pytest.raises(Unanswered) as error:
        read_answer(text, order)
    return error.value.ended, error.value.outcome, error.value.what


def setting(name: str, value: Any, *, inside: str | None = "validation") -> Callable[[dict[str, Any]], None]:
    def change(answer: dict[str, Any]) -> None:
        (answer if inside is None else answer[inside])[name] = value

    return change


def device(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda answer: answer["validation"]["machine"]["gpus"][0].update(changes)


@pytest.mark.parametrize(
    ("text", "how", "outcome", "match"),
    [
        ("not json", "garbled", "unknown", "not a JSON document"),
        ("[" * 5000, "garbled", "unknown", ""),
        ("{}", "garbled", "unknown", "not a hosttune.test-answer/v1 document"),
        ('{"schema":"hosttune.test-answer/v1","nonce":"a","nonce":"b"}', "garbled", "unknown", "twice"),
        ("x" * (5 << 20), "garbled", "unknown", "larger than 4 MiB"),
        (said(setting("schema", "hosttune.test-answer/v2", inside=None)), "garbled", "unknown", "v2"),
        (said(setting("nonce", "ba", inside=None)), "nonce", "failed", "not the guest"),
        (said(setting("problem", "no torch\x1b[2J\nhere", inside=None)), "problem", "unknown", r"torch\?\[2J here"),
        (said(setting("validation", None, inside=None)), "garbled", "unknown", "no validation"),
        (said(setting("machine", None)), "garbled", "unknown", "does not say which devices"),
        (said(setting("level", 2)), "garbled", "unknown", "another level"),
        (said(setting("verdict", "fail")), "garbled", "unknown", "not that of its results"),
        (said(device(address="0000:99:00.0")), "devices", "failed", "claims 0000:99:00.0, which it was not given"),
        (said(device(id="10de:0001")), "devices", "failed", "is 10de:0001, not 10de:2335"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_answers_that_do_not_count(text: str, how: str, outcome: str, match: str) -> None:
    found = ended(text)
    assert found[:2] == (how, outcome)
    assert re.search(match, found[2]), found[2]
    assert found[2].isprintable()


def test_of_an_answer_only_what_is_about_its_devices_is_kept() -> None:
    def more(answer: dict[str, Any]) -> None:
        row = {"outcome": "pass", "actual": "x" * 999 + "\x1b", "source": "a\nb"}
        strange = (("pcie-link", f"{IN_GUEST}->0000:06:00.0"), ("Bad Name", IN_GUEST), ("pcie-link", f"1{IN_GUEST}"))
        answer["validation"]["results"] += [{**row, "check": check, "subject": one} for check, one in strange]
        answer["validation"]["results"].append({**row, "check": "nvme-health", "subject": IN_GUEST})
        answer["firmware"] = {IN_GUEST: {"vbios": "1\n2"}, "0000:06:00.0": {"vbios": "3"}}

    found = read_answer(said(more), ORDER)
    assert found.validation is not None
    assert [one.check for one in found.validation.results] == [
        "pcie-link",
        "bench-device-copy",
        "ecc-errors",
        "nvme-health",
    ]
    assert found.validation.machine is None
    last = found.validation.results[-1]
    assert (len(last.actual or ""), last.source) == (300, "a b")
    assert found.firmware == {IN_GUEST: {"vbios": "1 2"}}


@pytest.mark.parametrize("firmware", [None, {}, {IN_GUEST: {}}, {IN_GUEST: {str(n): "1" for n in range(9)}}])
def test_firmware_that_is_not_told_is_unknown(firmware: Any) -> None:
    assert read_answer(said(setting("firmware", firmware, inside=None)), ORDER).firmware == {IN_GUEST: None}


@pytest.mark.parametrize(
    ("memory", "size", "outcome"),
    [
        ({}, MEMORY, "done"),
        ({"found": 3}, MEMORY, "failed"),
        ({"nonzero": 4096}, MEMORY, "unknown"),
        ({"bytes": 1 << 30}, MEMORY, "unknown"),
        ({"bytes": "all"}, MEMORY, "unknown"),
        ({}, None, "unknown"),
        ({}, 0, "unknown"),
    ],
)
def test_what_a_guest_says_of_the_memory(memory: dict[str, Any], size: Any, outcome: str) -> None:
    tasks = []

    def asked(task: str, pattern: str) -> dict[str, Any]:
        tasks.append(task)
        order = GuestOrder(nonce="ab", task=task, devices=ORDER.devices, pattern=pattern)  # type: ignore[arg-type]

        def change(answer: dict[str, Any]) -> None:
            answer["memory"].update(memory if task == "search" else {})
            answer["memory_bytes"] = size

        found = read_answer(said(change, order), order)
        return {**(found.memory or {}), "memory_bytes": found.memory_bytes}

    step = searched(asked, None, lambda: HandoverStep(step="reset", outcome="done", method="bus reset"))
    assert step.outcome == outcome
    assert tasks == (["search", "write", "search"] if size else ["search"]), "without its size nothing is written"


def test_a_guest_that_says_nothing_and_one_that_lies(root: Path, image: Path) -> None:
    def says(order: dict[str, Any]) -> Any:
        return {"ended": "silent"} if order["task"] == "search" else good(order, nonce="0" * 32)

    system = GuestHost(root, says)
    found = tried(system, image)
    erased, tested = step(found, "erased"), step(found, "tested")
    assert (erased.outcome, guest_of(found, "erased")["ended"]) == ("unknown", "silent")
    assert "it said nothing within 2700 s" in erased.why
    assert (tested.outcome, guest_of(found, "tested")["ended"]) == ("failed", "nonce")
    assert (states(root), system.left(), found.clean) == ({GPU: "quarantined"}, [], False)


def test_a_failed_result_and_firmware_that_is_not_told(root: Path, image: Path) -> None:
    def says(order: dict[str, Any]) -> dict[str, Any]:
        answer = good(order)
        if order["task"] == "validate":
            answer["validation"]["results"][0]["outcome"] = answer["validation"]["verdict"] = "fail"
        return answer

    tested = step(tried(GuestHost(root, says), image), "tested")
    assert (tested.outcome, tested.why) == ("failed", "pcie-link is fail: x")
    found = tried(GuestHost(root, lambda order: {**good(order), "firmware": None}), image)
    assert (step(found, "tested").outcome, found.clean, states(root)) == ("done", False, {GPU: "quarantined"})


# --- what goes wrong on the host ---------------------------------------------------------------------------------


def test_a_guest_that_cannot_be_started(root: Path, image: Path) -> None:
    system = GuestHost(root)
    system.refuses = ("create",)
    found = tried(system, image)
    assert (step(found, "tested").outcome, guest_of(found, "tested")["ended"]) == ("unknown", "not-started")
    assert "it does not want to" in step(found, "tested").why
    assert (states(root), system.left()) == ({GPU: "quarantined"}, [])


def test_a_guest_that_does_not_end_keeps_its_device_quarantined(root: Path, image: Path) -> None:
    system = GuestHost(root)
    system.stays = True
    found = tried(system, image)
    assert (step(found, "erased").outcome, "libvirt still has it" in step(found, "erased").why) == ("failed", True)
    assert (states(root)[GPU], len(system.left()) > 1) == ("quarantined", True)
    again = GuestHost(root)
    assert tried(again, image).clean
    assert again.left() == []


def test_what_keeps_a_guest_from_being_made(root: Path, image: Path) -> None:
    """A virtual function that the tenant left; a device of the same IOMMU group that is not handed over."""
    system = GuestHost(root)
    folder = root / f"sys/devices/pci0000:40/{GPU}"
    other = folder.with_name("0000:41:00.1")
    shutil.copytree(folder, other, symlinks=True)
    (root / "sys/bus/pci/devices/0000:41:00.1").symlink_to(f"../../../devices/pci0000:40/{other.name}")
    found = tried(system, image)
    assert (step(found, "tested").outcome, guest_of(found, "tested")["ended"]) == ("unknown", "not-planned")
    assert "0000:41:00.1" in step(found, "tested").why
    shutil.rmtree(other)
    (root / "sys/bus/pci/devices/0000:41:00.1").unlink()
    mdev = root / "sys/bus/mdev/devices/c2177883-f1bb-47f0-914d-32a22e3a8804"
    mdev.parent.mkdir(parents=True)
    (folder / mdev.name).mkdir()
    mdev.symlink_to(f"../../../devices/pci0000:40/{GPU}/{mdev.name}")
    found = tried(system, image)
    assert (step(found, "erased").outcome, "mediated device" in step(found, "erased").why) == ("failed", True)
    assert (system.made, system.left()) == (system.made[:1], [])


def test_a_device_that_was_not_reset_is_given_to_no_guest(root: Path, image: Path) -> None:
    """The GPU's second function has no reset that clears it; it may not go along with the GPU either."""
    folder = root / f"sys/devices/pci0000:40/{GPU}"
    other = folder.with_name("0000:41:00.1")
    shutil.copytree(folder, other, symlinks=True)
    (root / f"sys/bus/pci/devices/{other.name}").symlink_to(f"../../../devices/pci0000:40/{other.name}")
    both = Asked(devices=(GPU, other.name))
    found = tried(GuestHost(root, several), image, both)
    assert {one.state for one in found.statement.predicate.devices} == {"clean"}
    (other / "reset_method").unlink()
    (other / "reset_method").write_text("pm\n")
    system = GuestHost(root, several)
    found = tried(system, image, both)
    assert (system.made, states(root)) == ([], dict.fromkeys((GPU, other.name), "quarantined"))
    assert "0000:41:00.1 is quarantined" in step(found, "tested").why


def several(order: dict[str, Any]) -> dict[str, Any]:
    """A good answer of a guest with one device or more."""
    answers = [good({**order, "devices": [one]}) for one in order["devices"]]
    for other in answers[1:]:
        answers[0]["firmware"].update(other["firmware"])
        for key, part in (("results", other["validation"]), ("gpus", other["validation"]["machine"])):
            place = answers[0]["validation"]["machine"] if key == "gpus" else answers[0]["validation"]
            place[key] += part[key]
    return answers[0]


def test_the_hook_lets_no_other_guest_have_the_device(root: Path, image: Path) -> None:
    """Only the name and the UUID of the note are let through, and only with its devices."""
    refused: list[str] = []

    def says(order: dict[str, Any]) -> dict[str, Any]:
        xml = system.made[-1]
        own = etree.fromstring(xml).findtext("uuid") or ""
        other = edited(xml, "devices/hostdev/source/address", {"bus": "0x42"})
        for name, text in ((NAME, edited(xml, "uuid", own[::-1])), ("vm", xml), (NAME, other)):
            script = (root / "etc/libvirt/hooks/qemu.d/hosttune").read_text()
            script = script.replace(STATE_INSIDE, f"{root}{STATE_INSIDE}")
            if text == other:
                record = DeviceRecord(address="0000:42:00.0", identity="i", state="quarantined", since="x", why="y")
                record_devices(f"{root}{STATE_INSIDE}", (record,))
            argv = ["sh", "-c", script, "hook", name, "prepare", "begin", "-"]
            refused.append(subprocess.run(argv, input=text, capture_output=True, text=True, check=False).stderr)
        return good(order)

    system = GuestHost(root, says)
    tried(system, image)
    assert [f"{GPU} is quarantined" in one for one in refused[:2]] == [True, True]
    assert "0000:42:00.0 is quarantined" in refused[2]


def test_a_note_that_cannot_be_read_stops_the_next_hand_over(root: Path, image: Path) -> None:
    note = root / "var/lib/hosttune/handover/test-guest"
    note.parent.mkdir(parents=True)
    note.write_text("vm ../../etc\n")
    with pytest.raises(Refused, match="note of a test guest"):
        tried(GuestHost(root), image)


def test_killed_anywhere_the_device_is_quarantined_and_the_next_hand_over_removes_the_guest(
    root: Path, image: Path
) -> None:
    whole, start, again = GuestHost(root), root.with_name("start"), root.with_name("again")
    shutil.copytree(root, start, symlinks=True)
    assert tried(whole, image).clean
    left = set()
    cuts = sample("test guest", range(1, whole.count), 2)
    for cut in (*cuts, *(() if FULL else (whole.listening[0],))):
        shutil.rmtree(again, ignore_errors=True)
        shutil.copytree(start, again, symlinks=True)
        system = GuestHost(again, cut=cut)
        with pytest.raises(KilledError):
            tried(system, image)
        assert states(again) in ({GPU: "quarantined"}, {}), cut
        listed = again / "var/lib/hosttune/handover/quarantined"
        assert states(again) == {} or listed.read_text().split() == [GPU, "end", "1"], cut
        after = GuestHost(again)
        left.add(len(after.left()))
        assert tried(after, image).clean, cut
        assert after.left() == [], cut
    assert max(left) == 3, "no cut left a guest that runs"


# --- the image ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"backing": 512}, "backing file"),
        ({"features": 1 << 2}, "in another file"),
        ({"features": 1 << 1}, "corrupt"),
        ({"features": 1 << 9}, "not known"),
        ({"crypt": 2}, "encrypted"),
        ({"version": 9}, "version 9"),
    ],
)
def test_a_qcow2_that_reaches_elsewhere_is_never_given_to_qemu(
    root: Path, tmp_path: Path, fields: dict[str, int], match: str
) -> None:
    system = GuestHost(root)
    with pytest.raises(BadInput, match=match):
        read_image(system, str(qcow2(tmp_path / "bad.qcow2", **fields)))
    assert system.count == 0, "no tool has seen it"


def test_which_files_are_images(root: Path, tmp_path: Path) -> None:
    system = GuestHost(root)
    raw = tmp_path / "disk"
    raw.write_bytes(bytes(510) + b"\x55\xaa" + bytes(512))
    assert read_image(system, str(raw)) == Image(path=str(raw), format="raw", virtual_bytes=1 << 30)
    link = tmp_path / "link"
    link.symlink_to(qcow2(tmp_path / "good.qcow2"))
    assert read_image(system, str(link)).path == str(tmp_path / "good.qcow2")
    raw.write_bytes(b"# Disk DescriptorFile\n" + bytes(1002))
    for path in (raw, tmp_path, tmp_path / "none", Path("/dev/null")):
        with pytest.raises(BadInput, match="not an image for a guest"):
            read_image(system, str(path))


def test_real_qemu_img_agrees(tmp_path: Path) -> None:
    """A qcow2 of the real tool, and one whose backing file it was given."""
    from hosttune.machine.live import LiveMachine

    if shutil.which("qemu-img") is None:
        pytest.skip("no qemu-img")
    image, above = tmp_path / "a.qcow2", tmp_path / "b.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", str(image), "1M"], check=True)
    assert read_image(LiveMachine(), str(image)).virtual_bytes == 1 << 20
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "-b", image, "-F", "qcow2", above], check=True)
    with pytest.raises(BadInput, match="backing file"):
        read_image(LiveMachine(), str(above))
    subprocess.run(["truncate", "-s", "100", image], check=True)
    with pytest.raises(BadInput, match="cut short"):
        read_image(LiveMachine(), str(image))


def test_a_bad_image_is_a_usage_error(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = qcow2(tmp_path / "bad.qcow2", backing=512)
    words = ["handover", "--root", str(root), "--guest", "vm", "--test-guest", str(bad), "--yes"]
    assert run(words) == 2
    assert "it has a backing file" in capsys.readouterr().err
    assert states(root) == {}


def test_a_fleet_names_the_image_on_the_host() -> None:
    path = (
        Path(__file__).parents[2]
        / "playbooks/collections/ansible_collections/hosttune/host/plugins/module_utils/hosttune_handover.py"
    )
    spec = importlib.util.spec_from_file_location("hosttune_handover", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    words = module.words(["vm"], [], True, 2, "/srv/image.qcow2")
    assert words == ["--guest", "vm", "--test-guest", "/srv/image.qcow2", "--to-vfio", "--level", "2"]


# --- both ends ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "ended"),
    [
        ([b'{"a": ', b"1}\n"], "line"),
        ([], "silent"),
        ([b"half"], "unfinished"),
        ([b"half", None], "ended-early"),
        ([None], "ended-early"),
        ([b"x" * 300], "too-much"),
        ([b"one\ntwo\n"], "too-much"),
        ([b"\xff\n"], "garbled"),
    ],
)
def test_listening_is_bounded(tmp_path: Path, said: list[bytes | None], ended: str) -> None:
    """What comes from a socket, of which None is the end, with 0.3 s and 200 bytes."""
    path = str(tmp_path / "s")
    over = threading.Event()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(1)

        def serve() -> None:
            guest, _ = server.accept()
            with guest:
                for one in said:
                    if one is None:
                        return
                    guest.sendall(one)
                over.wait(5)

        thread = threading.Thread(target=serve)
        thread.start()
        found = listen(path, 0.3, 200)
        over.set()
        thread.join()
    assert found["ended"] == ended
    assert found.get("text") == ('{"a": 1}' if ended == "line" else None)


def test_the_guest_answers_only_in_a_guest(root: Path) -> None:
    def validate(level: int) -> Any:
        raise AssertionError("it measures nothing on a host")

    order = GuestOrder(nonce="ab", task="write", devices=(OrderedDevice(address=GPU),), pattern="00" * 16)
    answer = answer_of(GuestHost(root), order, validate)
    assert (answer.nonce, answer.problem) == ("ab", "this machine is not a guest, or that is unknown")
    assert answer.to_line().count("\n") == 1
    assert json.loads(answer.to_line())["schema"] == "hosttune.test-answer/v1"


def test_what_the_guest_answers(root: Path) -> None:
    """The same root, as a guest: its validation and firmware, and what the program that searches says."""
    (root / "proc/cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu hypervisor\n")

    class Searching(GuestHost):
        """A guest in which the program answers."""

        def change(self, argv: tuple[str, ...], *, timeout: float = 60.0, stdin: str | None = None) -> str:
            assert argv[3:] == ("hosttune.gpu.nvidia_memory", "write", GPU, "00" * 16)
            return '{"bytes": 5, "total": 6, "seen": true}'

    order = GuestOrder(nonce="ab", task="write", devices=(OrderedDevice(address=GPU),), pattern="00" * 16)
    found = answer_of(Searching(root), order, lambda level: passing(level))
    assert (found.problem, dict(found.memory or {}), found.memory_bytes) == (
        None, {"bytes": 5, "total": 6, "seen": True}, None,
    )  # fmt: skip
    line = found.to_line()
    heard = read_answer(line, GuestOrder.from_json(to_json(order)))
    assert (line.count("\n"), heard.memory) == (1, found.memory), "as the hand-over hears it"
    asked = msgspec.structs.replace(order, task="validate", level=2)
    found = answer_of(Searching(root), asked, lambda level: passing(level))
    assert (found.problem, found.firmware, found.validation) == (None, {GPU: None}, passing(2))
    machine = Machine(gpus=(MeasuredGpu(address=GPU, id="10de:2330"),))
    told = msgspec.structs.replace(passing(2), machine=machine)
    versions = msgspec.structs.replace(found, validation=told, firmware={GPU: {"vbios": "96.00\n\udc80"}})
    heard = read_answer(versions.to_line(), GuestOrder.from_json(to_json(asked)))
    assert heard.validation is not None
    assert (heard.validation.verdict, dict((heard.firmware or {})[GPU] or {})) == ("pass", {"vbios": "96.00 \ufffd"})
    refused = msgspec.structs.replace(order, devices=(OrderedDevice(address="0000:99:00.0"),))
    assert "is no GPU" in str(answer_of(Searching(root), refused, lambda level: passing(level)).problem)
