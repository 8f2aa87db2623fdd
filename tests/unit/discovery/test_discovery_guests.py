"""Guests that libvirt knows: from its test driver, from records, from plain outputs of virsh; and others."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest
from xmledits import edited, with_edits

from hosttune.discovery.guests import read_guests
from hosttune.discovery.libvirtd import (
    URI_VARIABLE,
    _ask_virsh,
    ask_client_version,
    ask_libvirt,
    ask_qemu_version,
    decode_version,
    read_versions,
)
from hosttune.discovery.scrub import strip_facts, strip_xml
from hosttune.errors import BadInput, CommandFailed
from hosttune.machine.capture import Archive
from hosttune.machine.live import LiveMachine
from hosttune.machine.reader import Reader
from hosttune.machine.system import COMMANDS
from hosttune.model.host import DomainCapabilities, GuestMemory, RunningGuest, VcpuPin, Virtualization
from hosttune.model.hostfields import LIST_UNREAD
from hosttune.model.values import to_json

UUID = "4c4c4544-0043-5910-8052-b4c04f4d3732"
PINNED = f"""<domain type='test'>
  <name>tenant a</name><uuid>{UUID}</uuid>
  <memory unit='GiB'>4</memory>
  <memoryBacking><hugepages><page size='1' unit='GiB'/></hugepages></memoryBacking>
  <vcpu cpuset='0-3'>4</vcpu><iothreads>2</iothreads>
  <cputune>
    <vcpupin vcpu='0' cpuset='2'/><vcpupin vcpu='1' cpuset='3,^3,5'/>
    <emulatorpin cpuset='0-1'/><iothreadpin iothread='1' cpuset='1'/>
  </cputune>
  <numatune><memory mode='strict' nodeset='1'/></numatune>
  <os><type arch='x86_64'>hvm</type></os>
  <devices>
    <hostdev mode='subsystem' type='pci' managed='no'>
      <source><address domain='0x0000' bus='0x41' slot='0x00' function='0x0'/></source>
    </hostdev>
    <interface type='hostdev'><mac address='52:54:00:00:00:02'/>
      <source><address type='pci' domain='0' bus='0x1a' slot='0' function='1'/></source>
    </interface>
    <hostdev mode='subsystem' type='usb'><source><vendor id='0x1'/><product id='0x2'/></source></hostdev>
    <interface type='bridge'><mac address='52:54:00:00:00:01'/><source bridge='secret0'/></interface>
  </devices>
