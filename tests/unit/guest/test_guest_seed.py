"""The guest's own side: which files it gets, that hostile plans stay data, that the image is one for cloud-init."""

from __future__ import annotations

import datetime
import io
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import isofs
import pycdlib
import pytest
import yaml
from domain_shapes import NO_GPU, ODD, ONE_GPU, SEEDED, TWO_CELLS, changed, device, flat_bus, plan_of
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree
from planhosts import Card, build_host, intent_of

from hosttune.domain.planned import guest_of
from hosttune.domain.reader import read_domain
from hosttune.domain.writer import domain_xml
from hosttune.errors import BadInput
from hosttune.guest import GuestFiles, guest_files, seed_image, write_plan
from hosttune.guest.files import without_dates
from hosttune.model.guestplan import GuestPlan
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Plan, PlannedGuest
from hosttune.model.values import to_json
from hosttune.planning import plan
from hosttune.transaction.guestfiles import value_of

HERE = Path(__file__).parents[2]
UUID = "955c52bd-010f-5fce-a8bc-904f657d5001"
ALL: Mapping[str, Any] = {
    "persistence": True,
    "power_limit_watts": 600,
    "aspm": "off",
    "read_request_bytes": 4096,
    "relaxed_ordering": True,
    "sysctl": {"vm.nr_hugepages": 4, "net.ipv4.tcp_rmem": "4096 131072 6291456"},
}
FULL = changed(TWO_CELLS, uuid=UUID, guest_settings=ALL)
AMD = changed(
    ONE_GPU,
    name="mi300x",
    guest_settings=ALL,
    devices=(changed(device("0000:41:00.0", "gpu", 1), identity="0000:41:00.0 1002:74a1"),),
)
GAUDI = changed(
    ONE_GPU,
    name="gaudi3",
    guest_settings={"persistence": True},
    devices=(changed(device("0000:41:00.0", "gpu", 1), identity="0000:41:00.0 1da3:1060 serial=x"),),
)
VF = changed(ONE_GPU, name="vf", guest_settings=ALL, devices=(device("0000:41:00.4", "vf", 1),))
PLAIN = changed(ONE_GPU, name="plain")
SHAPES = {guest.name: guest for guest in (FULL, AMD, GAUDI, VF, PLAIN)}


def files_of(guest: PlannedGuest, **changes: object) -> GuestFiles:
    guest = changed(guest, **changes)
    return guest_files(plan_of(guest), guest.name)


def conf(guest: PlannedGuest, **changes: object) -> str:
    return files_of(guest, **changes).bundle["hosttune-guest.conf"]


def words(text: str, word: str) -> list[str]:
    return [line.partition(" ")[2] for line in text.splitlines() if line.split(" ")[0] == word]


