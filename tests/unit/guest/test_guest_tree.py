"""The guest's own PCIe tree: the grade of each pair is the host's, whatever the host is like."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from guest_tree_oracle import Nccl, Sysfs, Tree, host_grade, merged, read_mask
from guestplans import everything, gpu, nic, only, planned, skeleton, witnesses
from guesttrees import FILES, MATRICES, Hub, Made, Root, host_of, host_of_file, read_matrix

import hosttune
from hosttune.domain.writer import domain_xml
from hosttune.inventory.devices import read_catalogue
from hosttune.model.host import Host
from hosttune.model.plan import Plan
from hosttune.planning.pcie.tree import build_tree

HERE = Path(__file__).parents[2]
EXAMPLE = HERE.parent / "examples" / "hgx-h200-8.tar.xz"
MATRIX_NAMES = sorted(path.name.removesuffix(".txt") for path in MATRICES.glob("*.txt"))
FILE_NAMES = sorted(path.name.removesuffix(".xml") for path in FILES.glob("*.xml"))


# --- the grade of each pair ------------------------------------------------------------------------------------------

HOSTS = {
    "example": str(EXAMPLE),
    "xe9680": "derived/xe9680-8xh100-lspci",
    "nps4": "derived/oci-bm-gpu-a100-b4-nps4",
    "ndv4": "derived/azure-ndv4-8xa100-vm",
    "mi300x": "derived/amd-mi300x-8-vm",
}


@pytest.fixture(scope="module")
def hosts(host_root: Callable[[str], Path]) -> Callable[[str], Host]:
    @cache
    def of(name: str) -> Host:
        where = HOSTS[name]
        return hosttune.discover(where if where.endswith(".xz") else str(host_root(where)))

    return of


@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("name", HOSTS)
def test_each_pair_has_its_grade_of_the_host(hosts: Callable[[str], Host], name: str, count: int) -> None:
    host = hosts(name)
    pci = {d["address"]: d for d in json.loads(host.to_json())["pci"]}
    gpus = [gpu.address for gpu in host.gpus if gpu.vendor != "other"][-count:]
    used = {nic.address.rpartition(".")[0] for nic in host.nics if nic.in_use is not None}
    nics = [nic.address for nic in host.nics if nic.address.rpartition(".")[0] not in used]
    plan = planned(host, gpus=gpus, nics=nics, memory="64GiB")
    tree, nccl = witnesses(plan)
    pairs = {(gpu, other): host_grade(pci, gpu, other) for gpu in gpus for other in (*gpus, *nics) if gpu != other}
    assert len(pairs) >= count * 8
    assert {pair: tree.grade(*pair) for pair in pairs} == pairs
    assert {pair: nccl.grade(*map(tree.at, pair)) for pair in pairs} == {p: merged(g) for p, g in pairs.items()}


CAPTURES = sorted(f"{path.parent.name}/{path.name.partition('.tar')[0]}" for path in (HERE / "hosts").glob("*/*.tar.*"))


@pytest.mark.parametrize("name", ["example", *CAPTURES])
def test_each_pair_has_its_grade_of_sysfs(host_root: Callable[[str], Path], pristine: Path, name: str) -> None:
    """1 to 8 GPUs with every NIC and drive, by the files of the host's kernel and the controllers of the guest."""
    root = pristine if name == "example" else host_root(name)
    host = hosttune.discover(str(root))
    gpus = [gpu.address for gpu in host.gpus]
    others = [*(nic.address for nic in host.nics), *(drive.address for drive in host.nvme)]
    sysfs, node = Sysfs(root), {device.address: device.numa_node for device in host.pci}
    if not all((sysfs.devices / end).is_symlink() for end in (*gpus, *others)):
        pytest.skip("this capture has no links: nothing shows where its functions are")
    for count in range(1, min(8, len(gpus)) + 1):
        ends = [*gpus[-count:], *others]
        nodes = sorted({at for end in ends if (at := node[end]) is not None})
        cells = {end: None if (at := node[end]) is None else nodes.index(at) for end in ends}
        tree = Tree(skeleton(build_tree(read_catalogue(host), cells, max(1, len(nodes)), 2)))
        for one in gpus[-count:]:
            for other in ends:
                if one != other and (cells[one] is None) == (cells[other] is None):
                    assert tree.grade(one, other) == sysfs.grade(one, other), (count, one, other)