</domain>"""
PLAIN = f"""<domain type='test'><name>plain</name><uuid>{UUID.replace("4c", "5d")}</uuid>
<memory unit='MiB'>512</memory><vcpu>1</vcpu><os><type>hvm</type></os></domain>"""
CELLS = """<domain type='kvm'><name>cells</name><memory unit='GiB'>12</memory>
<memoryBacking><hugepages><page size='1' unit='GiB' nodeset='1'/><page size='2' unit='MiB'/></hugepages></memoryBacking>
<vcpu>4</vcpu><os><type arch='x86_64'>hvm</type></os>
<numatune><memory mode='strict' nodeset='0-1'/><memnode cellid='1' mode='strict' nodeset='3'/></numatune>
<cpu><numa><cell id='0' cpus='0-1' memory='4' unit='GiB'/><cell id='1' cpus='2-3' memory='8' unit='GiB'/></numa></cpu>
</domain>"""

TENANT = RunningGuest(
    name="tenant a",
    state="running",
    vcpus=4,
    vcpu_pins=tuple(VcpuPin(vcpu=i, cpus=cpus) for i, cpus in enumerate(("2", "5", "0-3", "0-3"))),
    emulator_cpus="0-1",
    iothread_cpus=("1",),
    memory_bytes=4 << 30,
    memory=(GuestMemory(node=1, memory_bytes=4 << 30, page_bytes=1 << 30),),
    page_bytes=1 << 30,
    devices=("0000:1a:00.1", "0000:41:00.0"),
    uuid=UUID,
)


def recorded(commands: dict[str, str], files: dict[str, str] | None = None) -> Reader:
    texts = {COMMANDS + name: text for name, text in commands.items()} | (files or {})
    return Reader(Archive({path: text.encode() for path, text in texts.items()}, {}, "test"))


def facts_of(**fields: object) -> dict[str, str]:
    return {"libvirt.json": json.dumps({"uri": "qemu:///system", **fields})}


def one(name: str, xml: str | None, state: str = "running") -> dict[str, object]:
    return {"name": name, "state": state, "xml": xml, "inactive_xml": None}


# --- what a guest holds --------------------------------------------------------------------------------------


def test_a_guest_with_its_pins_memory_and_devices() -> None:
    reader = recorded(facts_of(libvirt_version="9.0.0", qemu_version="7.2.22", domains=[one("tenant a", PINNED)]))
    guests, stack = read_guests(reader)
    assert guests == (TENANT,)
    assert stack == Virtualization(libvirt_version="9.0.0", qemu_version="7.2.22", uri="qemu:///system")
    assert reader.problems == []


def test_a_guest_without_pins_floats() -> None:
    guests, _ = read_guests(recorded(facts_of(domains=[one("plain", PLAIN, "shut off")])))
    assert guests is not None
    assert guests[0].vcpu_pins == ()
    assert guests[0].emulator_cpus is None
    assert guests[0].state == "shut off"
    assert guests[0].memory == (GuestMemory(memory_bytes=512 << 20),)
    assert guests[0].devices == ()


def test_each_cell_of_a_guest_has_its_node_and_pages() -> None:
    guests, _ = read_guests(recorded(facts_of(domains=[one("cells", CELLS)])))
    assert guests is not None
    assert guests[0].memory == (
        GuestMemory(node=None, memory_bytes=4 << 30, page_bytes=2 << 20),  # of two nodes: on neither for certain
        GuestMemory(node=3, memory_bytes=8 << 30, page_bytes=1 << 30),
    )
    assert guests[0].page_bytes is None


def test_the_drive_of_an_nvme_disk_is_a_device_of_the_guest_also_in_a_capture() -> None:
    """QEMU unbinds it from the host's driver, as a passed device (formatdomain, disk type nvme)."""
    source = "<address domain='0x0000' bus='0x01' slot='0x00' function='0x0'/>"
    secret = "<encryption format='luks'><secret type='passphrase' uuid='secret'/></encryption>"
    disk = f"<disk type='nvme'><source type='pci'>{source}{secret}</source><serial>secret</serial></disk>"
    xml = with_edits(PINNED, ("devices", disk), ("devices", "<disk type='file'><source file='/secret'/></disk>"))
    for kept in (xml, strip_xml(xml, str)):
        guests, _ = read_guests(recorded(facts_of(domains=[one("tenant a", kept)])))
        assert guests is not None
        assert "0000:01:00.0" in guests[0].devices
    assert "secret" not in (strip_xml(xml, str) or "secret")


def test_pages_of_the_default_size_are_the_hosts() -> None:
    xml = edited(PINNED, "memoryBacking/hugepages/page", None)
    for meminfo, size in (("MemTotal: 1 kB\nHugepagesize:    2048 kB\n", 2 << 20), ("MemTotal: 1 kB\n", None)):
        guests, _ = read_guests(recorded(facts_of(domains=[one("tenant a", xml)]), {"/proc/meminfo": meminfo}))
        assert guests is not None
        assert guests[0].page_bytes == size


@pytest.mark.parametrize(
    ("xml", "where"),
    [
        (None, "tenant a"),
        ("<domain", "guest tenant a"),
        ("<network><name>x</name></network>", "guest tenant a"),
        (edited(PINNED, "cputune/vcpupin", {"cpuset": "two"}), "guest tenant a: line 7, <vcpupin>"),
        ("<!DOCTYPE domain [<!ENTITY x 'y'>]>" + PINNED, "guest tenant a"),
    ],
)
def test_a_definition_that_cannot_be_read_is_a_problem_and_the_guest_stays(xml: str | None, where: str) -> None:
    reader = recorded(facts_of(domains=[one("tenant a", xml), one("plain", PLAIN)]))
    guests, _ = read_guests(reader)
    assert guests is not None
    assert guests[0] == RunningGuest(name="tenant a", state="running")
    assert guests[1].vcpus == 1
    assert [(problem.what, problem.where) for problem in reader.problems] == [("no definition", where)]