# --- which files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_the_table(request: pytest.FixtureRequest, name: str) -> None:
    golden = HERE / "golden" / "guest" / f"{name}.conf"
    text = conf(SHAPES[name])
    if request.config.getoption("--regenerate"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_a_device_is_named_by_the_root_port_above_it_not_by_the_bus_number_of_the_xml() -> None:
    """Buses 1 and 2 are the expanders, whose first bus numbers are 64 and 128: what the guest's kernel shows."""
    devices = [line.split(" ") for line in words(conf(FULL), "device")]
    assert [(d[0], d[1]) for d in devices] == [
        ("0000:03:00.0", "pci0000:40/0000:40:00.0"),
        ("0000:04:00.0", "pci0000:40/0000:40:01.0"),
        ("0000:05:00.0", "pci0000:80/0000:80:00.0"),
    ]
    packed = changed(ONE_GPU, controllers=flat_bus(12), devices=(device("0000:41:00.0", "gpu", 10),))
    assert words(conf(packed), "device")[0].split(" ")[1] == "pci0000:00/0000:00:03.1"


def test_a_port_that_the_plan_does_not_say_is_a_dash() -> None:
    bare = changed(ONE_GPU, controllers=())
    assert words(conf(bare), "device") == ["0000:01:00.0 - 00.0 10de:2335 nvidia-smi endpoint"]


def test_functions_of_one_slot_keep_their_function() -> None:
    lines = words(conf(ODD), "device")
    assert [line.split(" ")[2:] for line in lines] == [
        ["00.0", "10de:2335", "nvidia-smi", "endpoint"],
        ["00.1", "-", "-", "-"],
    ]


def test_no_algorithm_of_nccl_is_forced() -> None:
    everything = "".join(files_of(FULL).bundle.values())
    assert "NCCL" in everything
    # What a script can write as a setting stands at the beginning of a quoted word.
    assert set(re.findall(r"\"((?:NCCL|UCX)_[A-Z_]+)=", everything)) == {
        "NCCL_TOPO_FILE",
        "NCCL_IB_HCA",
        "NCCL_SOCKET_IFNAME",
        "NCCL_IB_TC",
        "UCX_NET_DEVICES",
    }


def test_what_is_not_known_of_a_maker_is_said() -> None:
    assert "no persistence or power setting has a source" in files_of(AMD).notes[0]
    assert files_of(AMD).notes[1].startswith("a power limit is asked for")
    assert "official sysctl list" in files_of(GAUDI).notes[0]
    assert files_of(FULL).notes == ()


def test_write_plan_is_every_file_by_a_constant_path() -> None:
    files = files_of(FULL)
    written = write_plan(files)
    assert list(written) == [
        "seed.iso",
        "meta-data",
        "user-data",
        "bundle/install.sh",
        "bundle/hosttune-guest-apply",
        "bundle/hosttune-guest.conf",
        "bundle/hosttune-guest.service",
        "bundle/expected.json",
        "bundle/virtualTopology.xml",
        "bundle/hosttune-guest.tmpfiles",
    ]
    assert written["seed.iso"] == seed_image(files)
    assert set(value_of(files)) == set(written)  # an apply writes all of them
    assert written["bundle/hosttune-guest.conf"].decode() == files.bundle["hosttune-guest.conf"]


# --- the seed -----------------------------------------------------------------------------------------------------


def test_user_data_writes_the_bundle_and_installs_it() -> None:
    files = files_of(FULL)
    assert files.user_data.startswith("#cloud-config\n")
    document = yaml.safe_load(files.user_data)
    assert document["runcmd"] == [["sh", "/usr/local/share/hosttune-guest/install.sh"]]
    assert document["ssh_deletekeys"] is False  # a new instance id must not cost the host keys
    assert {entry["path"].rpartition("/")[2]: entry["content"] for entry in document["write_files"]} == files.bundle
    modes = {entry["path"].rpartition("/")[2]: entry["permissions"] for entry in document["write_files"]}
    assert modes == {
        "install.sh": "0755",
        "hosttune-guest-apply": "0755",
        "hosttune-guest.conf": "0644",
        "hosttune-guest.service": "0644",
        "expected.json": "0644",
        "virtualTopology.xml": "0644",
        "hosttune-guest.tmpfiles": "0644",
    }


def instance(guest: PlannedGuest, **changes: object) -> str:
    document = yaml.safe_load(files_of(guest, **changes).meta_data)
    assert list(document) == ["instance-id"]
    return str(document["instance-id"])


def test_the_instance_id_changes_with_the_guest_and_with_what_it_is_to_do() -> None:
    assert instance(FULL).startswith(f"hosttune-{UUID}-")
    assert instance(FULL) == instance(FULL, emulator_cpus="2-3", why=("another reason",))
    less = instance(FULL, guest_settings={"persistence": True})
    assert less != instance(FULL)
    assert less.startswith(f"hosttune-{UUID}-")
    assert instance(FULL, uuid=None).startswith("hosttune-two-cells-")


def test_the_image_says_cidata_and_holds_both_files_under_both_kinds_of_name() -> None:
    files = files_of(FULL)
    image = seed_image(files)
    wanted = {"meta-data": files.meta_data.encode(), "user-data": files.user_data.encode()}
    assert image[0x8001:0x8006] == b"CD001"
    assert image[0x8028:0x8048] == b"cidata".ljust(32)
    assert [(d.kind, d.volume) for d in isofs.descriptors(image)] == [(1, "cidata"), (2, "cidata")]
    assert isofs.files(image, 1) == wanted
    assert isofs.files(image, 2) == wanted


@pytest.mark.parametrize("kind", ["rr_path", "joliet_path"])
def test_the_library_reads_the_image_back(kind: str) -> None:
    files = files_of(FULL)
    image = pycdlib.PyCdlib()
    image.open_fp(io.BytesIO(seed_image(files)))
    for name, text in (("meta-data", files.meta_data), ("user-data", files.user_data)):
        out = io.BytesIO()
        image.get_file_from_iso_fp(out, **{kind: f"/{name}"})
        assert out.getvalue().decode() == text
    image.close()


def test_other_tools_read_the_image(tmp_path: Path) -> None:
    path = tmp_path / "seed.iso"
    path.write_bytes(seed_image(files_of(FULL)))
    asked = 0
    for argv, said in (
        (("blkid", "-p", "-o", "value", "-s", "LABEL", str(path)), "cidata"),
        (("isoinfo", "-J", "-f", "-i", str(path)), "/user-data"),
        (("isoinfo", "-d", "-i", str(path)), "Volume id: cidata"),
        (("7z", "l", str(path)), "user-data"),
    ):
        tool = shutil.which(argv[0], path="/usr/sbin:/usr/bin:/sbin:/bin")
        if tool:
            asked += 1
            done = subprocess.run([tool, *argv[1:]], capture_output=True, text=True, check=True, timeout=60)
            assert said in done.stdout
    if not asked:
        pytest.skip("neither blkid nor isoinfo nor 7z here")


def today() -> bytes:
    """Today as a directory record writes it (ECMA-119 9.1.5), in local time as the library does."""
    now = datetime.datetime.now()
    return bytes((now.year - 1900, now.month, now.day))


def test_the_same_plan_gives_the_same_image_on_any_day() -> None:
    raw = pycdlib.PyCdlib()
    raw.new(interchange_level=3, vol_ident="cidata", joliet=3, rock_ridge="1.09")
    raw.add_fp(io.BytesIO(b"x"), 1, "/A.;1", rr_name="a", joliet_path="/a", file_mode=0o100444)
    out = io.BytesIO()
    raw.write_fp(out)
    dated, year = out.getvalue(), f"{datetime.datetime.now().year}".encode()
    assert dated.count(today()) > 8  # the library writes them: the next lines can fail
    assert year in dated[16 * 2048 : 18 * 2048]
    assert today() not in without_dates(dated)
    image = seed_image(files_of(FULL))
    assert today() not in image
    assert year not in image[16 * 2048 : 18 * 2048]
    assert image == seed_image(files_of(FULL))
    assert image != seed_image(files_of(FULL, guest_settings=None))


def test_no_image_is_refused() -> None:
    with pytest.raises(ValueError, match="not an ISO 9660 image"):
        without_dates(b"\0" * 40960)


# --- hostile plans ------------------------------------------------------------------------------------------------

HOSTILE = (
    "$(reboot)",
    "`reboot`",
    "a'b",
    'a"b',
    "a\nruncmd: [reboot]",
    "../../etc/shadow",
    "a b",
    "",
    "-x",
    "a" * 65,
    "é",
)
TEXT = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=40))
LINE = re.compile(
    r"(#[^\n]*|guest [A-Za-z0-9._-]+|persistence on|power_limit_watts [0-9]+|aspm off|read_request_bytes [0-9]+"
    r"|relaxed_ordering (on|off)|sysctl [A-Za-z0-9_./-]+ [A-Za-z0-9_.,:+ -]+"
    r"|device [0-9a-f]{4,8}:[0-9a-f:.]+ (-|pci0000:[0-9a-f]{2}/[0-9a-f:.]+) [0-9a-f]{2}\.[0-7]"
    r" (-|[0-9a-f]{4}:[0-9a-f]{4}) (-|nvidia-smi) (-|endpoint)"
    r"|library /etc/[nr]ccl\.conf /etc/hosttune-guest/virtualTopology\.xml"
    r"|nic [0-9a-f]{4,8}:[0-9a-f:.]+ (-|pci0000:[0-9a-f]{2}/[0-9a-f:.]+) [0-9a-f]{2}\.[0-7]"
    r" (-|[0-9a-f]{4}:[0-9a-f]{4}))"
)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_refused(name: str) -> None:
    with pytest.raises(BadInput) as error:
        files_of(ONE_GPU, name=name)
    assert error.value.where.endswith(".name")


