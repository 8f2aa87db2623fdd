"""The settings file of a guest's library: written at boot from the plan, never over somebody else's, and checked."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from domain_shapes import ONE_GPU, TWO_CELLS, changed, plan_of
from unit.guest.test_guest_scripts import NIC, SHELLS, WHERE, Inside, installed, make

from hosttune.discovery.guestlibrary import read_library_files, read_rdma_access
from hosttune.guest import guest_files
from hosttune.machine.capture import Capture
from hosttune.machine.reader import Reader
from hosttune.model.devices import Nic
from hosttune.model.evidence import UNLIMITED, Evidence, RdmaAccess
from hosttune.model.gpu import Gpu
from hosttune.model.guestplan import UCX_FILE, ExpectedLibrary, GuestPlan
from hosttune.model.host import Host, PciDevice, Problem
from hosttune.model.intent import Intent, Network
from hosttune.model.networkintent import NetworkIntent, Roce
from hosttune.model.plan import PlannedGuest
from hosttune.model.ports import NicPorts, RdmaPort
from hosttune.model.validation import CheckResult
from hosttune.rules.checks import judge

TOPOLOGY = "/etc/hosttune-guest/virtualTopology.xml"


@pytest.fixture
def inside(tmp_path: Path) -> Inside:
    return make(tmp_path, TWO_CELLS)


def read_as_nccl(text: str) -> dict[str, str]:
    """setEnvFile of NVIDIA/nccl, src/misc/param.cc: the names and values that a process would have."""
    found = {}
    for line in text.split("\n"):
        if line.startswith("#") or "=" not in line:
            continue
        name, _, value = line.partition("=")
        found[name[:1023]] = value[:1023]
    return found


def conf(made: Inside, name: str = "etc/nccl.conf") -> str:
    return (made.root / name).read_text()


@pytest.mark.parametrize("shell", SHELLS)
def test_the_names_are_those_of_the_boot(inside: Inside, shell: str) -> None:
    """The firmware has numbered the buses otherwise than the plan: the NIC is found below its port."""
    done = installed(inside).apply(shell=shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert read_as_nccl(conf(inside)) == {"NCCL_TOPO_FILE": TOPOLOGY, "NCCL_IB_HCA": "=mlx5_4"}
    assert read_as_nccl(conf(inside, "etc/hosttune-guest/ucx.env")) == {"UCX_NET_DEVICES": "mlx5_4:1"}
    lines = conf(inside).splitlines()
    assert all(line.startswith("#") or line.partition("=")[0].isidentifier() for line in lines)
    for before, line in itertools.pairwise(lines):
        assert line.startswith("#") or before.startswith("#")  # each setting has its reason above it
    assert not any(quote in line for line in lines if not line.startswith("#") for quote in "\"'")
    assert "export" not in conf(inside)
    again = inside.apply(shell=shell)
    assert [line.partition(":")[0] for line in again.stdout.splitlines()] == ["already", "already"]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_nic_without_an_rdma_device_leaves_the_line_out(inside: Inside, shell: str) -> None:
    shutil.rmtree(inside.root / "sys/devices" / WHERE[NIC] / NIC / "infiniband")
    done = installed(inside).apply(shell=shell)
    assert done.returncode == 0
    assert "ignored: NCCL_IB_HCA: 0000:42:00.0 shows no RDMA device, or several" in done.stdout
    assert read_as_nccl(conf(inside)) == {"NCCL_TOPO_FILE": TOPOLOGY}
    assert "# No NCCL_IB_HCA: 0000:42:00.0 shows no RDMA device, or several." in conf(inside)
    assert read_as_nccl(conf(inside, "etc/hosttune-guest/ucx.env")) == {}


def test_a_later_driver_adds_the_name(inside: Inside) -> None:
    folder = inside.root / "sys/devices" / WHERE[NIC] / NIC / "infiniband"
    folder.rename(folder.with_name("away"))
    installed(inside).apply()
    folder.with_name("away").rename(folder)
    assert "done: " in inside.apply().stdout
    assert read_as_nccl(conf(inside))["NCCL_IB_HCA"] == "=mlx5_4"


@pytest.mark.parametrize("name", ["mlx5 0", "a,b", "$(id)", "a:b"])
def test_an_odd_name_becomes_no_setting(inside: Inside, name: str) -> None:
    folder = inside.root / "sys/devices" / WHERE[NIC] / NIC / "infiniband"
    (folder / "mlx5_4").rename(folder / name)
    installed(inside).apply()
    assert read_as_nccl(conf(inside)) == {"NCCL_TOPO_FILE": TOPOLOGY}


def test_somebody_elses_file_is_left_alone(inside: Inside) -> None:
    (inside.root / "etc").mkdir(exist_ok=True)
    (inside.root / "etc/nccl.conf").write_text("NCCL_DEBUG=WARN\n")
    done = installed(inside).apply()
    assert "left alone: " in done.stdout
    assert conf(inside) == "NCCL_DEBUG=WARN\n"
    assert inside.install("--remove").returncode == 0
    assert conf(inside) == "NCCL_DEBUG=WARN\n"


def test_a_dry_run_writes_nothing_and_removal_takes_it_away(inside: Inside) -> None:
    assert "would write: " in inside.install("--dry-run").stdout
    assert not (inside.root / "etc").exists()
    installed(inside).apply()
    assert (inside.root / "etc/nccl.conf").exists()
    assert inside.install("--remove").returncode == 0
    assert not (inside.root / "etc/nccl.conf").exists()
    assert not (inside.root / "etc/hosttune-guest/ucx.env").exists()
    assert not list((inside.root / "etc").glob("**/*.new"))


def test_a_plan_without_gpus_takes_the_file_of_an_earlier_plan_away(inside: Inside) -> None:
    installed(inside).apply()
    table = inside.root / "etc/hosttune-guest.conf"
    lines = table.read_text().splitlines(keepends=True)
    table.write_text("".join(line for line in lines if not line.startswith(("library", "nic"))))
    assert "removed: " in inside.apply().stdout
    assert not (inside.root / "etc/nccl.conf").exists()


def test_a_guest_without_nics_has_the_topology_alone(tmp_path: Path) -> None:
    made = make(tmp_path, ONE_GPU)
    installed(made).apply()
    assert read_as_nccl(conf(made)) == {"NCCL_TOPO_FILE": TOPOLOGY}
    assert "# No NCCL_IB_HCA: the plan gives this guest no NIC." in conf(made)
    assert not (made.root / "etc/hosttune-guest/ucx.env").exists()


def test_amd_has_a_file_of_its_own() -> None:
    gpu = changed(ONE_GPU.devices[0], identity="0000:41:00.0 1002:74a1", class_code="120000")
    guest = changed(ONE_GPU, devices=(gpu,))
    files = guest_files(plan_of(guest), guest.name)
    assert f"library /etc/rccl.conf {TOPOLOGY}\n" in files.bundle["hosttune-guest.conf"]
    library = GuestPlan.from_json(files.bundle["expected.json"]).library
    assert library == ExpectedLibrary(path="/etc/rccl.conf", topology=TOPOLOGY)


BRIDGED = changed(TWO_CELLS, networks=(Network(bridge="br0"),))
SOCKET = "NCCL_SOCKET_IFNAME"


def with_networks(tmp_path: Path, guest: PlannedGuest, *names: str) -> Inside:
    made = make(tmp_path, guest)
    for n, name in enumerate(names):
        (made.root / f"sys/bus/virtio/drivers/virtio_net/virtio{n}/net/{name}").mkdir(parents=True)
    return installed(made)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_socket_interface_is_the_only_network_on_a_bridge(tmp_path: Path, shell: str) -> None:
    made = with_networks(tmp_path, BRIDGED, "enp1s0")
    done = made.apply(shell=shell)
    assert (done.returncode, done.stderr) == (0, "")
    wanted = {"NCCL_TOPO_FILE": TOPOLOGY, "NCCL_IB_HCA": "=mlx5_4", SOCKET: "=enp1s0"}
    assert read_as_nccl(conf(made)) == wanted
    lines = conf(made).splitlines()
    assert lines[lines.index(f"{SOCKET}==enp1s0") - 1].startswith("# The guest's only network")


@pytest.mark.parametrize(
    ("guest", "names", "why"),
    [
        (TWO_CELLS, ("enp1s0",), "the plan does not say which network of this guest reaches the other hosts"),
        (changed(BRIDGED, networks=(*BRIDGED.networks, Network(bridge="br1"))), ("a",), "the plan does not say"),
        (changed(BRIDGED, networks=(Network(network="default"),)), ("a",), "the plan does not say"),  # behind NAT
        (BRIDGED, (), "this guest shows no virtio network interface, or several"),
        (BRIDGED, ("enp1s0", "enp2s0"), "this guest shows no virtio network interface, or several"),
        (BRIDGED, ("a b",), "its network interface has an odd name"),
    ],
)
def test_no_socket_interface_where_it_is_not_known(
    tmp_path: Path, guest: PlannedGuest, names: tuple[str, ...], why: str
) -> None:
    made = with_networks(tmp_path, guest, *names)
    made.apply()
    assert SOCKET not in read_as_nccl(conf(made))
    assert f"# No {SOCKET}: {why}" in conf(made)


def test_a_nic_without_a_name_may_need_tcp(tmp_path: Path) -> None:
    made = with_networks(tmp_path, BRIDGED, "enp1s0")
    shutil.rmtree(made.root / "sys/devices" / WHERE[NIC] / NIC / "infiniband")
    made.apply()
    assert f"# No {SOCKET}: the planned NICs have no names" in conf(made)


def test_the_traffic_class_is_only_what_the_intent_declares_for_all_nics(tmp_path: Path) -> None:
    nic = next(device for device in TWO_CELLS.devices if device.kind == "nic")

    def table(roce: Roce) -> str:
        plan = msgspec.structs.replace(plan_of(TWO_CELLS), intent=Intent(version=1, fabric=NetworkIntent(roce=roce)))
        return guest_files(plan, TWO_CELLS.name).bundle["hosttune-guest.conf"]

    assert "traffic_class 106\n" in table(Roce(traffic_class=106))
    assert "traffic_class 106\n" in table(Roce(traffic_class=106, nics=(nic.address,)))
    assert "traffic_class" not in table(Roce(traffic_class=106, nics=("0000:ee:00.0",)))
    assert "traffic_class" not in table(Roce(mtu=9000))
    made = make(tmp_path, TWO_CELLS)
    (made.bundle / "hosttune-guest.conf").write_text(table(Roce(traffic_class=106)))
    installed(made).apply()
    assert read_as_nccl(conf(made)) == {"NCCL_TOPO_FILE": TOPOLOGY, "NCCL_IB_HCA": "=mlx5_4", "NCCL_IB_TC": "106"}


# --- the check ------------------------------------------------------------------------------------------------------

GOOD = f"# why\nNCCL_TOPO_FILE={TOPOLOGY}\nNCCL_IB_HCA==mlx5_0,mlx5_1\n"
NICS = ("0000:05:00.0", "0000:06:00.0")
OWN = "0000:01:00.0"
PATH = "/etc/nccl.conf"


def checked(text: str | None, *names: str | None, **changes: Any) -> CheckResult:
    nics = tuple(Nic(address=address, rdma=name) for address, name in zip(NICS, names, strict=True))
    plan = GuestPlan(name="a", library=ExpectedLibrary(path=PATH, topology=TOPOLOGY, nics=NICS))
    files = {PATH: text, "/root/.nccl.conf": None}
    fields: dict[str, Any] = {"guest_plan": plan, "library_files": files, "host": Host(nics=nics)} | changes
    found = [one for one in judge(Evidence(inside=True, **fields)) if one.check == "guest-library-file"]
    return next(one for one in found if one.subject != UCX_FILE)


def test_the_file_of_the_plan_passes() -> None:
    assert checked(GOOD, "mlx5_0", "mlx5_1").outcome == "pass"


@pytest.mark.parametrize(
    ("text", "actual"),
    [
        (None, "no such file"),
        ("", "no setting"),
        (f"NCCL_TOPO_FILE={TOPOLOGY}\n", f"NCCL_TOPO_FILE={TOPOLOGY}"),
        (GOOD + "NCCL_ALGO=Ring\n", f"NCCL_TOPO_FILE={TOPOLOGY}, NCCL_IB_HCA==mlx5_0,mlx5_1, NCCL_ALGO=Ring"),
        (f"NCCL_IB_HCA==mlx5_9\n{GOOD}", f"NCCL_IB_HCA==mlx5_9, NCCL_TOPO_FILE={TOPOLOGY}"),  # the first one counts
        (GOOD.replace("==", "="), f"NCCL_TOPO_FILE={TOPOLOGY}, NCCL_IB_HCA=mlx5_0,mlx5_1"),
        (GOOD.replace("NCCL_IB", "export NCCL_IB"), f"NCCL_TOPO_FILE={TOPOLOGY}, export NCCL_IB_HCA==mlx5_0,mlx5_1"),
    ],
)
def test_any_other_file_fails(text: str | None, actual: str) -> None:
    found = checked(text, "mlx5_0", "mlx5_1")
    assert (found.outcome, found.actual) == ("fail", actual)
    assert "hosttune-guest" in (found.hint or "")


@pytest.mark.parametrize(
    ("own", "outcome"),
    [
        (None, "pass"),
        ("# nothing\n", "pass"),
        ("NCCL_IB_HCA==mlx5_0,mlx5_1\n", "pass"),  # as the plan says
        ("NCCL_ALGO=Ring\n", "warn"),
        ("NCCL_IB_HCA=mlx5\n", "warn"),
        ("not a setting\n", "pass"),
    ],
)
def test_the_file_of_the_user_comes_first(own: str | None, outcome: str) -> None:
    """NCCL reads ~/.nccl.conf before /etc/nccl.conf, and the first one counts."""
    found = checked(GOOD, "mlx5_0", "mlx5_1", library_files={PATH: GOOD, "/root/.nccl.conf": own})
    assert found.outcome == outcome
    assert outcome != "warn" or "/root/.nccl.conf comes first for root" in (found.actual or "")
    assert checked(GOOD, "mlx5_0", "mlx5_1", library_files={PATH: GOOD}).outcome == "unknown"


def ports_of(*names: str | None, each: int = 1) -> dict[str, NicPorts]:
    return {
        at: NicPorts(rdma=tuple(RdmaPort(device=name, number=n + 1) for n in range(each)) if name else ())
        for at, name in zip(NICS, names, strict=True)
    }


UCX = "# why\nUCX_NET_DEVICES=mlx5_0:1,mlx5_1:1\n"


@pytest.mark.parametrize(
    ("text", "ports", "outcome"),
    [
        (UCX, ports_of("mlx5_0", "mlx5_1"), "pass"),
        (UCX, ports_of("mlx5_0", "mlx5_2"), "fail"),  # renamed since the last boot
        (UCX, ports_of("mlx5_0", "mlx5_1", each=2), "fail"),
        (UCX + "UCX_TLS=tcp\n", ports_of("mlx5_0", "mlx5_1"), "fail"),
        ("# No UCX_NET_DEVICES: no port\n", ports_of("mlx5_0", "mlx5_1"), "fail"),
        (None, ports_of("mlx5_0", "mlx5_1"), "fail"),
        (UCX, ports_of("mlx5_0", None), "unknown"),
        (UCX, {}, "unknown"),
        (UCX, None, "unknown"),
        ("unread", ports_of("mlx5_0", "mlx5_1"), "unknown"),
    ],
)
def test_the_devices_of_ucx_are_those_of_the_plan(
    text: str | None, ports: dict[str, NicPorts] | None, outcome: str
) -> None:
    plan = GuestPlan(name="a", library=ExpectedLibrary(path=PATH, topology=TOPOLOGY, nics=NICS))
    files = {} if text == "unread" else {UCX_FILE: text}
    found = judge(Evidence(inside=True, guest_plan=plan, library_files=files, ports=ports, host=Host()))
    assert [one.outcome for one in found if one.subject == UCX_FILE] == [outcome]
    none = GuestPlan(name="a", library=ExpectedLibrary(path=PATH, topology=TOPOLOGY))
    found = judge(Evidence(inside=True, guest_plan=none, library_files=files, ports=ports, host=Host()))
    assert not [one for one in found if one.subject == UCX_FILE], "the plan gives it no NIC"


def test_the_socket_interface_and_the_traffic_class_are_compared() -> None:
    library = ExpectedLibrary(path=PATH, topology=TOPOLOGY, nics=NICS, own_network=True, traffic_class=106)
    nics = (*(Nic(address=at, rdma=f"mlx5_{n}") for n, at in enumerate(NICS)), Nic(address=OWN, interfaces=("eth0",)))
    virtio = PciDevice(address=OWN, driver="virtio-pci")
    changes = {"guest_plan": GuestPlan(name="a", library=library), "host": Host(nics=nics, pci=(virtio,))}
    whole = GOOD + "NCCL_SOCKET_IFNAME==eth0\nNCCL_IB_TC=106\n"
    assert checked(whole, None, None, **changes).outcome == "pass"
    assert checked(whole.replace("=eth0", "=eth1"), None, None, **changes).outcome == "fail"
    assert checked(whole.replace("106", "0"), None, None, **changes).outcome == "fail"
    assert checked(GOOD, None, None, **changes).outcome == "fail"
    other = Host(nics=nics, pci=(PciDevice(address=OWN, driver="bnxt_en"),))
    assert checked(GOOD, None, None, **{**changes, "host": other}).outcome == "unknown"


def test_what_is_not_known_never_passes() -> None:
    assert checked(GOOD, "mlx5_0", None).outcome == "unknown"
    assert checked(GOOD, "mlx5_0", "mlx5_1", host=Host()).outcome == "unknown"
    assert checked(GOOD, "mlx5_0", "mlx5_1", library_files={}).outcome == "unknown"
    assert checked(GOOD, "mlx5_0", "mlx5_1", library_files=None).outcome == "unknown"
    broken = Problem(what="the guest's own plan is unreadable", where="x", why="cut off")
    assert checked(GOOD, "mlx5_0", "mlx5_1", guest_plan=None, problems=(broken,)).outcome == "unknown"


def test_a_guest_that_was_not_planned_is_skipped() -> None:
    assert checked(GOOD, "mlx5_0", "mlx5_1", guest_plan=None).outcome == "skip"
    assert checked(GOOD, "mlx5_0", "mlx5_1", guest_plan=GuestPlan(name="a")).outcome == "skip"


def test_the_files_are_read_only_on_a_planned_guest(tmp_path: Path) -> None:
    (tmp_path / "etc/hosttune-guest").mkdir(parents=True)
    (tmp_path / "etc/nccl.conf").write_text(GOOD)
    reader = Reader(Capture(str(tmp_path)))
    assert read_library_files(reader, Host()) is None
    (tmp_path / "etc/hosttune-guest/expected.json").write_text("{}")
    (tmp_path / "root").mkdir()
    (tmp_path / "root/.nccl.conf").write_text("NCCL_ALGO=Ring\n")
    (tmp_path / "etc/hosttune-guest/ucx.env").write_text(UCX)
    found = read_library_files(Reader(Capture(str(tmp_path))), Host())
    assert found is not None
    assert (found["/root/.nccl.conf"], found[UCX_FILE]) == ("NCCL_ALGO=Ring\n", UCX)
    assert found["/etc/nccl.conf"] == GOOD  # byte for byte: a blank at the end would be part of a value


def access(check: str, found: RdmaAccess | None, **changes: Any) -> CheckResult:
    plan = GuestPlan(name="a", library=ExpectedLibrary(path=PATH, topology=TOPOLOGY, nics=NICS))
    host = Host(gpus=(Gpu(address="0000:01:00.0", vendor="nvidia"),), kernel="6.8.0-45-generic")
    fields: dict[str, Any] = {"guest_plan": plan, "rdma_access": found, "host": host} | changes
    (result,) = (one for one in judge(Evidence(inside=True, **fields)) if one.check == check)
    return result


@pytest.mark.parametrize(
    ("nodes", "outcome"),
    [
        (("rdma_cm", "uverbs0", "uverbs1"), "pass"),
        (("rdma_cm", "uverbs0"), "fail"),
        ((), "fail"),
        (None, "unknown"),
    ],
)
def test_each_planned_nic_has_its_node(nodes: tuple[str, ...] | None, outcome: str) -> None:
    assert access("guest-rdma-nodes", RdmaAccess(nodes=nodes)).outcome == outcome
    assert access("guest-rdma-nodes", None).outcome == "unknown"
    assert access("guest-rdma-nodes", RdmaAccess(nodes=nodes), guest_plan=None).outcome == "skip"


@pytest.mark.parametrize(("limit", "outcome"), [(UNLIMITED, "pass"), (8 << 20, "warn"), (0, "warn"), (None, "unknown")])
def test_locked_memory(limit: int | None, outcome: str) -> None:
    assert access("guest-memlock", RdmaAccess(memlock=limit)).outcome == outcome
    assert access("guest-memlock", None).outcome == "unknown"
    assert access("guest-memlock", RdmaAccess(memlock=limit), guest_plan=None).outcome == "skip"


LIMITS = "Limit                     Soft Limit           Hard Limit           Units     \n"


@pytest.mark.parametrize(
    ("line", "limit"),
    [
        ("Max locked memory         8388608              8388608              bytes     \n", 8 << 20),
        ("Max locked memory         unlimited            unlimited            bytes     \n", UNLIMITED),
        ("Max locked memory         -1                   unlimited            bytes     \n", None),
        ("", None),
    ],
)
def test_the_limit_of_locked_memory_is_read(tmp_path: Path, line: str, limit: int | None) -> None:
    (tmp_path / "etc/hosttune-guest").mkdir(parents=True)
    (tmp_path / "etc/hosttune-guest/expected.json").write_text("{}")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/limits").write_text(LIMITS + line)
    found = read_rdma_access(Reader(Capture(str(tmp_path))), Host())
    assert found is not None
    assert found.memlock == limit


OLD = Host(gpus=(Gpu(address="0000:01:00.0", vendor="nvidia"),), kernel="5.4.0-1")


@pytest.mark.parametrize(
    ("modules", "drivers", "changes", "outcome"),
    [
        ({"nvidia": True}, {}, {}, "pass"),
        ({"nvidia": False}, {"nvidia": True}, {}, "pass"),  # dma-buf
        ({}, {"nvidia": True}, {}, "pass"),
        ({"nvidia": False}, {"nvidia": False}, {}, "fail"),
        ({"nvidia": False}, {"nvidia": True}, {"host": OLD}, "fail"),
        ({"nvidia": False}, {}, {}, "unknown"),
        ({}, {"nvidia": False}, {}, "unknown"),
        ({}, {}, {}, "unknown"),
        ({"nvidia": True}, {}, {"host": Host()}, "unknown"),  # no GPU is known
        ({"amd": True}, {}, {"host": Host(gpus=(Gpu(address="0000:01:00.0", vendor="amd"),))}, "skip"),
        ({"nvidia": True}, {}, {"guest_plan": GuestPlan(name="a")}, "skip"),
    ],
)
def test_a_way_to_the_memory_of_the_gpus(
    modules: dict[str, bool], drivers: dict[str, bool], changes: dict[str, Any], outcome: str
) -> None:
    found = RdmaAccess(peer_modules=modules, open_drivers=drivers)
    assert access("guest-gpudirect", found, **changes).outcome == outcome


@pytest.mark.parametrize(
    ("text", "opened"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build", {"nvidia": True}),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08", {"nvidia": False}),
        ("", {}),
    ],
)
def test_what_a_guest_has_is_read(tmp_path: Path, text: str, opened: dict[str, bool]) -> None:
    for folder in ("etc/hosttune-guest", "dev/infiniband/uverbs0", "sys/module/nvidia_peermem", "proc/driver/nvidia"):
        (tmp_path / folder).mkdir(parents=True)
    assert read_rdma_access(Reader(Capture(str(tmp_path))), Host()) is None
    (tmp_path / "etc/hosttune-guest/expected.json").write_text("{}")
    (tmp_path / "proc/driver/nvidia/version").write_text(text)
    found = read_rdma_access(Reader(Capture(str(tmp_path))), Host())
    assert found == RdmaAccess(nodes=("uverbs0",), peer_modules={"nvidia": True}, open_drivers=opened)