# --- libvirt that cannot be asked ----------------------------------------------------------------------------


def test_unknown_is_not_none() -> None:
    assert read_guests(recorded({})) == (None, Virtualization())
    assert read_guests(recorded(facts_of(domains=[])))[0] == ()


def test_a_libvirt_that_does_not_answer_leaves_the_guests_unknown() -> None:
    reader = recorded(facts_of(error="Failed to connect socket"))
    guests, stack = read_guests(reader)
    assert guests is None
    assert stack.uri == "qemu:///system"
    assert [(p.what, p.where) for p in reader.problems] == [("libvirt cannot be asked", "qemu:///system")]
    assert "Failed to connect socket" in reader.problems[0].why


QEMU_DEBIAN = """QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)
Copyright (c) 2003-2022 Fabrice Bellard and the QEMU Project developers
"""
QEMU_RHEL = "QEMU emulator version 9.1.0 (qemu-kvm-9.1.0-29.el9_7.3)\nCopyright (c) 2003-2024 Fabrice Bellard\n"


@pytest.mark.parametrize(
    ("answers", "versions"),
    [
        ({"virsh-client-version": "9.0.0\n", "qemu-version": QEMU_DEBIAN}, ("9.0.0", "7.2.22")),
        ({"virsh-client-version": "11.3.0", "qemu-version": QEMU_RHEL}, ("11.3.0", "9.1.0")),
        ({"qemu-version": "QEMU emulator version 10.0.50 (v10.0.0-1-gabc)\n"}, (None, "10.0.50")),
        ({"virsh-client-version": "error: bad\n", "qemu-version": "QEMU emulator version x"}, (None, None)),
        ({"virsh-client-version": "", "qemu-version": ""}, (None, None)),
        ({}, (None, None)),
    ],
)
def test_without_an_answer_of_libvirt_the_versions_are_those_of_the_programs(
    answers: dict[str, str], versions: tuple[str | None, str | None]
) -> None:
    reader = recorded(facts_of(error="Failed to connect socket") | answers)
    guests, stack = read_guests(reader)
    assert guests is None
    assert (stack.libvirt_version, stack.qemu_version) == versions
    assert ("of the installed programs" in reader.problems[0].why) is (versions != (None, None))
    _, bare = read_guests(recorded(answers))
    assert (bare.libvirt_version, bare.qemu_version, bare.uri) == (*versions, None)


def test_a_libvirt_that_answers_is_not_doubled_by_the_programs() -> None:
    """What the daemon says runs; what is installed may have been upgraded since."""
    programs = {"virsh-client-version": "9.0.0\n", "qemu-version": QEMU_DEBIAN}
    _, stack = read_guests(recorded(facts_of(domains=[], libvirt_version="8.0.0") | programs))
    assert (stack.libvirt_version, stack.qemu_version) == ("8.0.0", None)


class Programs(LiveMachine):
    """This machine with other programs: each answers with text, or fails as Machine.run says it does."""

    def __init__(self, **answers: str | CommandFailed) -> None:
        self.answers = answers
        self.asked: list[tuple[str, ...]] = []

    def run(self, argv: tuple[str, ...], *, timeout: float = 20.0) -> str:
        self.asked.append(argv)
        assert timeout <= 5
        answer = self.answers.get(argv[0].rpartition("/")[2].replace("-", "_"), CommandFailed(argv, "not installed"))
        if isinstance(answer, CommandFailed):
            raise answer
        return answer