@pytest.mark.parametrize("address", ["0000:01:00.0; reboot", "$(id)", "0000:01:00", "", "0000:01:00.0\n0000:02:00.0"])
def test_a_hostile_address_is_refused(address: str) -> None:
    with pytest.raises(BadInput) as error:
        files_of(ONE_GPU, devices=(changed(ONE_GPU.devices[0], guest_address=address),))
    assert error.value.where == "plan: guests['one-gpu'].devices[0].guest_address"


def test_two_devices_at_one_place_are_refused() -> None:
    with pytest.raises(BadInput, match="is there twice") as error:
        files_of(ONE_GPU, devices=(device("0000:41:00.0", "gpu", 1), device("0000:42:00.0", "gpu", 1)))
    assert error.value.where.endswith("devices[1].guest_address")


REFUSED: tuple[tuple[str, object], ...] = (
    ("persistence", "on"),
    ("power_limit_watts", "600; reboot"),
    ("power_limit_watts", True),
    ("power_limit_watts", 0),
    ("power_limit_watts", 10_001),
    ("power_limit_watts", 600.5),
    ("aspm", "on"),
    ("read_request_bytes", 4095),
    ("read_request_bytes", 8192),
    ("read_request_bytes", [128]),
    ("relaxed_ordering", 1),
    ("relaxed_ordering", "no"),
    ("sysctl", "vm.nr_hugepages=1"),
    ("sysctl", {"../../etc/passwd": 1}),
    ("sysctl", {"vm..x": 1}),
    ("sysctl", {"vm.x": "1\ndevice"}),
    ("sysctl", {"vm.x": True}),
    ("sysctl", {"vm.x": "$(id)"}),
    ("shell", "reboot"),
)