def seen(plan: Plan, ends: tuple[str, str], grade: str) -> str:
    """What the guest's own tree shows of a grade: between nodes of which it has no cell, it can tell nothing apart."""
    guest = only(plan)
    nodes = {device.address: device.host_node for device in guest.devices}
    homes = {int(cell.host_nodes) for cell in guest.cells}
    return "CPU" if grade == "SYS" and homes.isdisjoint(nodes[end] for end in ends) else grade


@pytest.mark.parametrize("name", MATRIX_NAMES)
def test_each_pair_has_its_grade_of_the_matrix(name: str) -> None:
    """PIX and PXB are the matrix's; what is off-switch is judged by nodes, for nvidia-smi itself errs there."""
    matrix = read_matrix(name)
    made, nodes = host_of(matrix)
    plan = everything(made)
    tree, nccl = witnesses(plan)
    compared = 0
    for card in matrix.gpus:
        for other in (*matrix.gpus, *matrix.nics):
            said = matrix.cells.get((card, other), "X")
            want = said if said in ("PIX", "PXB") else "CPU" if nodes[card] == nodes[other] else "SYS"
            if card != other and not said.startswith("NV"):  # NVLink hides how the two are joined by PCIe
                ends = made.at[card], made.at[other]
                assert merged(tree.grade(*ends)) == seen(plan, ends, want), (card, other)
                assert nccl.grade(*map(tree.at, ends)) == want, (card, other)
                compared += 1
    assert compared >= len(matrix.gpus) * len(matrix.nics)


@pytest.mark.parametrize("name", FILE_NAMES)
def test_each_pair_has_its_grade_of_the_nccl_file(name: str) -> None:
    made, gpus, nics = host_of_file(name)
    theirs = Nccl((FILES / f"{name}.xml").read_text())
    plan = everything(made)
    tree, ours = witnesses(plan)
    assert gpus
    for card in gpus:
        for other in (*gpus, *nics):
            if card != other:
                ends = made.at[card], made.at[other]
                assert merged(tree.grade(*ends)) == seen(plan, ends, theirs.grade(card, other)), (card, other)
                assert ours.grade(*map(tree.at, ends)) == theirs.grade(card, other), (card, other)


def test_the_oracle_can_tell_the_grades_apart() -> None:
    made = Made([Root((Hub((Hub((gpu("a"), nic("b"))), nic("c"))),)), Root((nic("d"),)), Root((nic("e"),), 1)], nodes=2)
    pci = {d["address"]: d for d in made.pci}
    grades = [host_grade(pci, made.at["a"], made.at[other]) for other in "bcde"]
    assert grades == ["PIX", "PXB", "NODE", "SYS"]


# --- what hosts are like ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("typed", [True, False], ids=["port types", "no port types"])
def test_a_nic_shared_by_two_gpus(typed: bool) -> None:
    made = Made([Root((Hub((gpu("g0"), gpu("g1"), nic("n"))),))], nodes=1, typed=typed)
    tree, nccl = witnesses(everything(made))
    for one in ("g0", "g1"):
        assert tree.grade(made.at[one], made.at["n"]) == "PIX"
        assert nccl.grade(tree.at(made.at[one]), tree.at(made.at["n"])) == "PIX"


@pytest.mark.parametrize("typed", [True, False], ids=["port types", "no port types"])
def test_cascaded_switches_stay_cascaded(typed: bool) -> None:
    below = Hub((Hub((gpu("g0"), nic("n0"))), Hub((gpu("g1"), nic("n1"))), nic("n2")))
    made = Made([Root((below,))], nodes=1, typed=typed)
    tree, _ = witnesses(everything(made))
    grades = {(g, n): tree.grade(made.at[g], made.at[n]) for g in ("g0", "g1") for n in ("n0", "n1", "n2")}
    assert grades == {
        ("g0", "n0"): "PIX",
        ("g0", "n1"): "PXB",
        ("g0", "n2"): "PXB",
        ("g1", "n0"): "PXB",
        ("g1", "n1"): "PIX",
        ("g1", "n2"): "PXB",
    }