class Virsh(LiveMachine):
    """This machine with a virsh that knows one guest, in a state with its reason."""

    def __init__(self, state: str) -> None:
        self.answers = {"list": "7\n", "domname": "tenant a\n", "dumpxml": PINNED, "version": VERSION,
                        "domcapabilities": "<domainCapabilities/>", "domstate": f"{state}\n"}  # fmt: skip

    def run(self, argv: tuple[str, ...], *, timeout: float = 20.0) -> str:
        assert argv[0] == "virsh"
        command = next(word for word in argv if word in self.answers)
        assert command != "domstate" or "--reason" in argv
        return self.answers[command]


@pytest.mark.parametrize(
    ("said", "state", "starting"),
    [
        ("running (booted)", "running", False),
        ("running", "running", False),
        ("paused (starting up)", "paused", True),
        ("paused (user)", "paused", False),
        ("shut off (shutdown)", "shut off", False),
    ],
)
def test_a_guest_that_virsh_says_is_starting(said: str, state: str, starting: bool) -> None:
    facts = _ask_virsh(Virsh(said), "test:///default")
    assert [(one.state, one.starting) for one in facts.domains or ()] == [(state, starting)]
    guests, _ = read_guests(recorded({"libvirt.json": to_json(facts)}))
    assert [(one.state, one.starting) for one in guests or ()] == [(state, starting)]


def test_the_programs_are_asked_for_no_more_than_their_version() -> None:
    rhel = Programs(virsh="9.0.0\n", qemu_kvm=QEMU_RHEL)
    assert (ask_client_version(rhel), ask_qemu_version(rhel)) == ("9.0.0\n", QEMU_RHEL)
    assert rhel.asked == [
        *(("virsh", "--version"), ("qemu-system-x86_64", "--version"), ("/usr/libexec/qemu-kvm", "--version")),
    ]
    debian = Programs(qemu_system_x86_64=QEMU_DEBIAN)
    assert (ask_client_version(debian), ask_qemu_version(debian)) == (None, QEMU_DEBIAN)
    assert ask_qemu_version(Programs()) is None


def test_a_program_that_fails_is_not_one_that_is_missing() -> None:
    reader = Reader(Programs(virsh=CommandFailed(("virsh",), "no answer within 5 s")))
    system = reader.system
    assert reader.query("virsh-client-version", lambda: ask_client_version(system)) is None
    assert [(problem.where, problem.why) for problem in reader.problems] == [
        ("virsh --version", "no answer within 5 s"),
    ]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"domains": 1}', '{"domains": [{}]}', "[" * 100_000])
def test_a_record_that_makes_no_sense_is_bad_input(text: str) -> None:
    with pytest.raises(BadInput, match="not facts of libvirt") as caught:
        read_guests(recorded({"libvirt.json": text}))
    assert caught.value.where == "test: .hosttune/commands/libvirt.json"


# --- plain outputs of virsh ----------------------------------------------------------------------------------

VIRSH_LIST = """ Id   Name       State
----------------------------
 1    tenant a   running
 -    plain      shut off
 -    gone       shut off

"""
VERSION = """Compiled against library: libvirt 9.0.0
Using library: libvirt 9.0.0
Using API: QEMU 9.0.0
Running hypervisor: QEMU 7.2.22
Running against daemon: 9.1.0
"""


def test_recorded_outputs_of_virsh_are_read() -> None:
    reader = recorded(
        {
            "virsh-list": VIRSH_LIST,
            "virsh-dumpxml-tenant a": PINNED,
            "virsh-dumpxml-plain": PLAIN,
            "virsh-version": VERSION,
            "virsh-domcapabilities": "<domainCapabilities><machine>pc-q35-7.2</machine></domainCapabilities>",
        }
    )
    guests, stack = read_guests(reader)
    assert guests is not None
    assert [(guest.name, guest.state) for guest in guests] == [
        *(("gone", "shut off"), ("plain", "shut off"), ("tenant a", "running")),
    ]
    assert guests[2] == TENANT
    assert (stack.libvirt_version, stack.qemu_version) == ("9.1.0", "7.2.22")
    assert stack.capabilities is not None
    assert stack.capabilities.machine == "pc-q35-7.2"
    assert [(problem.what, problem.where) for problem in reader.problems] == [("no definition", "gone")]