@pytest.mark.parametrize(("name", "value"), REFUSED, ids=repr)
def test_a_setting_that_cannot_be_is_refused(name: str, value: object) -> None:
    with pytest.raises(BadInput) as error:
        files_of(ONE_GPU, guest_settings={name: value})
    assert error.value.where.startswith(f"plan: guests['one-gpu'].guest_settings.{name}")


@pytest.mark.parametrize(("value", "word"), [(True, "on"), ("on", "on"), (False, "off"), ("off", "off")])
def test_relaxed_ordering_is_a_switch_or_its_word(value: object, word: str) -> None:
    assert words(conf(ONE_GPU, guest_settings={"relaxed_ordering": value}), "relaxed_ordering") == [word]


def test_a_guest_that_is_not_placed_is_refused() -> None:
    with pytest.raises(BadInput, match="places no guest named 'other'"):
        guest_files(plan_of(ONE_GPU), "other")


def test_a_uuid_that_is_none_is_refused() -> None:
    with pytest.raises(BadInput) as error:
        files_of(ONE_GPU, uuid="x: [y]")
    assert error.value.where.endswith(".uuid")


SETTINGS = st.dictionaries(
    st.sampled_from([*ALL, "other"]),
    st.one_of(
        st.booleans(),
        st.integers(-10, 20_000),
        st.sampled_from([128, 4096, "off"]),
        TEXT,
        st.dictionaries(st.one_of(TEXT, st.just("vm.x")), st.one_of(TEXT, st.integers()), max_size=3),
    ),
    max_size=4,
)


