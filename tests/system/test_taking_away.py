"""A guest that a plan takes away: its definition, files and settings go back, its variables are kept, and cuts at every
write leave old or new."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from faultkills import options_of
from faultkinds import DIGEST, EXAMPLES, VM, Example, host
from faultlab import Faults, difference, fresh_root, kill, quiet, run_forked, site_on, transactions, tree_of
from msgspec.structs import replace
from sweeps import sample

from hosttune.domain.writer import domain_xml
from hosttune.errors import BadInput, Refused
from hosttune.hypervisor.definition import PlannedDefinition
from hosttune.hypervisor.removed import forget
from hosttune.machine.scratch import Scratch
from hosttune.model.intent import Intent
from hosttune.model.plan import Action, Plan, Removal
from hosttune.model.result import Result
from hosttune.transaction import ApplyOptions, apply_plan, recover, revert, status
from hosttune.transaction.booting import reapply
from hosttune.transaction.site import Site

GOVERNOR = "sys/devices/system/cpu/cpu{}/cpufreq/scaling_governor"
POOL = "sys/devices/system/node/node0/hugepages/hugepages-2048kB"
NVRAM = "var/lib/libvirt/qemu/nvram/vm_VARS.fd"
ANOTHER_BOOT = "22222222-3333-4444-8555-666666666666"
UUID = "11111111-2222-4333-8444-555555555555"
FILES = {
    **EXAMPLES["guest"].files,
    **{GOVERNOR.format(cpu): "powersave\n" for cpu in (2, 3)},
    f"{POOL}/nr_hugepages": "3\n", f"{POOL}/free_hugepages": "3\n",
}  # fmt: skip
GUEST = replace(VM, uuid=UUID, page_bytes=2 << 20)
FIRST = Example(
    "one guest", FILES, (("hugepages", f"/{POOL}/nr_hugepages", 64), ("governor", "cpus 2-3", "performance")),
    guests=(GUEST,),
)  # fmt: skip


def back(kind: str, target: str, current: object, want: object) -> Action:
    return Action(
        id=f"{kind}:{target}", kind=kind, target=target, current=current, want=want, effect="now", needed=False,
        reversible=True, why="no guest needs it", change="back",
    )  # fmt: skip


AWAY = Plan(
    intent=Intent(version=1, guests=()), host_digest=DIGEST, hostname="scratch", based_on=1,
    removals=(Removal(name="vm", uuid=UUID),),
    actions=(
        back("hugepages", f"/{POOL}/nr_hugepages", 64, 3), back("governor", "cpus 2-3", "performance", "powersave")
    ),
)  # fmt: skip


def take_away(site: Site) -> tuple[Result, int]:
    return apply_plan(site, AWAY, ApplyOptions(), host, lambda todo: True, quiet)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return applied(tmp_path / "root")


def applied(root: Path) -> Path:
    fresh_root(root, FIRST.files, FIRST.links)
    assert apply_plan(site_on(root), FIRST.plan, options_of(FIRST), host, lambda todo: True, quiet)[1] == 0
    put(root, NVRAM, "variables")
    return root


def put(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
    (root / name).chmod(0o600)


def kept(root: Path) -> list[str]:
    folder = root / "var/lib/hosttune/removed"
    return sorted(path.name for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []


def test_all_that_it_needed_goes_back_and_its_variables_are_kept(root: Path) -> None:
    result, code = take_away(site_on(root))
    assert (code, {one.outcome for one in result.entries}) == (0, {"reverted"})
    assert (result.entries[0].action, result.entries[-1].action[:9]) == ("guest:vm", "hugepages")
    found = site_on(root).in_force()
    assert found is not None
    assert (found.guests, found.settings, found.last) == ((), (), 2)
    assert not (root / NVRAM).exists()
    assert kept(root) == ["%" + NVRAM.replace("/", "%"), "definition"]
    assert status(site_on(root))[0].entries == ()
    assert revert(site_on(root), quiet)[0].entries == ()  # nothing is left of it


def test_its_variables_come_back_with_the_same_guest_and_never_with_another(root: Path) -> None:
    take_away(site_on(root))
    system = Scratch(str(root))
    other = replace(GUEST, uuid="99999999-2222-4333-8444-555555555555")
    for guest, text in ((other, None), (GUEST, "variables")):
        xml = domain_xml(replace(FIRST.plan, guests=(guest,)), "vm")
        PlannedDefinition.of("vm").write(system, xml)
        assert ((root / NVRAM).read_text() if (root / NVRAM).exists() else None) == text
        if guest is other:
            PlannedDefinition.of("vm").write(system, None)
    assert kept(root) == []


def test_what_was_kept_can_be_deleted(root: Path) -> None:
    take_away(site_on(root))
    assert forget(Scratch(str(root)), "vm") == (f"/{NVRAM}",)
    assert kept(root) == []
    with pytest.raises(BadInput, match="nothing is kept of a guest 'vm'"):
        forget(Scratch(str(root)), "vm")


@pytest.mark.parametrize(
    ("path", "way"),
    [
        (".hosttune/commands/virsh-domstate-vm", "virsh shutdown vm"),
        ("var/lib/libvirt/qemu/save/vm.save", "virsh managedsave-remove vm"),
        ("var/lib/libvirt/qemu/snapshot/vm/first.xml", "virsh snapshot-delete vm"),
        ("var/lib/libvirt/qemu/checkpoint/vm/first.xml", "virsh checkpoint-delete vm"),
    ],
)
def test_what_would_be_lost_refuses_it_and_names_the_way(root: Path, path: str, way: str) -> None:
    put(root, path, "running\n")
    before = tree_of(root)
    for job in (take_away, lambda site: revert(site, quiet)):
        with pytest.raises(Refused, match=way if job is take_away or "domstate" not in path else "virsh shutdown"):
            job(site_on(root))
    assert difference(before, tree_of(root)) == []


def test_a_plan_with_another_way_back_than_the_journals_is_stale(root: Path) -> None:
    wrong = replace(AWAY, actions=(back("governor", "cpus 2-3", "performance", "ondemand"),))
    with pytest.raises(Refused, match="its original is powersave"):
        apply_plan(site_on(root), wrong, ApplyOptions(), host, lambda todo: True, quiet)


UPDATE = replace(
    FIRST.plan, based_on=1, guests=(replace(GUEST, emulator_cpus="0", change="update"),),
    actions=(
        *(replace(one, current=64, want=32) for one in FIRST.plan.actions if one.kind == "hugepages"),
        back("governor", "cpus 2-3", "performance", "powersave"),
    ),
)  # fmt: skip


def update(site: Site) -> tuple[Result, int]:
    return apply_plan(site, UPDATE, ApplyOptions(), host, lambda todo: True, quiet)


@pytest.mark.parametrize("job", [take_away, update])
def test_a_cut_at_every_write_leaves_old_or_new(
    root: Path, tmp_path: Path, job: Callable[[Site], tuple[Result, int]]
) -> None:
    old = tree_of(root)
    points = run_forked(root, job, Faults(), watch=False).count
    new = tree_of(root)
    assert points > 20
    assert difference(old, new)
    for at in sample(f"cut {job.__name__}", range(1, points + 1, 1 if points < 60 else points // 40), 6):
        where = applied(tmp_path / "again")
        ended = run_forked(where, job, Faults(at=at, act=kill), watch=False)
        assert ended.code is None, at
        assert recover(site_on(where), quiet)[1] == 0, (at, ended.fired)
        left = difference(new, tree_of(where)) and difference(old, tree_of(where))
        copies = [text for text in left if "/removed/vm-" in text and text.endswith(" is left")]
        assert left == copies, (at, ended.fired, left)  # a copy beside the original that is in its place does no harm
        assert kept(where) or (where / NVRAM).read_text() == "variables"
        assert not any(one.is_open for one in transactions(where))


class WithoutLibvirt(Scratch):
    """libvirt's daemon waits for the boot unit, so a question to it would wait for ever."""

    def query(self, name: str, live: Callable[[], str | None]) -> str | None:
        assert not name.startswith("virsh-"), name
        return super().query(name, live)