def test_an_empty_list_of_virsh_means_no_guests_and_no_list_means_unknown() -> None:
    header = VIRSH_LIST.partition(" 1 ")[0]
    assert read_guests(recorded({"virsh-list": header}))[0] == ()
    assert read_guests(recorded({"virsh-version": VERSION}))[0] is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (VERSION, ("9.1.0", "7.2.22")),
        (VERSION.partition("Running against")[0], ("9.0.0", "7.2.22")),
        ("Using library: libvirt 9.0.0\nRunning hypervisor: Test 0.0.2\n", ("9.0.0", None)),
        ("", (None, None)),
    ],
)
def test_versions(text: str, expected: tuple[str | None, str | None]) -> None:
    assert read_versions(text) == expected


def test_version_numbers() -> None:
    assert [decode_version(number) for number in (9000000, 11003000, 7002022)] == ["9.0.0", "11.3.0", "7.2.22"]


# --- KVM and capabilities ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "kvm"),
    [
        ({"/dev/kvm": "", "/sys/module/kvm/x": "", "/sys/module/kvm_intel/x": ""}, True),
        ({"/dev/kvm": "", "/sys/module/kvm/x": ""}, None),  # no module for this CPU: it may not work
        ({"/dev/kvm": ""}, True),
        ({"/sys/module/kvm_amd/x": ""}, None),
        ({"/.hosttune/capture": "1"}, False),
        ({}, None),
    ],
)
def test_kvm(files: dict[str, str], kvm: bool | None) -> None:
    assert read_guests(recorded({}, files))[1].kvm is kvm


CAPABILITIES = """<domainCapabilities><path>/usr/bin/qemu-system-x86_64</path><domain>kvm</domain>
<machine>pc-q35-7.2</machine><arch>x86_64</arch><vcpu max='288'/><iothreads supported='yes'/>
<os supported='yes'><enum name='firmware'><value>efi</value></enum>
<loader supported='yes'><value>/usr/share/OVMF/OVMF_CODE_4M.fd</value>
<enum name='type'><value>rom</value></enum></loader></os>
<cpu><mode name='host-passthrough' supported='yes'/><mode name='maximum' supported='no'/>
<mode name='host-model' supported='yes'><model fallback='forbid'>EPYC-Milan</model></mode></cpu>
<devices><hostdev supported='yes'/><tpm supported='no'/></devices>
<features><vmcoreinfo supported='yes'/><sev supported='no'/></features></domainCapabilities>"""


def test_domain_capabilities() -> None:
    _, stack = read_guests(recorded(facts_of(domains=[], domcapabilities=CAPABILITIES)))
    assert stack.capabilities == DomainCapabilities(
        machine="pc-q35-7.2",
        max_vcpus=288,
        firmwares=("efi",),
        loaders=("/usr/share/OVMF/OVMF_CODE_4M.fd",),
        cpu_modes=("host-passthrough", "host-model"),
        host_cpu_model="EPYC-Milan",
        features=("iothreads", "os", "vmcoreinfo", "hostdev"),
        domain_type="kvm",
        iothreads=True,
        hostdev_vfio=None,
    )


VFIO = "<enum name='pciBackend'><value>default</value><value>vfio</value></enum>"


@pytest.mark.parametrize(
    ("xml", "kind", "iothreads", "vfio"),
    [
        ("", None, None, None),
        ("<domain>qemu</domain><iothreads supported='no'/>", "qemu", False, None),
        (f"<devices><hostdev supported='yes'>{VFIO}</hostdev></devices>", None, None, True),
        ("<devices><hostdev supported='yes'><enum name='pciBackend'/></hostdev></devices>", None, None, False),
        ("<devices><hostdev supported='yes'><enum name='mode'/></hostdev></devices>", None, None, None),
        (f"<devices><hostdev supported='no'>{VFIO}</hostdev></devices>", None, None, False),
        (f"<iothreads/><devices><hostdev>{VFIO}</hostdev></devices>", None, None, None),
    ],
)
def test_what_capabilities_do_not_say_is_unknown(
    xml: str, kind: str | None, iothreads: bool | None, vfio: bool | None
) -> None:
    text = f"<domainCapabilities>{xml}</domainCapabilities>"
    offered = read_guests(recorded(facts_of(domains=[], domcapabilities=text)))[1].capabilities
    assert offered is not None
    assert (offered.domain_type, offered.iothreads, offered.hostdev_vfio) == (kind, iothreads, vfio)