def test_sub_numa_clusters_with_three_one_three_and_one_gpu() -> None:
    counts = (3, 1, 3, 1)
    roots = [
        Root((Hub((gpu(f"g{node}{n}"), nic(f"n{node}{n}"))),), node) for node, c in enumerate(counts) for n in range(c)
    ]
    made = Made(roots, nodes=4)
    plan = everything(made)
    tree, nccl = witnesses(plan)
    guest = only(plan)
    assert [cell.host_nodes for cell in guest.cells] == ["0", "1", "2", "3"]
    assert sorted(c.node for c in guest.controllers if c.node is not None) == [0, 0, 0, 1, 2, 2, 2, 3]
    for node, count in enumerate(counts):
        for n in range(count):
            assert tree.node(made.at[f"g{node}{n}"]) == str(node)
            assert nccl.numaid(tree.at(made.at[f"g{node}{n}"])) == str(node)
            assert tree.grade(made.at[f"g{node}{n}"], made.at[f"n{node}{n}"]) == "PIX"


def test_a_host_without_switches_has_a_root_port_for_each_slot() -> None:
    made = Made([Root((gpu("a"),)), Root((nic("b"),))], nodes=1)
    guest = only(everything(made))
    assert not [c for c in guest.controllers if "switch" in c.model]
    assert Tree(domain_xml(everything(made), "g")).grade(made.at["a"], made.at["b"]) == "NODE"


def test_several_pci_domains_on_equal_buses() -> None:
    roots = [Root((Hub((gpu(f"g{d}"), nic(f"n{d}"))),), d % 2, domain=d) for d in (0, 1, 2, 0x10000)]
    made = Made(roots, nodes=2)
    tree, nccl = witnesses(everything(made))
    assert tree.at(made.at["g0"]) != tree.at(made.at["g1"])
    assert tree.grade(made.at["g65536"], made.at["n65536"]) == "PIX"
    assert nccl.grade(tree.at(made.at["g0"]), tree.at(made.at["n2"])) == "CPU"
    assert nccl.grade(tree.at(made.at["g0"]), tree.at(made.at["n1"])) == "SYS"


def test_devices_of_unknown_node_hang_on_the_root_bus_and_keep_their_switch() -> None:
    made = Made([Root((Hub((gpu("a"), nic("b"))),), None), Root((gpu("c"),), 0)], nodes=2)
    plan = everything(made, numa=2, vcpus=8)
    tree, nccl = witnesses(plan)
    assert tree.node(made.at["a"]) is None
    assert tree.node(made.at["c"]) == "0"
    assert tree.grade(made.at["a"], made.at["b"]) == "PIX"
    assert nccl.numaid(tree.at(made.at["a"])) == "-1"


def unknown(made: Made, *names: str) -> Made:
    """The same host, on which nothing tells the node of these devices."""
    for device in made.pci:
        if device["address"] in {made.at[name] for name in names}:
            device |= {"numa_node": None, "numa_source": "unknown"}
    return made


@pytest.mark.parametrize("lost", ["g1", "n1"])
def test_a_device_of_unknown_node_stays_below_the_switch_that_it_shares(lost: str) -> None:
    roots = [Root((Hub((gpu(f"g{node}"), nic(f"n{node}"))),), node) for node in (0, 1)]
    made = unknown(Made(roots, nodes=2), lost)
    plan = everything(made, numa=2, vcpus=8)
    tree, nccl = witnesses(plan)
    for one, other, grade in (("g1", "n1", "PIX"), ("g0", "n0", "PIX"), ("g0", "n1", "SYS"), ("g1", "n0", "SYS")):
        assert tree.grade(made.at[one], made.at[other]) == grade
        assert nccl.grade(tree.at(made.at[one]), tree.at(made.at[other])) == grade
    (device,) = [device for device in only(plan).devices if device.address == made.at[lost]]
    assert (device.host_node, device.guest_cell) == (None, 1)
    assert tree.node(made.at[lost]) == nccl.numaid(tree.at(made.at[lost])) == "1"