@given(
    name=st.one_of(st.just("g"), TEXT),
    address=st.one_of(st.just("0000:01:00.0"), TEXT),
    identity=st.one_of(st.just("x 10de:2335"), TEXT),
    kind=st.one_of(st.sampled_from(["gpu", "nic", "vf"]), TEXT),
    settings=st.one_of(st.none(), SETTINGS),
    slot=st.integers(-1, 40),
    bus=st.integers(-1, 300),
)
def test_a_hostile_plan_is_refused_or_stays_data(
    name: str, address: str, identity: str, kind: str, settings: dict[str, Any] | None, slot: int, bus: int
) -> None:
    ports = (
        changed(ONE_GPU.controllers[0], index=2, model="pcie-expander-bus", bus_nr=bus),
        changed(ONE_GPU.controllers[1], bus=2, slot=slot),
    )
    hostile = changed(
        ONE_GPU,
        name=name,
        controllers=ports,
        guest_settings=settings,
        devices=(changed(ONE_GPU.devices[0], guest_address=address, identity=identity, kind=kind),),
    )
    try:
        again = Plan.from_json(plan_of(hostile).to_json()) if name.isascii() else plan_of(hostile)
        files = guest_files(again, name)
    except BadInput:
        return
    constant = files_of(PLAIN).bundle
    documents = ("hosttune-guest.conf", "expected.json", "virtualTopology.xml", "hosttune-guest.tmpfiles")
    assert {n: t for n, t in files.bundle.items() if n not in documents} == {
        n: t for n, t in constant.items() if n not in documents
    }
    assert files.bundle.get("hosttune-guest.tmpfiles") in (None, constant["hosttune-guest.tmpfiles"])
    assert GuestPlan.from_json(files.bundle["expected.json"]).name == name
    if "virtualTopology.xml" in files.bundle:
        assert {str(e.tag) for e in etree.fromstring(files.bundle["virtualTopology.xml"]).iter()} <= {
            "system",
            "cpu",
            "pci",
        }
    for line in files.bundle["hosttune-guest.conf"].splitlines():
        assert LINE.fullmatch(line), line
    document = yaml.safe_load(files.user_data)
    assert [entry["content"] for entry in document["write_files"]] == list(files.bundle.values())
    assert set(document) == {"ssh_deletekeys", "write_files", "runcmd"}
    assert set(write_plan(files)) <= set(write_plan(files_of(PLAIN)))


# --- who may log in ------------------------------------------------------------------------------------------------

KEYS = (
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICNzOPY04T123UySyyEo10L/qnYfbX5Hr7VjUevlTrPs ops@desk",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICNzOPY04T123UySyyEo10L/qnYfbX5Hr7VjUevlTrPs",
)


def test_a_user_gets_keys_and_no_password() -> None:
    files = files_of(PLAIN, user="ops", ssh_keys=KEYS)
    plain = yaml.safe_load(files_of(PLAIN).user_data)
    account = {
        "name": "ops", "shell": "/bin/bash", "sudo": "ALL=(ALL) NOPASSWD:ALL", "ssh_authorized_keys": list(KEYS)
    }  # fmt: skip
    assert yaml.safe_load(files.user_data) == {"users": [account], **plain}
    meta = yaml.safe_load(files.meta_data)
    assert meta["local-hostname"] == "plain"
    assert meta["instance-id"] != yaml.safe_load(files_of(PLAIN).meta_data)["instance-id"]


def test_keys_alone_are_of_the_user_of_the_image() -> None:
    document = yaml.safe_load(files_of(PLAIN, ssh_keys=KEYS).user_data)
    assert document["ssh_authorized_keys"] == list(KEYS)
    assert "users" not in document


def test_a_guest_without_keys_has_the_seed_that_it_had() -> None:
    assert set(yaml.safe_load(files_of(PLAIN).user_data)) == {"ssh_deletekeys", "write_files", "runcmd"}
    assert set(yaml.safe_load(files_of(PLAIN).meta_data)) == {"instance-id"}