def test_capabilities_that_cannot_be_had_or_read_are_problems() -> None:
    reader = recorded(facts_of(domains=[], domcapabilities="<x", capabilities_error="no emulator"))
    assert read_guests(reader)[1].capabilities is None
    assert [problem.what for problem in reader.problems] == ["no domain capabilities", "unreadable domain capabilities"]


# --- QEMU outside libvirt ------------------------------------------------------------------------------------


def test_a_qemu_that_libvirt_does_not_know_is_a_problem() -> None:
    processes = {"qemu-processes": "17 tenant a\n18 stray\n19 "}
    reader = recorded(facts_of(domains=[one("tenant a", PINNED)]) | processes)
    read_guests(reader)
    assert [(problem.what, problem.where) for problem in reader.problems] == [
        ("a QEMU guest outside libvirt (stray)", "/proc/18"),
        ("a QEMU guest outside libvirt", "/proc/19"),
    ]


def test_a_guest_that_is_shut_off_and_runs_is_in_no_known_state() -> None:
    listed = facts_of(domains=[one("tenant a", PINNED, "shut off"), one("b", None, "shut off")])
    reader = recorded(listed | {"qemu-processes": "17 tenant a\n"})
    guests, _ = read_guests(reader)
    assert [(guest.name, guest.state) for guest in guests or ()] == [("tenant a", None), ("b", "shut off")]
    found = [problem.where for problem in reader.problems if problem.what == "state of a guest contradicted"]
    assert found == ["tenant a"]


@pytest.mark.parametrize("named", ["b", None, "Tenant a"])
def test_a_definition_of_another_guest_is_none_of_this_one(named: str | None) -> None:
    reader = recorded(facts_of(domains=[one("tenant a", edited(PINNED, "name", named))]))
    guests, _ = read_guests(reader)
    assert guests == (RunningGuest(name="tenant a", state="running"),)
    assert [(problem.what, problem.where) for problem in reader.problems] == [("no definition", "tenant a")]


def test_a_guest_that_virsh_defines_and_libvirts_own_answer_lacks_is_a_problem() -> None:
    reader = recorded(facts_of(domains=[]) | {"virsh-dumpxml-b": PINNED})
    assert read_guests(reader)[0] == ()
    assert [(problem.what, problem.where) for problem in reader.problems] == [
        (LIST_UNREAD, "/.hosttune/commands/libvirt.json")
    ]


class Live(Archive):
    """A machine in memory that lists its processes live, without libvirt and QEMU to ask."""

    captured = False

    def query(self, name: str, live: object) -> str | None:
        return live() if callable(live) and name == "qemu-processes" else None


def test_qemu_processes_are_found_by_command() -> None:
    def process(number: int, comm: str, *arguments: str) -> dict[str, bytes]:
        command = "\0".join((*arguments, "")).encode()
        return {f"/proc/{number}/comm": f"{comm}\n".encode(), f"/proc/{number}/cmdline": command}

    system = Live(
        process(1, "systemd", "/sbin/init")
        | process(24, "td", "/usr/bin/qemu-system-x86_64", "-name", "td,process=td")
        | process(25, ".qemu-system-x8", "/run/current-system/sw/bin/qemu-system-x86_64", "-name", "nix")
        | process(20, "qemu-system-x86", "/usr/bin/qemu-system-x86_64", "-name", "guest=web,debug-threads=on", "-S")
        | process(21, "qemu-kvm", "/usr/libexec/qemu-kvm", "-m", "1024")
        | process(22, "qemu-ga", "/usr/sbin/qemu-ga", "-d")
        | process(23, "qemu-system-x86", "/usr/bin/qemu-system-x86_64", "-S", "-machine", "none,accel=kvm:tcg")
        | {"/proc/meminfo": b""},
        {"/proc/24/exe": "/usr/bin/qemu-system-x86_64"},
        "live",
    )
    reader = Reader(system)
    read_guests(reader)
    assert [(problem.what, problem.where) for problem in reader.problems] == [
        ("a QEMU guest outside libvirt (web)", "/proc/20"),
        ("a QEMU guest outside libvirt", "/proc/21"),
        ("a QEMU guest outside libvirt (td)", "/proc/24"),
        ("a QEMU guest outside libvirt (nix)", "/proc/25"),
    ]


