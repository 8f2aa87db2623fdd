"""Kill -9 at every point, for every kind of setting: old or new afterwards, and `recover` brings all back.

The points are found by the lab (`faultlab`); the kinds are those of `hosttune.transaction.kinds`. `make test` takes a
sample of the points, `make lab-full` all. `HOSTTUNE_SWEEP=full pytest --regenerate` on this file writes the figures
that docs/measurements.md quotes (tests/golden/faults.txt).
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
from faultkills import (
    EVERY,
    WHOLE_HOST,
    Tally,
    applying,
    back_at_original,
    killed_at,
    kills_while,
    lab_of,
    recovering,
    reverting,
)
from faultkinds import EXAMPLES
from faultlab import FILE, Ended, Faults, Faulty, Job, effect_names, kill, run_forked, site_on, transactions
from sweeps import FULL, sample

from hosttune.errors import Refused
from hosttune.machine.capture import Capture
from hosttune.model.result import Result
from hosttune.transaction.kinds import kinds
from hosttune.transaction.site import Site

HERE = Path(__file__).parents[1]
# No settings, and never undone: killed in tests/system/test_handover_kills.py, test_handover_network_kills.py,
# test_handover_kills_erasing.py, test_handover_memoryclear.py, test_handover_testguest.py, test_erasing.py. A search of
# memory leaves nothing behind.
HAND_OVER = (
    "hosttune.handover.cleaning",
    "hosttune.handover.gpumemory",
    "hosttune.handover.gpumemory",
    "hosttune.handover.network.virtual",
    "hosttune.handover.partitions",
    "hosttune.handover.erasing.holdback",
    "hosttune.handover.erasing.nvme",
    "hosttune.handover.testguest.session",
)
AGENT = "hosttune.watch.service"  # its own unit, no setting: tests/system/test_watch_install.py
GOLDEN = HERE / "golden" / "faults.txt"

Found = Callable[[str], Tally]


@pytest.fixture(scope="module")
def found() -> Iterator[Found]:
    """found(NAME) is the tally of an example. One process of its own does the work: see `faultkills`."""
    environment = {name: value for name, value in os.environ.items() if name != "HOSTTUNE_STATE"}
    environment["PYTHONPATH"] = os.pathsep.join((str(HERE.parent), str(HERE / "support")))
    with subprocess.Popen(
        [sys.executable, "-m", "faultkills"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        asked, told = process.stdin, process.stdout

        def ask(name: str) -> Tally:
            asked.write(f"{name}\n")
            asked.flush()
            line = told.readline()
            assert line, f"it ended at {name}: see its stderr"
            return Tally(**json.loads(line)["tally"])

        yield ask
        process.stdin.close()


def golden_lines() -> dict[str, str]:
    """Figures by example, as they are published."""
    return dict(line.split(": ", 1) for line in GOLDEN.read_text().splitlines()[3:])


# --- the lab sees what it must -------------------------------------------------------------------------------


def test_changes_are_found_by_introspection(tmp_path: Path) -> None:
    names = effect_names()
    assert {"write", "write_register", "replace", "remove", "change", "tell"} <= set(names)
    arguments: dict[str, tuple[object, ...]] = {
        "write_register": ("/x", 0, b""), "replace": ("/x", b""), "remove": ("/x",), "tidy": ("/x",),
        "change": (("x",),), "tell": ("x", "y", lambda: None),
    }  # fmt: skip
    for name in names:  # a new one shows up here: give it arguments
        with pytest.raises(Refused):
            getattr(Capture(str(tmp_path)), name)(*arguments.get(name, ("/x", "y")))
        assert name in vars(Faulty)


def test_a_write_without_a_journal_is_caught(tmp_path: Path) -> None:
    lab = lab_of(EXAMPLES["ksm"], tmp_path / "root")

    def careless(site: Site) -> tuple[Result, int]:
        site.system.write("/sys/kernel/mm/ksm/run", "2")
        return Result(verb="apply"), 0

    tally = kills_while(lab, careless, ())
    assert (tally.points, tally.kills, tally.recovered) == (2, 2, 1)
    assert [text for text in tally.wrong if "not back" in text] == tally.wrong[:1]


def test_a_change_past_the_system_is_caught(tmp_path: Path) -> None:
    lab = lab_of(EXAMPLES["ksm"], tmp_path / "root")

    def careless(site: Site) -> tuple[Result, int]:
        (lab.root / "sys/kernel/mm/ksm/run").write_text("2\n")
        return Result(verb="apply"), 0

    tally = kills_while(lab, careless, ())
    assert tally.wrong[-1] == "ksm: 1 changes of files through no System"


# --- every kind ----------------------------------------------------------------------------------------------


@pytest.mark.sweep(most=11)
@pytest.mark.parametrize("name", [*EXAMPLES, WHOLE_HOST])
def test_killed_at_every_point(name: str, found: Found, request: pytest.FixtureRequest) -> None:
    tally = found(name)
    assert tally.wrong == []
    assert tally.kills == tally.recovered == tally.old_or_new + tally.between
    if not FULL:
        assert 3 < tally.kills < tally.points
        return
    assert tally.kills == (-(-tally.points // EVERY) if name == WHOLE_HOST else tally.points) > 20
    assert golden_lines()[name] == tally.line or request.config.getoption("--regenerate")


@pytest.mark.parametrize("name", ["driver", "gpu-persistence", "hugepages", "mount", "thp"])
def test_a_kernel_call_of_the_stand_in_that_is_cut_off(name: str, tmp_path: Path) -> None:
    """A real kernel does a call whole. A scratch root takes several steps for some: kills between them, too."""
    lab = lab_of(EXAMPLES[name], tmp_path / "root")
    for job in (applying(lab.example), reverting(lab.example)):
        begin = [applying(lab.example)] if job.__qualname__.startswith("reverting") else []

        def run(at: int, job: Job = job, begin: list[Job] = begin) -> Ended:
            lab.anew()
            for one in begin:
                one(site_on(lab.root))
            faults = Faults(at=at, act=kill, kinds=frozenset((FILE,)), whole=frozenset())
            return run_forked(lab.root, job, faults)

        for at in sample(f"inside {name}", range(1, run(0).count + 1), 2):
            killed = run(at)
            assert killed.fired
            for finish in (recovering(lab.example), reverting(lab.example)):
                assert finish(site_on(lab.root))[1] == 0, killed.fired
            assert list(back_at_original(lab)) == [], killed.fired


def test_every_kind_of_setting_is_killed(tmp_path: Path) -> None:
    """A kind without an example in `faultkinds` fails here."""
    records = [record for example in EXAMPLES.values() for record in lab_of(example, tmp_path / "root").records]
    assert {record.kind for record in records} == set(kinds())


def test_figures(request: pytest.FixtureRequest) -> None:
    """The published sums are those of the published lines; `--regenerate` makes both anew."""
    if request.config.getoption("--regenerate"):
        ask: Found = request.getfixturevalue("found")
        assert FULL, "HOSTTUNE_SWEEP=full"
        regenerate(ask)
    total = [0] * 5
    for name, line in golden_lines().items():
        if name != WHOLE_HOST:
            total = [a + int(b) for a, b in zip(total, re.findall(r"\d+", line), strict=True)]
    points, kills, old_or_new, between, recovered = total
    assert GOLDEN.read_text().splitlines()[0] == (
        f"{len(kinds())} kinds of setting, {points} points, {kills} kills: {old_or_new} at old or new,"
        f" {between} between as declared; {recovered} recovered"
    )
    assert set(golden_lines()) == {*EXAMPLES, WHOLE_HOST}


def regenerate(ask: Found) -> None:
    """Write the figures of a full sweep."""
    total = Tally()
    lines = []
    for name in sorted([*EXAMPLES, WHOLE_HOST]):
        tally = ask(name)
        lines.append(f"{name}: {tally.line}")
        if name != WHOLE_HOST:
            total.add(tally)
    left = f"left by them: an unfinished copy beside a file of ours, {total.leftovers} times"
    GOLDEN.write_text(f"{len(kinds())} kinds of setting, {total.line}\n{left}\n\n" + "\n".join(lines) + "\n")


def test_a_cut_off_transaction_is_open_until_recovered(tmp_path: Path) -> None:
    lab = lab_of(EXAMPLES["ksm"], tmp_path / "root")
    for at in range(1, 40):
        lab.anew()
        killed_at(lab, at)(site_on(lab.root))
        if any(one.is_open for one in transactions(lab.root)):
            break
    with pytest.raises(Refused, match="was not finished") as refused:
        applying(lab.example)(site_on(lab.root))
    assert "hosttune recover" in refused.value.hint
    result, code = recovering(lab.example)(site_on(lab.root))
    assert (code, result.open_transaction) == (0, None)


# --- no change but through a System ------------------------------------------------------------------------------

PRODUCT = HERE.parent / "hosttune"
# Where changes are made: the System itself, the stand-in for it, state and journal, archives; a child's pipe and end.
DOORS = {
    *(f"machine/{name}.py" for name in ("system", "live", "scratch", "scratchfiles", "files")),
    *("machine/archive.py", "machine/child.py"),
    "machine/capture.py",  # open to read
    *(f"journal/{name}.py" for name in ("state", "jsonlines", "store")),
    "discovery/recording.py",
    *("cluster/collective/launch.py", "cluster/collective/child.py"),  # the processes that measure
}
CHANGES = re.compile(
    r"\bos\.(write|pwrite|open|unlink|remove|rename|replace|mkdir|makedirs|rmdir|removedirs|symlink|link|truncate"
    r"|ftruncate|chmod|chown|mknod|mkfifo|kill|killpg|system|popen|fork|exec\w*|spawn\w*|posix_spawn\w*|utime|setxattr)\("
    r"|\b(shutil|subprocess|tempfile)\.|\bfrom (os|shutil|subprocess|tempfile|socket) import"
    r"|\.(write_text|write_bytes|touch|unlink|symlink_to|hardlink_to|rmdir)\("
)
EFFECTS = re.compile(rf"\b(?:system|self\._?system|behind)\.({'|'.join(effect_names())})\(")


@cache
def code_of(path: Path) -> str:
    """A module without its comments and texts."""
    return ast.unparse(_WithoutTexts().visit(ast.parse(path.read_text())))


class _WithoutTexts(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant("") if isinstance(node.value, str) else node


def modules(*, but: Iterable[str] = ()) -> dict[str, str]:
    """Product modules that may change something, by path, as code."""
    found = {str(path.relative_to(PRODUCT)): path for path in sorted(PRODUCT.rglob("*.py"))}
    return {name: code_of(path) for name, path in found.items() if name not in but and may_change(path)}


@cache
def may_change(path: Path) -> bool:
    """Whether the text of a module, comments and all, has such a word: few do, and unparsing takes its time."""
    text = re.sub(r"\s*\.\s*", ".", path.read_text())
    return bool(CHANGES.search(text) or EFFECTS.search(text))


def test_nothing_is_changed_but_through_a_system() -> None:
    """A write anywhere else has no kill test: make it through a System, in a setting."""
    assert [name for name in DOORS if not (PRODUCT / name).exists()] == []
    found = {name: CHANGES.findall(code) for name, code in modules(but=DOORS).items() if CHANGES.search(code)}
    left = {name for name in found if not name.startswith(("bench/", "fleet/", "cli/", "watch/"))}  # no setting
    assert left == set(), {name: found[name] for name in left}


def test_only_settings_change_a_system() -> None:
    """Whoever calls a System's changes is a kind of setting, or what one is made of: each is killed at every point."""
    callers = {
        f"hosttune.{name[:-3].replace('/', '.')}" for name, code in modules(but=DOORS).items() if EFFECTS.search(code)
    }
    reached = {cls.__module__ for cls in kinds().values()}
    while more := {imported for name in reached for imported in _imported(name) if imported not in reached}:
        reached |= more
    engine = {"hosttune.transaction.rehearsal", "hosttune.transaction.rollback"}  # what every kill of a kind runs
    assert callers - {*engine, *HAND_OVER, AGENT} <= reached
    assert len(callers) > 10


@cache
def _imported(module: str) -> frozenset[str]:
    place = PRODUCT.parent / module.replace(".", "/")
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    imports = re.findall(r"^\s*from ([\w.]+) import", path.read_text(), re.M) if path.exists() else ()
    return frozenset(imports) - {module}