@pytest.mark.parametrize("wrong", [{"user": "a b", "ssh_keys": KEYS}, {"user": "a"}, {"ssh_keys": ("ssh-rsa x",)}])
def test_a_plan_with_another_login_makes_no_seed(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        files_of(PLAIN, **wrong)


def test_keys_make_a_seed() -> None:
    assert planned().seed is None
    made = planned(disk="/srv/a.qcow2", image="/srv/i.qcow2", user="ops", ssh_keys=list(KEYS))
    assert (made.seed, made.user, made.ssh_keys) == ("/var/lib/hosttune/guests/g/seed.iso", "ops", KEYS)
    assert made.image == "/srv/i.qcow2"


# --- the drive in the XML -----------------------------------------------------------------------------------------


def test_the_seed_is_a_read_only_drive_and_its_absence_is_seen() -> None:
    xml = domain_xml(plan_of(SEEDED), "seeded")
    facts = read_domain(xml)
    (drive,) = [disk for disk in facts.disks if disk.device == "cdrom"]
    assert (drive.source, drive.bus, drive.readonly, drive.boot_order) == (SEEDED.seed, "sata", True, None)
    assert facts == guest_of(SEEDED)
    assert facts.disks[1:] == (drive,)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/shadow",
        "var/lib/hosttune/guests/seeded/seed.iso",
        "/var/lib/hosttune/guests/other/seed.iso",
        "/var/lib/../guests/seeded/seed.iso",
        "/var//guests/seeded/seed.iso",
        "",
    ],
)
def test_a_plan_cannot_hand_another_file_to_the_guest(path: str) -> None:
    with pytest.raises(BadInput) as error:
        domain_xml(plan_of(changed(SEEDED, seed=path)), "seeded")
    assert error.value.where == "plan: guests['seeded'].seed"


# --- what the plan wants inside -------------------------------------------------------------------------------------


def planned(top: Mapping[str, Any] | None = None, **guest: Any) -> PlannedGuest:
    asked = {"vcpus": 4, "memory": "4GiB", "gpus": ["0000:41:00.0"], **guest}
    document = intent_of(**asked) | dict(top or {})
    host = Host.from_json(to_json(build_host(cards=[Card("0000:41:00.0", 0, group=1)])))
    (made,) = plan(host, Intent.from_json(to_json(document))).guests
    return made


def inside(profile: str, settings: Mapping[str, Any] | None = None, **guest: Any) -> dict[str, Any] | None:
    found = planned({"profile": profile, "settings": dict(settings or {})}, **guest).guest_settings
    return None if found is None else dict(found)


def test_profile_none_wants_nothing_inside() -> None:
    assert inside("none") is None
    assert inside("none", {"aspm": "off"}) == {"aspm": "off"}


@pytest.mark.parametrize("profile", ["guest", "host"])
def test_the_other_profiles_want_persistence_and_aspm_off(profile: str) -> None:
    found = inside(profile) or {}
    assert (found["persistence"], found["aspm"]) == (True, "off")
    assert "power_limit_watts" not in found
    assert "sysctl" not in found


def test_what_is_kept_is_not_wanted_inside() -> None:
    assert "aspm" not in (inside("guest", {"aspm": "keep"}) or {})


def test_a_sysctl_inside_is_by_name_only() -> None:
    assert (inside("none", sysctl={"vm.nr_hugepages": 156300}) or {})["sysctl"] == {"vm.nr_hugepages": 156300}
    with pytest.raises(BadInput) as error:
        inside("none", sysctl={"vm.nr_hugepages": "1; reboot"})
    assert error.value.where.endswith("guests[0].sysctl")


def test_the_seed_is_asked_for_and_lies_in_the_state_directory() -> None:
    assert planned().seed is None
    made = planned(seed=True, name="train")
    assert made.seed == "/var/lib/hosttune/guests/train/seed.iso"
    assert "<source file='/var/lib/hosttune/guests/train/seed.iso'/>" in domain_xml(plan_of(made), "train")


def test_a_plan_of_every_profile_gives_files() -> None:
    for profile in ("none", "guest", "host"):
        made = planned({"profile": profile})
        assert words(conf(made), "guest") == [made.name]
        assert len(words(conf(made), "device")) == 1


def test_no_gpu_is_no_device() -> None:
    assert words(conf(NO_GPU), "device") == []