# --- libvirt's own test driver -------------------------------------------------------------------------------

needs_libvirt = pytest.mark.skipif(
    shutil.which("virsh") is None and importlib.util.find_spec("libvirt") is None,
    reason="neither virsh nor libvirt-python is installed",
)


@needs_libvirt
def test_libvirt_itself_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "node.xml").write_text(f"<node>{PINNED}{PLAIN}</node>")
    monkeypatch.setenv(URI_VARIABLE, f"test://{tmp_path}/node.xml")
    reader = Reader(LiveMachine())
    guests, stack = read_guests(reader)
    assert guests is not None
    assert [guest.name for guest in guests] == ["plain", "tenant a"]
    assert guests[1] == msgspec.structs.replace(TENANT, next_start=())
    assert stack.libvirt_version is not None
    assert stack.qemu_version is None  # it is no QEMU
    assert stack.uri == f"test://{tmp_path}/node.xml"
    # Older test drivers have none to give; that is a problem noted, and nothing else is.
    said = "no domain capabilities" in [problem.what for problem in reader.problems]
    assert said == (stack.capabilities is None)


@needs_libvirt
def test_what_libvirt_answered_replays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "node.xml").write_text(f"<node>{PINNED}{PLAIN}</node>")
    monkeypatch.setenv(URI_VARIABLE, f"test://{tmp_path}/node.xml")
    text = ask_libvirt(LiveMachine())
    assert text is not None
    stripped = strip_facts(text, str)
    assert read_guests(recorded({"libvirt.json": stripped})) == read_guests(recorded({"libvirt.json": text}))
    assert strip_facts(stripped, str) == stripped


@needs_libvirt
def test_a_libvirt_that_cannot_be_reached_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URI_VARIABLE, f"test://{tmp_path}/none.xml")
    reader = Reader(LiveMachine())
    guests, _ = read_guests(reader)
    assert guests is None
    assert ("libvirt cannot be asked", f"test://{tmp_path}/none.xml") in [(p.what, p.where) for p in reader.problems]


@pytest.mark.skipif(importlib.util.find_spec("libvirt") is not None, reason="libvirt-python answers")
def test_without_libvirt_nothing_is_known_and_nothing_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ask_libvirt(LiveMachine()) is None
    assert "PATH" in os.environ


def test_a_capture_keeps_no_more_of_a_domain_than_what_it_holds() -> None:
    text = strip_facts(json.dumps({"domains": [one("tenant a", PINNED), one("odd", "<broken")]}), str)
    for private in ("secret0", "52:54:00"):
        assert private not in text
    assert "<unreadable/>" in text
    guests, _ = read_guests(recorded({"libvirt.json": text}))
    assert guests == (TENANT, RunningGuest(name="odd", state="running"))


@pytest.mark.parametrize("states", [("running", "shut off"), ("shut off", "running")])
def test_a_list_with_a_guest_twice_is_unread(states: tuple[str, str]) -> None:
    rows = "".join(f" -    web   {state}\n" for state in states)
    reader = recorded({"virsh-list": f" Id   Name  State\n-----------------\n{rows}"})
    guests, _ = read_guests(reader)
    assert guests is None
    assert [problem.what for problem in reader.problems] == [LIST_UNREAD]


def test_a_guest_twice_in_libvirts_facts_is_bad_input() -> None:
    with pytest.raises(BadInput, match="is listed twice"):
        read_guests(recorded({"libvirt.json": '{"domains": [{"name": "a"}, {"name": "a"}]}'}))