def test_the_boot_unit_does_not_ask_libvirt_whose_pages_are_used(root: Path) -> None:
    """Others have all pages but few, and more than was applied: no drift, and none of our guests can run yet."""
    put(root, f"{POOL}/nr_hugepages", "90\n")
    put(root, f"{POOL}/free_hugepages", "10\n")
    site = msgspec.structs.replace(site_on(root, boot_id=ANOTHER_BOOT), system=WithoutLibvirt(str(root)))
    result, code = reapply(site, quiet)
    assert (code, [one for one in result.drift if "hugepages" in one.action]) == (0, [])


@pytest.mark.parametrize("job", [take_away, update])
def test_a_power_cut_at_a_write_leaves_old_or_new(
    root: Path, tmp_path: Path, job: Callable[[Site], tuple[Result, int]]
) -> None:
    """The journal's end is torn, and the boot has its own values: recover, then the boot unit."""
    sides = {"old": tree_of(root)}
    points = run_forked(root, job, Faults(), watch=False).count
    sides["new"] = tree_of(root)
    ended = set()
    for at in sample(f"power cut {job.__name__}", range(1, points + 1), 4):
        where = applied(tmp_path / "again")
        run_forked(where, job, Faults(at=at, act=kill), watch=False)
        with max(where.glob("var/lib/hosttune/transactions/*.jsonl")).open("ab") as journal:
            journal.write(b"\0" * 512)
        for name, content in FILES.items():
            if name.startswith("sys/") and isinstance(content, str):
                (where / name).write_text(content)
        booted = site_on(where, boot_id=ANOTHER_BOOT)
        assert recover(booted, quiet)[1] == 0, at
        assert reapply(booted, quiet)[1] == 0, at
        left = {name: difference(side, tree_of(where)) for name, side in sides.items()}
        best = min(left, key=lambda name: len(left[name]))
        assert [text for text in left[best] if "/removed/vm-" not in text] == [], (at, best)
        assert not any(one.is_open for one in transactions(where))
        ended.add(best)
    assert ended == {"old", "new"}
