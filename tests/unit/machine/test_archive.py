"""Captures that users send: every packing opens alike; hostile, damaged and absurd ones are one clear error."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from sweeps import sample

from hosttune.errors import BadInput
from hosttune.machine.archive import Limits, open_archive
from hosttune.machine.capture import Archive, Capture
from hosttune.machine.opening import open_root

HOSTS = Path(__file__).parents[2] / "hosts"
XE9680 = HOSTS / "derived/xe9680-8xh100-lspci.tar.xz"


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, size
    return info


GOOD = [
    (member("sys", tarfile.DIRTYPE), b""),
    (member("sys/empty", tarfile.DIRTYPE), b""),
    (member("sys/bus/one", size=2), b"1\n"),
    (member("sys/bus/one", size=2), b"1\n"),
    (member("sys/bus/same", size=2), b"1\n"),
    (member("sys/link", tarfile.SYMTYPE, "bus/one"), b""),
    (member("sys/absolute", tarfile.SYMTYPE, "/sys/bus"), b""),
    (member("sys/dangling", tarfile.SYMTYPE, "../sys/not/recorded"), b""),
    (member("proc/cpuinfo", size=3), b"cpu"),
]
Members = list[tuple[tarfile.TarInfo, bytes]]


def packed(members: Members, form: int = tarfile.PAX_FORMAT) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=form) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return target.getvalue()


def renamed(members: Members, prefix: str) -> Members:
    wrapped: Members = []
    for info, data in members:
        copy = member(prefix + info.name, info.type, info.linkname, info.size)
        wrapped.append((copy, data))
    return wrapped


def check_good(path: Path) -> None:
    system = open_root(str(path))
    assert system.read("/sys/bus/one") == "1"
    assert system.read("/sys/bus/same") == "1"
    assert system.read("/sys/link") == "1"
    assert system.list("/sys/absolute") == ["one", "same"]
    assert system.list("/sys/empty") == []
    assert system.exists("/sys/empty")
    assert not system.exists("/sys/dangling")
    assert system.list("/") == ["proc", "sys"]


PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "several-gzip-members": lambda data: gzip.compress(data[:700]) + gzip.compress(data[700:]),
}


@pytest.mark.parametrize("prefix", ["", "./", "host1/"])
@pytest.mark.parametrize("packing", PACKINGS)
def test_every_packing_opens_whatever_its_name(tmp_path: Path, packing: str, prefix: str) -> None:
    path = tmp_path / "capture.bin"
    path.write_bytes(PACKINGS[packing](packed(renamed(GOOD, prefix))))
    check_good(path)
    assert isinstance(open_root(str(path)), Archive)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_and_every_tar_dialect(tmp_path: Path, form: int) -> None:
    name = "sys/" + "/".join(["directory"] * 12) + "/file"
    path = tmp_path / "x.tar"
    path.write_bytes(packed([*GOOD, (member(name, size=1), b"x")], form))
    check_good(path)
    assert open_root(str(path)).read(f"/{name}") == "x"


def test_an_archive_is_read_once_for_as_long_as_it_is_the_same_file(tmp_path: Path) -> None:
    """A command asks for its capture several times. One that was just written may be written again within a tick."""
    place, other = tmp_path / "host.tar", sorted((HOSTS / "derived").glob("*.tar.xz"))[0]
    place.symlink_to(XE9680)
    first = open_root(str(place))
    assert open_root(str(place)) is first
    place.unlink()
    place.symlink_to(other)
    assert open_root(str(place)) is not first
    place.unlink()
    for text in (b"1\n", b"2\n"):
        place.write_bytes(packed([(member("sys/bus/one", size=2), text)]))
        assert open_root(str(place)).read_bytes("/sys/bus/one") == text


@pytest.mark.parametrize("wrapper", ["", "host1"])
def test_a_directory_is_opened_as_it_lies_or_inside_its_wrapper(tmp_path: Path, wrapper: str) -> None:
    (tmp_path / wrapper / "sys/bus").mkdir(parents=True)
    (tmp_path / wrapper / "sys/bus/one").write_text("1\n")
    (tmp_path / "README").write_text("notes")
    system = open_root(str(tmp_path))
    assert isinstance(system, Capture)
    assert system.read("/sys/bus/one") == "1"
    assert system.origin == str(tmp_path)


def test_two_wrapped_hosts_are_not_guessed_between(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "sys").mkdir(parents=True)
    assert open_root(str(tmp_path)).list("/") == ["a", "b"]


def test_a_wrapper_that_is_a_link_is_not_entered(tmp_path: Path) -> None:
    (tmp_path / "outside/sys").mkdir(parents=True)
    (tmp_path / "root").mkdir()
    (tmp_path / "root/host").symlink_to("../outside")
    assert not open_root(str(tmp_path / "root")).exists("/sys")


# --- hostile members -----------------------------------------------------------------------------------------

HOSTILE: dict[str, tuple[Members, str]] = {
    "absolute name": ([(member("/etc/cron.d/x", size=1), b"x")], "an absolute name"),
    "dots first": ([(member("../evil", size=1), b"x")], "leads upwards"),
    "dots inside": ([(member("sys/../../evil", size=1), b"x")], "leads upwards"),
    "link up and out": ([(member("sys/evil", tarfile.SYMTYPE, "../../etc/passwd"), b"")], "a link that points outside"),
    "absolute link out": ([(member("sys/evil", tarfile.SYMTYPE, "/etc/passwd"), b"")], "a link that points outside"),
    "hard link out": ([(member("sys/evil", tarfile.LNKTYPE, "../etc/passwd"), b"")], "a hard link to"),
    "hard link": ([(member("sys/evil", tarfile.LNKTYPE, "sys/bus/one"), b"")], "a hard link to"),
    "file twice": (
        [(member("sys/evil", size=1), b"1"), (member("sys/evil", size=1), b"2")],
        "there twice, with other contents",
    ),
    "link twice": (
        [(member("sys/evil", tarfile.SYMTYPE, "bus"), b""), (member("sys/evil", tarfile.SYMTYPE, "empty"), b"")],
        "there twice, with another target",
    ),
    "file and directory": (
        [(member("sys/evil", size=1), b"x"), (member("sys/evil/x", size=1), b"x")],
        "a file that is a directory, too",
    ),
    "answer that is a link": (
        [(member(".hosttune/commands/evil", tarfile.SYMTYPE, "other"), b"")],
        "a link among hosttune's own files",
    ),
    "character device": ([(member("dev/evil", tarfile.CHRTYPE), b"")], "neither file, directory nor link"),
    "block device": ([(member("dev/evil", tarfile.BLKTYPE), b"")], "neither file, directory nor link"),
    "fifo": ([(member("sys/evil", tarfile.FIFOTYPE), b"")], "neither file, directory nor link"),
    "file under a link": (
        [(member("sys/evil", tarfile.SYMTYPE, "bus"), b""), (member("sys/evil/x", size=1), b"x")],
        "a link that is a file or directory, too",
    ),
    "endless name": ([(member("sys/evil" + "/a" * 200, size=1), b"x")], "too long"),
}


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("prefix", ["", "host1/"])
def test_hostile_members_are_refused_by_name(tmp_path: Path, case: str, prefix: str) -> None:
    members, what = HOSTILE[case]
    path = tmp_path / "evil.tar.gz"
    bad = [
        (info, data) if info.name.startswith(("/", "..")) else renamed([(info, data)], prefix)[0]
        for info, data in members
    ]
    path.write_bytes(gzip.compress(packed([*renamed(GOOD, prefix), *bad])))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadInput, match=what) as caught:
        open_root(str(path))
    assert caught.value.exit_code == 2
    assert str(path) in caught.value.where
    assert "evil" in caught.value.where or "cron.d" in caught.value.where
    assert sorted(tmp_path.rglob("*")) == before


def test_a_link_out_of_the_wrapper_is_a_link_out(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(
        packed([*renamed(GOOD, "host1/"), (member("host1/sys/evil", tarfile.SYMTYPE, "../../other"), b"")])
    )
    with pytest.raises(BadInput, match="a link that points outside"):
        open_root(str(path))


def test_a_loop_of_links_is_bad_input_when_it_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    loop = [(member("sys/a", tarfile.SYMTYPE, "b"), b""), (member("sys/b", tarfile.SYMTYPE, "a"), b"")]
    path.write_bytes(packed([*GOOD, *loop]))
    with pytest.raises(BadInput, match="loop of links"):
        open_root(str(path)).read_bytes("/sys/a")


# --- bombs ---------------------------------------------------------------------------------------------------


def test_a_file_too_large_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(member("sys/huge", size=1 << 40).tobuf(tarfile.GNU_FORMAT))
        stream.write(bytes(1 << 20))
    with pytest.raises(BadInput, match="a file larger than 32 MiB") as caught:
        open_root(str(path))
    assert "sys/huge" in caught.value.where


def test_a_header_without_end_stops_early(tmp_path: Path) -> None:
    path = tmp_path / "bomb.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(member("././@LongLink", tarfile.GNUTYPE_LONGNAME, size=512 << 20).tobuf(tarfile.GNU_FORMAT))
        for _ in range(64):
            stream.write(b"a" * (1 << 20))
    with pytest.raises(BadInput, match="a header without end"):
        open_root(str(path))


def test_a_sparse_map_without_end_stops_early(tmp_path: Path) -> None:
    path = tmp_path / "bomb.tar.gz"
    info = member("sys/GNUSparseFile.0/x", size=1024)
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "10"}
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(info.tobuf(tarfile.PAX_FORMAT))
        stream.write(b"999999999\n")
        for _ in range(8):
            stream.write(b"0\n" * (1 << 19))
    with pytest.raises(BadInput):
        open_root(str(path))


def test_a_small_sparse_file_is_read(tmp_path: Path) -> None:
    if subprocess.run(["tar", "--version"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no GNU tar")
    (tmp_path / "sys").mkdir()
    with open(tmp_path / "sys/sparse", "wb") as file:
        file.write(b"start")
        file.truncate(1 << 17)
    subprocess.run(["tar", "-C", str(tmp_path), "--sparse", "-cf", str(tmp_path / "x.tar"), "sys"], check=True)
    data = open_root(str(tmp_path / "x.tar")).read_bytes("/sys/sparse")
    assert data is not None
    assert (data[:5], len(data)) == (b"start", 1 << 17)


def test_too_much_altogether_stops_early(tmp_path: Path) -> None:
    path = tmp_path / "bomb.tar.gz"
    path.write_bytes(gzip.compress(packed([(member(f"sys/{i}", size=9000), bytes(9000)) for i in range(9)])))
    with pytest.raises(BadInput, match="larger than 50 KiB when unpacked"):
        open_archive(str(path), str(path), Limits(total_bytes=50 << 10))
    with pytest.raises(BadInput, match="a file larger than 8 KiB") as caught:
        open_archive(str(path), str(path), Limits(file_bytes=8 << 10))
    assert caught.value.where == f"{path}: sys/0"
    assert open_archive(str(path), str(path), Limits(total_bytes=200 << 10)).list("/sys") == [str(i) for i in range(9)]


def test_sizes_that_are_only_claimed_count_as_well(tmp_path: Path) -> None:
    if subprocess.run(["tar", "--version"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no GNU tar")
    (tmp_path / "sys").mkdir()
    for i in range(9):
        (tmp_path / f"sys/sparse{i}").touch()
        os.truncate(tmp_path / f"sys/sparse{i}", 9000)
    subprocess.run(["tar", "-C", str(tmp_path), "--sparse", "-cf", str(tmp_path / "x.tar"), "sys"], check=True)
    with pytest.raises(BadInput, match="larger than 50 KiB when unpacked"):
        open_archive(str(tmp_path / "x.tar"), str(tmp_path / "x.tar"), Limits(total_bytes=50 << 10))


def test_too_many_members_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "many.tar"
    path.write_bytes(packed([(member(f"sys/{i}"), b"") for i in range(11)]))
    with pytest.raises(BadInput, match="more than 10 members"):
        open_archive(str(path), str(path), Limits(members=10))
    assert len(open_archive(str(path), str(path), Limits(members=11)).list("/sys")) == 11


def test_the_limits_are_those_of_the_documentation() -> None:
    assert Limits() == Limits(total_bytes=64 << 20, file_bytes=32 << 20, members=150_000)


# --- damage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", ["plain", "gzip", "bzip2", "xz"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.85])
def test_a_truncated_archive_is_said_to_be(tmp_path: Path, packing: str, share: float) -> None:
    filled = [(member(f"sys/f{i}", size=4096), os.urandom(4096)) for i in range(20)]
    data = PACKINGS[packing](packed([*GOOD, *filled]))
    path = tmp_path / "cut.tar"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(BadInput, match="truncated or corrupt") as caught:
        open_root(str(path))
    assert str(path) in caught.value.where


def test_a_plain_archive_cut_between_members_is_truncated(tmp_path: Path) -> None:
    path = tmp_path / "cut.tar"
    path.write_bytes(packed([(member("sys/a", size=512), bytes(512)), (member("sys/b"), b"")])[:1024])
    with pytest.raises(BadInput, match="truncated") as caught:
        open_root(str(path))
    assert caught.value.where.endswith(": sys/a")


@pytest.mark.parametrize("packing", ["gzip", "bzip2", "xz"])
def test_a_flipped_bit_is_noticed(tmp_path: Path, packing: str) -> None:
    filled = [(member(f"sys/f{i}", size=4096), os.urandom(4096)) for i in range(20)]
    data = bytearray(PACKINGS[packing](packed([*GOOD, *filled])))
    data[len(data) // 2] ^= 0x10
    path = tmp_path / "damaged"
    path.write_bytes(data)
    with pytest.raises(BadInput, match="truncated or corrupt"):
        open_root(str(path))


def test_a_damaged_header_in_the_middle_is_noticed(tmp_path: Path) -> None:
    data = bytearray(packed(GOOD, tarfile.USTAR_FORMAT))
    data[512 * 2 + 150] ^= 0xFF  # inside the checksum of the third header
    path = tmp_path / "damaged.tar"
    path.write_bytes(data)
    with pytest.raises(BadInput, match="truncated or corrupt"):
        open_root(str(path))


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"PK\x03\x04" + bytes(600), b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", os.urandom(2048)]
)
def test_what_is_no_archive_is_said_to_be(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.tar.gz"
    path.write_bytes(content)
    with pytest.raises(BadInput, match="not a tar archive") as caught:
        open_root(str(path))
    assert caught.value.where == str(path)


def test_an_archive_of_nothing_opens_empty(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(packed([]))
    assert open_root(str(path)).list("/") == []


def test_a_missing_path_and_a_special_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file") as caught:
        open_root(str(tmp_path / "none"))
    assert caught.value.where == str(tmp_path / "none")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(BadInput, match="neither a directory nor an archive"):
        open_root(str(tmp_path / "fifo"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_archive_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(packed(GOOD))
    path.chmod(0)
    with pytest.raises(BadInput, match="Permission denied"):
        open_root(str(path))


# --- real archives -------------------------------------------------------------------------------------------

REAL = sorted(
    path
    for path in HOSTS.glob("*/*.tar.*")
    if path.parent.name in ("derived", "ghw", "h100", "h200", "hwloc", "lscpu", "older")
)


@pytest.mark.parametrize("path", sample("archives", REAL, 7), ids=lambda path: path.stem)
def test_an_archive_and_its_unpacked_directory_say_the_same(path: Path, host_root: Callable[[str], Path]) -> None:
    name = f"{path.parent.name}/{path.name.partition('.tar')[0]}"
    packed_host, unpacked = open_root(str(path)), Capture(str(host_root(name)))
    for top in ("/sys/bus/pci/devices", "/sys/devices/system/cpu", "/sys/devices/system/node", "/proc"):
        names = unpacked.list(top)
        assert packed_host.list(top) == names
        for entry in names[:12]:
            assert packed_host.link(f"{top}/{entry}") == unpacked.link(f"{top}/{entry}")
            assert packed_host.list(f"{top}/{entry}") == unpacked.list(f"{top}/{entry}")
            for leaf in unpacked.list(f"{top}/{entry}"):
                leaf_path = f"{top}/{entry}/{leaf}"
                assert packed_host.read_bytes(leaf_path) == unpacked.read_bytes(leaf_path)


def test_a_large_capture_is_read_in_little_memory() -> None:
    code = (
        "import sys\n"
        "from hosttune.machine.opening import open_root\n"
        "from hosttune.discovery import discover\n"
        "assert len(discover(open_root(sys.argv[1])).pci) == 517\n"
        # Not getrusage: its maximum is inherited from the test's own process.
        "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])\n"
    )
    argv = [sys.executable, "-c", code, str(XE9680)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=HOSTS.parent.parent)
    assert int(done.stdout) < 80 << 10  # KiB: the project's limit for discover
