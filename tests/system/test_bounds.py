"""How much an input may hold: what is above a bound of `hosttune.model.limits` is refused with one clear error.

The time and memory that inputs below the bounds take are measured by `make bench`.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from domain_faults import criticise

import hosttune
from hosttune.cli import run
from hosttune.discovery import discover
from hosttune.domain.reader import read_domain
from hosttune.errors import BadInput
from hosttune.handover.signing import signature_reasons
from hosttune.machine.capture import Archive, Capture
from hosttune.machine.opening import open_root
from hosttune.model.jsontext import plain_json
from hosttune.model.limits import LIMITS, limit
from hosttune.model.yamltext import load_yaml

ROOT = Path(__file__).resolve().parents[2]


def test_the_documentation_has_the_limits_that_people_meet() -> None:
    text = (ROOT / "docs/limits.md").read_text()
    listed = dict(re.findall(r"^\| ([^|-]+) \| ([^|]+) \|$", text, re.MULTILINE)[1:])
    assert listed.items() <= {name: bound.text for name, bound in LIMITS.items()}.items()
    assert {"intent", "document", "domain XML", "log", "capture, unpacked", "guests", "vcpus", "gpus"} <= set(listed)


# --- intents -------------------------------------------------------------------------------------------------

GUEST = {"name": "a", "gpus": 1, "vcpus": 2, "memory": "1GiB"}
CELL = {"vcpus": 1, "memory": "1GiB"}
# Key: (the value that is too much, what is said of it, the path where).
TOO_MUCH: Mapping[str, tuple[Any, str, str]] = {
    "numa": (1_000_000_000, "1,000,000,000 cells, more than 128", "guests[0].numa"),
    "numa list": ([CELL] * 129, "129 cells, more than 128", "guests[0].numa"),
    "numa cell": ([{**CELL, "vcpus": 4097}], "4,097 vcpus, more than 4,096", "guests[0].numa[0].vcpus"),
    "numa cells together": ([{**CELL, "vcpus": 4000}] * 2, "8,000 vcpus, more than 4,096", "guests[0].numa"),
    "vcpus": (4097, "4,097 vcpus, more than 4,096", "guests[0].vcpus"),
    "gpus": (65, "65 gpus, more than 64", "guests[0].gpus"),
    "gpus list": ([f"0000:{n:02x}:00.0" for n in range(65)], "65 gpus, more than 64", "guests[0].gpus"),
    "gpus count": ({"count": 10**6}, "1,000,000 gpus, more than 64", "guests[0].gpus"),
    "gpus model": ({"count": 1, "model": "x" * 256}, "a name of more than 255 bytes", "guests[0].gpus.model"),
    "nics": (257, "257 nics, more than 256", "guests[0].nics"),
    "nics count": ({"count": 257}, "257 nics, more than 256", "guests[0].nics"),
    "nvme": (257, "257 nvme, more than 256", "guests[0].nvme"),
    "mig": ({"profile": "1g.10gb", "count": 449}, "449 MIG instances, more than 448", "guests[0].mig.count"),
    "mig profile": ({"profile": "1" * 256}, "a name of more than 255 bytes", "guests[0].mig.profile"),
    "networks": ([{"network": "n"}] * 65, "65 networks, more than 64", "guests[0].networks"),
    "networks name": ([{"bridge": "b" * 256}], "a name of more than 255 bytes", "guests[0].networks[0]"),
    "sysctl": ({f"vm.a{n}": 1 for n in range(257)}, "257 sysctls, more than 256", "guests[0].sysctl"),
    "disk": ("/" + "a" * 4095, "a path of more than 4,095 bytes", "guests[0].disk"),
    "disks": ([f"/{n}" for n in range(27)], "27 disks, more than 26", "guests[0].disks"),
    "disks path": (["/a", "/" + "a" * 4095], "a path of more than 4,095 bytes", "guests[0].disks[1]"),
    "boot": ({"kernel": "/k" * 2048}, "a path of more than 4,095 bytes", "guests[0].boot.kernel"),
    "boot line": (
        {"kernel": "/k", "cmdline": "x" * 2048},
        "a kernel command line of more than",
        "guests[0].boot.cmdline",
    ),
    "name": ("a" * 65, "is not a guest name", "guests[0].name"),
}


@pytest.mark.parametrize("case", TOO_MUCH)
def test_a_guest_that_asks_for_too_much(case: str) -> None:
    value, what, where = TOO_MUCH[case]
    guest = {**GUEST, case.partition(" ")[0]: value}
    if case.startswith("numa "):
        guest |= {"vcpus": "auto", "memory": "auto"}
    for read in (hosttune.Intent.from_json, hosttune.Intent.from_yaml):
        with pytest.raises(BadInput) as caught:
            read(json.dumps({"version": 1, "guests": [guest]}))
        assert what in caught.value.what
        assert caught.value.where == f"intent: {where}"
        assert caught.value.hint


def test_an_intent_of_too_many_things() -> None:
    for document, what, where in (
        ({"guests": [{**GUEST, "name": f"g{n}"} for n in range(257)]}, "257 guests, more than 256", "guests"),
        ({"settings": {f"s{n}": 1 for n in range(257)}}, "257 settings, more than 256", "settings"),
        (
            {"reserve": {"cores_per_node": 8193}},
            "8,193 cores kept of a node, more than 8,192",
            "reserve.cores_per_node",
        ),
    ):
        with pytest.raises(BadInput) as caught:
            hosttune.Intent.from_json(json.dumps({"version": 1, **document}))
        assert (caught.value.what, caught.value.where) == (what, f"intent: {where}")


def test_what_a_large_host_can_really_have_is_no_excess() -> None:
    guests = [{**GUEST, "name": f"g{n}", "vcpus": 4096, "gpus": 64, "nics": 256, "numa": 128} for n in range(256)]
    assert len(hosttune.Intent.from_yaml(json.dumps({"version": 1, "guests": guests})).guests) == 256


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("#" * (limit("intent") + 1), "larger than 256 KiB"),
        ("version: 1\n" + "".join(f"{n}: 1\n" for n in range(20_000)), "key 0 is not a text"),
        ("version: 1\n" + "".join(f"k{n}: 1\n" for n in range(20_000)), "unknown key 'k0'"),
        ("version: 1\nx: [" + "1," * 60_000 + "]", "more than 50,000 keys and values"),
        ("version: 1\nx: " + "[" * 65, "nested deeper than 64"),
        ("version: 1\n--- \nversion: 1", "a second document"),
        ("version: !!python/object:os.system 1", "is not accepted"),
    ],
)
def test_a_yaml_text_without_measure(text: str, what: str) -> None:
    with pytest.raises(BadInput, match=re.escape(what)):
        hosttune.Intent.from_yaml(text)


def test_yaml_of_both_parsers_is_the_same() -> None:
    """PyYAML may lack libyaml: then its own parser reads, slower and no other."""
    text = "version: 1\nsettings: {aspm: off}\nguests:\n  - {name: a, gpus: [0000:41:00.0], memory: 010, vcpus: 2}\n"
    fast = load_yaml(text, "x")
    assert load_yaml(text, "x", fast=False) == fast
    assert fast["guests"][0] == {"name": "a", "gpus": ["0000:41:00.0"], "memory": 10, "vcpus": 2}
    for wrong in ("a: &x [*x]", "{", "a: 1\na: 2", "a: [1", b"a: \xff", "a: \0"):
        for parser in (True, False):
            with pytest.raises(BadInput, match="not a YAML document"):
                load_yaml(wrong, "x", fast=parser)


# --- documents -----------------------------------------------------------------------------------------------


def test_a_json_document_of_too_many_values_is_refused_before_it_is_read() -> None:
    with pytest.raises(BadInput, match=r"more than 1,000,000 values"):
        plain_json("[" + "[]," * 600_000 + "[]]", where="x")
    for depth in (65, 900, 100_000):
        with pytest.raises(BadInput, match="nested deeper than 64"):
            plain_json("[" * depth + "]" * depth, where="x")
    with pytest.raises(BadInput, match="nested deeper than 64"):
        hosttune.Intent.from_json('{"version": 1, "settings": {"a": ' + "[" * 700 + "]" * 700 + "}}")
    with pytest.raises(BadInput, match="'profile' is there twice"):
        hosttune.Intent.from_json('{"version": 1, "profile": "none", "profile": "host"}')
    with pytest.raises(BadInput, match="'hypervisor' is there twice"):
        hosttune.Host.from_json('{"schema": "hosttune.host/v1", "hypervisor": false, "hypervisor": true}')
    with pytest.raises(BadInput, match=r"larger than 16 MiB"):
        hosttune.Host.from_json(b" " * (limit("document") + 1))


@pytest.mark.parametrize(
    ("field", "row", "name"),
    [
        ("cpus", lambda n: {"id": n}, "CPUs"),
        ("numa_nodes", lambda n: {"id": n, "cpus": ""}, "NUMA nodes"),
        ("pci", lambda n: {"address": f"{n >> 13:04x}:{n >> 5 & 255:02x}:{n & 31:02x}.0"}, "PCI functions"),
        ("gpus", lambda n: {"address": f"{n >> 13:04x}:{n >> 5 & 255:02x}:{n & 31:02x}.0"}, "GPUs of a host"),
        ("guests", lambda n: {"name": f"g{n}"}, "guests of a host"),
    ],
)
def test_a_host_document_of_more_than_a_machine_has(field: str, row: Callable[[int], object], name: str) -> None:
    rows = [row(n) for n in range(limit(name) + 1)]
    with pytest.raises(BadInput, match=f"more than {limit(name):,}") as caught:
        hosttune.Host.from_json(json.dumps({"schema": "hosttune.host/v1", field: rows}))
    assert caught.value.where == f"host document: $.{field}"


def test_a_domain_xml_without_measure() -> None:
    for xml, what in (
        ("<domain>" + "<a/>" * 50_001 + "</domain>", "elements of a domain XML, more than 50,000"),
        ("<domain>" + "<a cpuset='0-16000'/>" * 100 + "</domain>", "CPUs named in a domain XML, more than"),
        ("<domain>" + " " * limit("domain XML") + "</domain>", "larger than 4 MiB"),
    ):
        with pytest.raises(BadInput, match=what):
            read_domain(xml)


def test_a_guest_that_is_given_one_device_again_and_again() -> None:
    source = "<source><address domain='0' bus='0x18' slot='0' function='0'/></source>"
    device = f"<hostdev mode='subsystem' type='pci'>{source}</hostdev>"
    xml = f"<domain type='kvm'><name>a</name><os><type>hvm</type></os><devices>{device * 12_000}</devices></domain>"
    host = discover(open_root(str(ROOT / "examples/hgx-h200-8.tar.xz")))
    told = [finding for finding in criticise(host, xml, where="a.xml") if "0000:18:00.0" in finding.text]
    assert 0 < len(told) < 10


# --- captures ------------------------------------------------------------------------------------------------


def packed(path: Path, files: Mapping[str, bytes]) -> Path:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    path.write_bytes(gzip.compress(target.getvalue(), 1))
    return path


@pytest.mark.parametrize(
    ("name", "size", "bound"),
    [
        ("proc/cmdline", 1 << 24, "64 KiB"),
        ("sys/class/dmi/id/sys_vendor", (256 << 10) + 1, "256 KiB"),
        ("proc/modules", (4 << 20) + 1, "4 MiB"),
        (".hosttune/commands/nvidia-smi-q-x", (4 << 20) + 1, "4 MiB"),
        ("proc/cpuinfo", (16 << 20) + 1, "16 MiB"),
        ("proc/interrupts", (32 << 20) + 1, "32 MiB"),
        ("usr/share/misc/pci.ids", (8 << 20) + 1, "8 MiB"),
    ],
)
def test_a_file_larger_than_its_kind_ever_is(tmp_path: Path, name: str, size: int, bound: str) -> None:
    """A kernel command line of 16 MiB in a tar of 16 KiB."""
    path = packed(tmp_path / "x.tar.gz", {"sys/x": b"", name: b"a " * (size // 2 + 1)})
    unpacked = tmp_path / "root"
    with tarfile.open(path) as tar:
        tar.extractall(unpacked, filter="data")
    for root in (path, unpacked):
        with pytest.raises(BadInput, match=f"larger than {bound}") as caught:
            open_root(str(root)).read(f"/{name}")
        assert caught.value.where in (f"{root}: /{name}", f"{root}: {name}")  # refused unpacked, or while unpacking


def test_it_is_one_error_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = packed(tmp_path / "x.tar.gz", {"sys/x": b"", "proc/cmdline": b"a " * (1 << 20)})
    assert run(["discover", "--root", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0] == "error: larger than 64 KiB"


def test_floors_larger_than_any_fleets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "floors.toml"
    path.write_bytes(b"# \n" * (1 << 17))
    small = ("--root", str(packed(tmp_path / "x.tar.gz", {"sys/x": b""})))
    assert run(["validate", *small, "--level", "1", "--fleet", str(path)]) in (2, 3)
    assert run(["validate", "--level", "1", "--fleet", str(path)]) == 2
    assert "error: larger than 256 KiB" in capsys.readouterr().err


@pytest.mark.parametrize("data", [b"\xff\xfe", b"# \xe9\n", b"a = '\xed\xa0\x80'\n"])
def test_floors_that_are_no_utf8(tmp_path: Path, data: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "floors.toml"
    path.write_bytes(data)
    assert run(["validate", "--level", "1", "--fleet", str(path)]) == 2
    assert capsys.readouterr().err.startswith("error: not valid UTF-8 at byte")


def host_of(files: Mapping[str, bytes], links: Mapping[str, str] | None = None, dirs: tuple[str, ...] = ()) -> Archive:
    return Archive({"/sys/x": b"", **files}, links or {}, "capture", dirs)


def test_a_capture_of_more_than_a_machine_has() -> None:
    places = [f"{n >> 13:04x}:{n >> 5 & 255:02x}:{n & 31:02x}.0" for n in range(limit("PCI functions") + 1)]
    cases = {
        "CPUs": tuple(f"/sys/devices/system/cpu/cpu{n}" for n in range(limit("CPUs") + 1)),
        "NUMA nodes": tuple(f"/sys/devices/system/node/node{n}" for n in range(limit("NUMA nodes") + 1)),
        "PCI functions": tuple(f"/sys/bus/pci/devices/{place}" for place in places),
    }
    for name, dirs in cases.items():
        with pytest.raises(BadInput, match=f"{name}, more than {limit(name):,}"):
            discover(host_of({}, dirs=dirs))


def test_lists_that_name_every_cpu_again_and_again() -> None:
    files = {"/sys/devices/system/cpu/online": b"0-2047"}
    for n in range(2048):
        text = f"0-{n},{n + 1}-2047".encode()
        files[f"/sys/devices/system/cpu/cpu{n}/topology/core_cpus_list"] = text
    with pytest.raises(BadInput, match=r"CPUs named in all lists, more than 2,000,000"):
        discover(host_of(files))


def test_cpus_that_all_name_each_other() -> None:
    """As many as there may be, in one list; one of them denies it."""
    files = {"/sys/devices/system/cpu/online": b"0-8191"}
    for n in range(8192):
        text = b"0-8191" if n else b"0"
        files[f"/sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list"] = text
    assert {cpu.core for cpu in discover(host_of(files)).cpus} == {0}


def test_folders_without_end(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    for n in range(51):
        (tmp_path / f"sys/{n}").touch()
    for look in (Capture(str(tmp_path), most_names=50).list, Capture(str(tmp_path), most_names=50).folder):
        with pytest.raises(BadInput, match="holds more than 50 names"):
            look("/sys")
    many = tuple(f"/sys/{n}" for n in range(limit("names in a folder") + 1))
    with pytest.raises(BadInput, match="holds more than 65,536 names"):
        host_of({}, dirs=many).list("/sys")


@pytest.mark.parametrize("look", ["list", "read", "folder"])
def test_a_capture_that_is_read_without_end(tmp_path: Path, look: str) -> None:
    (tmp_path / "sys").mkdir()
    (tmp_path / "sys/a").write_text("1")
    system = Capture(str(tmp_path), most_accesses=100)

    def for_ever() -> None:
        while True:
            if look == "read":
                system.read("/sys/a")
            else:
                getattr(system, look)("/sys")

    with pytest.raises(BadInput, match="more names and files to read than any host has"):
        for_ever()


def test_guests_of_a_capture_have_a_bound_together() -> None:
    xml = b"<domain>" + b"x" * (limit("domain XML") - 40) + b"</domain>"
    files = {f"/.hosttune/commands/virsh-dumpxml-g{n}": xml for n in range(5)}
    with pytest.raises(BadInput, match="larger than 16 MiB") as caught:
        discover(host_of(files))
    assert caught.value.where == "capture: guests"


def test_a_definition_of_very_many_disks_is_judged_in_bounded_time(tmp_path: Path) -> None:
    """Each of their findings names a line, which is looked up among all of them."""
    disks = "\n".join(
        f"<disk type='file'><source file='/x{n}'/><target dev='sd{n}' bus='virtio'/>"
        f"<address type='pci' domain='0' bus='{n // 32 % 256}' slot='{n % 32}' function='0'/></disk>"
        for n in range(9_000)
    )
    xml = f"<domain type='kvm'><name>a</name><memory>1024</memory><devices>{disks}</devices></domain>"
    began = time.process_time()
    found = criticise(hosttune.discover("@example"), xml, where="vm.xml")
    assert time.process_time() - began < 20
    assert any(one.rule == "address-twice" and one.line > 8_000 for one in found)


def test_signatures_and_lists_of_keys_that_ssh_keygen_would_read_for_minutes(tmp_path: Path) -> None:
    signers, signature, data = tmp_path / "signers", tmp_path / "statement.json.sig", b"{}"
    signers.write_text("a ssh-ed25519 AAAA\n")
    signature.write_text("-----BEGIN SSH SIGNATURE-----\n" + "QUFB\n" * 4_000_000)
    (reason,) = signature_reasons(data, str(signature), str(signers), "a")
    assert (reason.reason, "larger than 64 KiB" in reason.text) == ("signature", True)
    revoked = tmp_path / "revoked"
    revoked.write_text("# nothing\n" * 1_500_000)
    with pytest.raises(BadInput) as caught:
        signature_reasons(data, str(signature), str(signers), "a", (str(revoked),))
    assert caught.value.what == "larger than 1 MiB"