def test_below_cascaded_switches_the_nearest_one_that_is_shared_tells() -> None:
    below = Hub((Hub((gpu("g0"), nic("n0"))), Hub((gpu("g1"), nic("n1")))))
    made = unknown(Made([Root((gpu("g"),), 0), Root((below,), 1)], nodes=2), "n0", "g1", "n1")
    tree, nccl = witnesses(everything(made, numa=2, vcpus=8))
    grades = {("g0", "n0"): "PIX", ("g0", "n1"): "PXB", ("g1", "n1"): "PIX", ("g1", "n0"): "PXB", ("g", "n1"): "SYS"}
    assert {pair: tree.grade(*(made.at[name] for name in pair)) for pair in grades} == grades
    assert {pair: nccl.grade(*(tree.at(made.at[name]) for name in pair)) for pair in grades} == grades


def test_a_device_of_unknown_node_below_a_switch_off_the_guests_nodes_is_as_far_as_its_sibling() -> None:
    made = unknown(Made([Root((gpu("a"),), 0), Root((Hub((gpu("b"), nic("c"))),), 1)], nodes=2), "c")
    tree, nccl = witnesses(everything(made, numa=1, vcpus=4))
    assert nccl.numaid(tree.at(made.at["b"])) == nccl.numaid(tree.at(made.at["c"])) == "1"
    assert nccl.grade(tree.at(made.at["b"]), tree.at(made.at["c"])) == "PIX"
    assert nccl.grade(tree.at(made.at["a"]), tree.at(made.at["c"])) == "SYS"
    assert tree.grade(made.at["b"], made.at["c"]) == "PIX"


def test_a_switch_with_nothing_of_known_node_tells_no_cell() -> None:
    made = unknown(Made([Root((Hub((gpu("a"), nic("b"))),), 1), Root((gpu("c"),), 0)], nodes=2), "a", "b")
    plan = everything(made, numa=2, vcpus=8)
    tree, _ = witnesses(plan)
    cells = {device.address: device.guest_cell for device in only(plan).devices}
    assert (cells[made.at["a"]], cells[made.at["b"]], cells[made.at["c"]]) == (None, None, 0)
    assert tree.node(made.at["a"]) is None
    assert tree.grade(made.at["a"], made.at["b"]) == "PIX"


def test_functions_of_one_slot_are_in_one_place() -> None:
    made = Made([Root((gpu("a"),), 0), Root((nic("b"),), 1)], nodes=2)
    row = next(device for device in made.pci if device["address"] == made.at["b"])
    second = made.at["b"][:-1] + "1"
    made.pci.append({**row, "address": second})
    row |= {"numa_node": None, "numa_source": "unknown"}
    host = Host.from_json(made.text())
    tree = build_tree(read_catalogue(host), {made.at["a"]: 0, made.at["b"]: None, second: 1}, 2, 2)
    assert tree.addresses[made.at["b"]][:-1] == tree.addresses[second][:-1]
    assert Tree(skeleton(tree)).node(made.at["b"]) == "1"


def test_in_a_guest_of_one_cell_a_device_of_unknown_node_is_of_that_cell_for_nccl() -> None:
    made = Made([Root((gpu("a"),), None)], nodes=1)
    tree, nccl = witnesses(everything(made, vcpus=4))
    assert tree.node(made.at["a"]) is None
    assert nccl.numaid(tree.at(made.at["a"])) == "0"


def test_a_nic_off_the_guests_nodes_stays_far_for_nccl() -> None:
    made = Made([Root((gpu("a"),), 0), Root((nic("b"),), 1)], nodes=2)
    plan = everything(made, numa=1, vcpus=4)
    tree, nccl = witnesses(plan)
    assert tree.grade(made.at["a"], made.at["b"]) == nccl.grade(tree.at(made.at["a"]), tree.at(made.at["b"])) == "SYS"
    assert nccl.numaid(tree.at(made.at["b"])) == "1"  # no node of the guest's
    assert read_mask(str(next(nccl.pci[tree.at(made.at["b"])].iterancestors("cpu")).get("affinity"))) == set(range(4))
