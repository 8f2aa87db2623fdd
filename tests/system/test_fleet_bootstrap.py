"""The bootstrap from end to end: a wheelhouse of this tree, installed by the playbook through a local connection."""

from __future__ import annotations

import configparser
import email
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from bootstraps import (
    COLLECTION,
    HERE,
    ROOT,
    Recap,
    Refused,
    changed,
    load,
    newer_build,
    picture,
    play,
    play_hosts,
    says,
    settle,
    touch_wheel,
    version_of,
)
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from sweeps import FULL, sample

import hosttune
from hosttune.fleet.answers import read_answer
from hosttune.fleet.overview import RunContext, report_of
from requirements.wheelhouse import PYTHONS, build, lock_text, own_wheel, sign, tag_of, write_archive

EXAMPLE = ROOT / "examples" / "hgx-h200-8.tar.xz"
# An installation takes ten seconds of a CPU: `make test` has one, and the modules by themselves (_modules).
whole_sweep = pytest.mark.skipif(not FULL, reason="an installation: part of the full sweep (HOSTTUNE_SWEEP=full)")
# The Python that runs here and another one; in a full sweep all.
BUILT = [HERE, *sample("wheelhouse", [python for python in PYTHONS if python != HERE], 1)]


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder where programs may run: memory file systems are often mounted without that right."""
    places = (str(tmp_path_factory.getbasetemp()), "/var/tmp", str(ROOT / ".venv"))
    runs = next(place for place in places if os.path.isdir(place) and not os.statvfs(place).f_flag & os.ST_NOEXEC)
    folder = Path(tempfile.mkdtemp(prefix="hosttune-", dir=runs))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def wheelhouse(room: Path) -> Path:
    """The wheelhouse of this tree, made once. A package index that is away fails the tests here."""
    build(room / "wheelhouse", BUILT)
    return room / "wheelhouse"


@pytest.fixture
def prefix(room: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix="at-", dir=room)) / "opt"


class Installed(NamedTuple):
    """An installation by the playbook with pull mode: a rehearsal, whether that left anything, and the first run."""

    prefix: Path
    variables: dict[str, Any]
    rehearsed: Recap
    left: bool
    first: Recap


@pytest.fixture(scope="module")
def installed(room: Path, wheelhouse: Path) -> Installed:
    """Installed once for several tests: pip takes its time."""
    prefix = Path(tempfile.mkdtemp(prefix="shared-", dir=room)) / "opt"
    units = prefix.parent / "pull-units"
    units.mkdir()
    pull = {
        **{"hosttune_pull": True, "hosttune_pull_start": False, "hosttune_pull_unit_folder": str(units)},
        **{"hosttune_pull_results": str(prefix.parent / "answers"), "hosttune_root": str(EXAMPLE)},
    }
    rehearsed = play(prefix, wheelhouse, "--check", **pull)
    return Installed(prefix, pull, rehearsed, prefix.exists(), play(prefix, wheelhouse, **pull))


@pytest.fixture
def shared(installed: Installed) -> Path:
    """A prefix for tests that begin with a finished installation, whatever the one before has left."""
    return installed.prefix


# --- the wheelhouse -------------------------------------------------------------------------------------------------


def wheels_of(archive: Path) -> dict[str, tuple[str, list[Requirement]]]:
    """name -> version and requirements of each wheel in an archive, from its metadata."""
    found: dict[str, tuple[str, list[Requirement]]] = {}
    with tarfile.open(archive) as tar:
        for member in (one for one in tar.getmembers() if one.name.endswith(".whl")):
            content = tar.extractfile(member)
            assert content is not None
            with zipfile.ZipFile(content) as wheel:
                (path,) = [name for name in wheel.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)]
                told = email.message_from_bytes(wheel.read(path))
            needs = [Requirement(line) for line in told.get_all("Requires-Dist", [])]
            found[canonicalize_name(told["Name"])] = (told["Version"], needs)
    return found


@pytest.mark.parametrize("python", BUILT)
def test_an_archive_is_whole_for_its_python_and_holds_no_ansible(wheelhouse: Path, python: str) -> None:
    there = wheels_of(wheelhouse / f"{tag_of(python)}.tar")
    assert {"hosttune", "pip", "msgspec", "lxml"} <= set(there)
    assert not [name for name in there if name.startswith("ansible")]
    place = {"python_version": python, "python_full_version": f"{python}.0", "extra": "", "sys_platform": "linux"}
    for name, (_, needs) in there.items():
        for need in needs:
            if need.marker is None or need.marker.evaluate(place):
                version, _ = there.get(canonicalize_name(need.name), (None, []))
                assert version, f"{name} needs {need}, which is not there"
                assert need.specifier.contains(version), f"{name} needs {need}, and {version} is there"


@pytest.mark.parametrize("python", BUILT)
def test_compiled_wheels_are_for_that_python_and_for_glibc(wheelhouse: Path, python: str) -> None:
    with tarfile.open(wheelhouse / f"{tag_of(python)}.tar") as tar:
        names = [name for name in tar.getnames() if name.endswith(".whl") and not name.endswith("-none-any.whl")]
    tags = re.compile(f"-(cp{python.replace('.', '')}-|cp3[0-9]-abi3-).*manylinux.*x86_64")  # abi3: this one and later
    assert len(names) >= 3
    assert not [name for name in names if not tags.search(name)]


def test_the_same_tree_gives_the_same_archive(wheelhouse: Path, room: Path) -> None:
    wheel = own_wheel(room)
    with tarfile.open(wheelhouse / f"{tag_of(HERE)}.tar") as tar:
        kept = tar.extractfile(wheel.name)
        assert kept is not None
        assert kept.read() == wheel.read_bytes()
    first = write_archive(room / "one.tar", [wheel])
    os.utime(wheel, (1, 1))
    assert write_archive(room / "two.tar", [wheel]) == first


def test_the_index_names_the_version(wheelhouse: Path) -> None:
    index = json.loads((wheelhouse / "index.json").read_text())
    assert index["version"] == hosttune.__version__
    assert sorted(index["archives"]) == sorted(tag_of(python) for python in BUILT)


def locked(name: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    rows = [Requirement(line.split("\\")[0].strip()) for line in lines if re.match(r"[A-Za-z]", line)]
    return {canonicalize_name(row.name): str(row.specifier).removeprefix("==") for row in rows}


def test_hosts_get_the_versions_that_are_tested_and_that_the_project_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    host, run = locked("host.txt"), locked("run.txt")
    for need in (Requirement(line) for line in project["dependencies"]):
        assert need.specifier.contains(host[canonicalize_name(need.name)]), need
    assert {name: version for name, version in host.items() if name != "pip"} == {
        name: run[name] for name in host if name != "pip"
    }


def test_a_lock_that_is_torn_between_pythons_is_refused() -> None:
    def row(version: str) -> dict[str, Any]:
        archive = {"hashes": {"sha256": "0" * 64}}
        return {"metadata": {"name": "lxml", "version": version}, "download_info": {"archive_info": archive}}

    with pytest.raises(SystemExit, match="different versions for different Pythons: lxml"):
        lock_text([[row("6.1.3")], [row("6.1.2")]])


# --- the playbook ---------------------------------------------------------------------------------------------------


def test_installed_once_a_version(installed: Installed, wheelhouse: Path) -> None:
    """Check mode writes nothing, the first run installs, the second changes nothing and copies nothing."""
    prefix = installed.prefix
    assert installed.rehearsed.changed == 1
    assert not installed.left
    assert installed.first.changed == 2 + 5  # the archive, the installation; what pull mode has
    assert says(prefix, "--version").split()[-1] == hosttune.__version__
    assert "vcpu" in says(prefix, "plan", "--root", str(EXAMPLE), "--gpu", "0000:41:00.0", "-o", "xml")
    home = prefix / version_of(wheelhouse)
    assert {path.name for path in prefix.iterdir()} - {"pull"} == {home.name, "bin"}
    assert sorted(path.name for path in (home / "bin").iterdir() if not path.name.startswith("python")) == ["hosttune"]
    for path in (home / "pyvenv.cfg", home / "bin" / "hosttune"):
        assert "/.new-" not in path.read_text(), "the folder that it was made in"

    before = picture(prefix)
    assert play(prefix, wheelhouse, **installed.variables).changed == 0
    assert picture(prefix) == before


@whole_sweep
def test_an_install_that_was_killed_is_finished_by_the_next_run(prefix: Path, wheelhouse: Path) -> None:
    prefix.mkdir(mode=0o755)
    index = json.loads((wheelhouse / "index.json").read_text())
    archive = shutil.copy(wheelhouse / f"{tag_of(HERE)}.tar", prefix / f".incoming-{version_of(wheelhouse)}.tar")
    asked = {
        **{"prefix": str(prefix), "sha256": index["archives"][tag_of(HERE)]["sha256"], "version": index["version"]},
        **{"python": os.path.realpath(sys.executable), "archive": str(archive)},
    }
    module = subprocess.Popen(
        [
            sys.executable,
            COLLECTION / "plugins/modules/bootstrap_hosttune.py",
            json.dumps({"ANSIBLE_MODULE_ARGS": asked}),
        ],
        stdout=subprocess.DEVNULL,
    )
    while not list(prefix.glob(".new-*/tree/lib/python*/site-packages/*")):
        assert module.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    module.kill()
    assert module.wait() == -signal.SIGKILL
    assert list(prefix.glob(".new-*"))
    assert not (prefix / version_of(wheelhouse)).exists()

    assert play(prefix, wheelhouse).changed >= 1  # the archive is there already, and is as it should be
    assert says(prefix, "--version")
    assert sorted(path.name for path in prefix.iterdir()) == sorted([version_of(wheelhouse), "bin"])


def test_what_is_refused_before_anything_is_done(prefix: Path) -> None:
    """One run, a host for each way: no wheelhouse, none of its Pythons, an index that is not, or no longer, signed."""
    home = prefix.parent
    old = home / "python3.9"
    told = {"version": [3, 9, 18], "implementation": "cpython", "machine": "x86_64", "free_threaded": False}
    old.write_text(f"#!/bin/sh\necho '{json.dumps({**told, 'venv': True, 'executable': str(old), 'libvirt': []})}'\n")
    old.chmod(0o755)
    key = home / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    (home / "signers").write_text(f"release@example.com {key.with_suffix('.pub').read_text()}")
    signers: dict[str, Any] = {
        "hosttune_wheelhouse_signers": str(home / "signers"),
        "hosttune_wheelhouse_identity": "release@example.com",
        "hosttune_pythons": ["python3.99"],
    }
    for name in ("plain", "unsigned", "signed", "changed"):
        (home / name).mkdir()
        index = home / name / "index.json"
        index.write_text(json.dumps({"version": "1", "archives": {tag_of(HERE): {"sha256": "ab", "file": "x.tar"}}}))
        if name in ("signed", "changed"):
            sign(index, str(key))
    index.write_text(index.read_text() + " ")
    hosts: dict[str, tuple[Path, dict[str, Any]]] = {
        "nowhere": (home / "nowhere", {}),
        "older": (home / "plain", {"hosttune_pythons": [str(old), "python3.99"]}),
        **{name: (home / name, signers) for name in ("unsigned", "signed", "changed")},
    }
    refusals = {name: recap.refusal for name, recap in play_hosts(prefix, hosts).items()}
    assert "run `make wheelhouse`" in refusals["nowhere"]
    assert f"{old}: 3.9.18, older than 3.11" in refusals["older"]
    assert "python3.99: not there" in refusals["older"]
    assert "name its path in hosttune_pythons" in refusals["older"]
    assert "index.json.sig" in refusals["unsigned"]
    assert "python3.99: not there" in refusals["signed"]  # the signature is good
    assert "make wheelhouse KEY=FILE" in refusals["changed"]
    assert not prefix.exists()


def test_pull_mode_leaves_answers_that_the_report_reads(installed: Installed) -> None:
    units, results = (Path(installed.variables[f"hosttune_pull_{name}"]) for name in ("unit_folder", "results"))
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(units / "hosttune-pull.service")
    command = unit["Service"]["ExecStart"].split()
    assert command[-1] == f"{installed.prefix}/pull/bootstrap_pull.py"
    subprocess.run([sys.executable, *command[1:]], check=True)
    answers = [read_answer(str(results), "host", phase, None) for phase in ("discover", "validate")]
    assert [(answer.outcome, answer.why) for answer in answers] == [("ok", None)] * 2, answers
    report = report_of(str(results), ["host", "silent"], RunContext("validate"))
    assert [line.verdict == "unknown" for line in report.hosts] == [False, True]


# --- the module alone ---------------------------------------------------------------------------------------------


@whole_sweep
def test_it_is_whole_again_when_the_link_or_a_file_is_lost(shared: Path, wheelhouse: Path) -> None:
    settle(shared, wheelhouse)
    assert not settle(shared, wheelhouse)["changed"]
    (shared / "bin" / "hosttune").unlink()
    done = settle(shared, wheelhouse, archive=None)
    assert (done["changed"], done["needs"]) == (True, False), "only the link: nothing is brought"

    (module,) = (shared / version_of(wheelhouse)).glob("lib/python*/site-packages/msgspec/_core*.so")
    module.write_bytes(b"")
    assert settle(shared, wheelhouse, archive=None)["needs"]
    assert settle(shared, wheelhouse)["changed"]
    assert "hugepages" in says(shared, "schema", "intent")
    assert {version_of(wheelhouse), "bin"} <= {path.name for path in shared.iterdir()}


@whole_sweep
def test_an_archive_with_another_hash_is_refused(shared: Path, wheelhouse: Path, room: Path) -> None:
    settle(shared, wheelhouse)
    before = picture(shared / version_of(wheelhouse))
    bad = changed(wheelhouse, room, newer_build)
    archive = bad / f"{tag_of(HERE)}.tar"
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 1
    archive.write_bytes(data)
    with pytest.raises(Refused, match=r"the wheelhouse's index says .* nothing was installed"):
        settle(shared, bad)
    assert picture(shared / version_of(wheelhouse)) == before
    assert says(shared, "--version"), "the version that was there stays in use"
    assert not (shared / version_of(bad)).exists()
    settle(shared, wheelhouse)
    assert not list(shared.glob(".incoming-*")), "what was refused is cleared away"


@whole_sweep
def test_a_wheel_that_is_not_the_locked_one_is_refused_by_pip(prefix: Path, wheelhouse: Path, room: Path) -> None:
    with pytest.raises(Refused, match=r"DO NOT MATCH THE HASHES(?s:.*)hosttune"):
        settle(prefix, changed(wheelhouse, room, touch_wheel))
    assert not [path for path in prefix.iterdir() if not path.name.startswith(".incoming-")]


def test_an_archive_with_a_path_in_it_is_refused(prefix: Path, wheelhouse: Path, room: Path) -> None:
    def slip(folder: Path) -> None:
        (folder / "bin").mkdir()
        (folder / "bin" / "hosttune").write_text("#!/bin/sh\n")

    with pytest.raises(Refused, match="holds 'bin', which is not a plain file of a wheelhouse"):
        settle(prefix, changed(wheelhouse, room, slip))


@whole_sweep
def test_an_archive_of_another_version_than_the_index_says_is_refused(prefix: Path, wheelhouse: Path) -> None:
    with pytest.raises(Refused, match=f"--version says .*{hosttune.__version__}', the wheelhouse has 9.9"):
        settle(prefix, wheelhouse, version="9.9")
    assert not (prefix / "bin").exists()


@whole_sweep
def test_a_newer_version_takes_over_and_the_one_that_a_boot_unit_runs_stays(
    prefix: Path, wheelhouse: Path, room: Path
) -> None:
    units = prefix.parent / "units" / "multi-user.target.wants"
    units.mkdir(parents=True)
    prune = load("plugins/modules/bootstrap_prune.py").prune
    settle(prefix, wheelhouse)
    old = version_of(wheelhouse)
    unit = units / "hosttune-boot.service"
    unit.write_text(f"[Service]\nExecStart={prefix}/{old}/bin/hosttune apply --boot\n")
    newer = changed(wheelhouse, room, newer_build)

    assert settle(prefix, newer)["changed"]
    assert os.readlink(prefix / "bin" / "hosttune") == f"../{version_of(newer)}/bin/hosttune"
    assert prune(str(prefix), 1, [str(units)], False) == {"changed": False, "removed": [], "held": [old]}
    said = subprocess.run([prefix / old / "bin" / "hosttune", "--version"], capture_output=True, check=True)
    assert said.stdout

    unit.unlink()
    assert prune(str(prefix), 2, [str(units)], False) == {"changed": False, "removed": [], "held": []}
    assert prune(str(prefix), 1, [str(units)], False) == {"changed": True, "removed": [old], "held": []}
    assert says(prefix, "--version")
    assert sorted(path.name for path in prefix.iterdir()) == sorted([version_of(newer), "bin"])
