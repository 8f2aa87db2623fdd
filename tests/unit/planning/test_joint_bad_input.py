"""Intents for several guests that cannot be meant (2, with the path of the key), or merely do not fit (1)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mighosts
import pytest
from applyroots import block
from examplehosts import discovered

from hosttune.cli import run

Json = dict[str, Any]
GPU = "0000:41:00.0"
NIC, DRIVE, SWITCH = "0000:42:00.0", "0000:01:00.0", "0000:83:00.0"
BESIDE = "{name: first, gpus: 1}"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICNzOPY04T123UySyyEo10L/qnYfbX5Hr7VjUevlTrPs"
SECRET = "-----BEGIN OPENSSH PRIVATE KEY----- b3BlbnNzaC1rZXk="
SMALL = "vcpus: 2, memory: 1GiB"
Asked = Callable[[str], tuple[int, str, str, Path]]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The document of the bundled host."""
    path = tmp_path_factory.mktemp("joint") / "host.json"
    path.write_text(discovered().to_json())
    return path


@pytest.fixture
def asked(example: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Asked:
    """`hosttune plan -f` of these guests, on the bundled host."""
    return lambda guests: ask(example, tmp_path, capsys, guests)


def ask(host: Path, folder: Path, capsys: pytest.CaptureFixture[str], guests: str) -> tuple[int, str, str, Path]:
    """Exit code, standard output and error, and the intent's path."""
    path = folder / "intent.yaml"
    path.write_text(f"version: 1\nguests: {guests}\n")
    code = run(["plan", "--host", str(host), "-f", str(path), "-o", "json"])
    out, err = capsys.readouterr()
    return code, out, err, path


@pytest.mark.parametrize(
    ("guests", "error", "where"),
    [
        (f"[{BESIDE}, {{name: first, gpus: 1}}]", "a second guest named 'first'", "[1].name"),
        (
            f"[{{name: a, gpus: ['{GPU}']}}, {{name: b, gpus: ['41:00.0']}}]",
            f"{GPU} is named by guests a and b",
            "[1].gpus",
        ),
        (
            f"[{{name: a, gpus: 1, nics: ['{NIC}']}}, {BESIDE}, {{name: b, {SMALL}, nics: ['{NIC}']}}]",
            f"{NIC} is named by guests a and b",
            "[2].nics",
        ),
        (
            f"[{{name: a, {SMALL}, nvme: ['{DRIVE}']}}, {{name: b, {SMALL}, nvme: ['{DRIVE}']}}]",
            f"{DRIVE} is named by guests a and b",
            "[1].nvme",
        ),
        (f"[{BESIDE}, {{name: b, gpus: ['{GPU}', '{GPU}']}}]", "is named twice", "[1].gpus[1]"),
        (f"[{BESIDE}, {{name: b, gpus: ['{SWITCH}']}}]", f"{SWITCH} is not a GPU", "[1].gpus"),
        (f"[{BESIDE}, {{name: b, gpus: ['0000:f1:00.0']}}]", "0000:f1:00.0", "[1].gpus"),
        (f"[{BESIDE}, {{name: b, gpus: 1, nics: ['{GPU}']}}]", f"{GPU} is not a nic", "[1].nics"),
        (f"[{BESIDE}, {{name: b, gpus: 1, partition: 3}}]", "unknown key 'partition'", "[1].partition"),
        (f"[{{name: b, {SMALL}, image: /srv/i.raw}}]", "an image without a disk to copy it to", "[0].image"),
        (f"[{{name: b, {SMALL}, disk: /srv/a, image: i.raw}}]", "'i.raw' is not the path of a file", "[0].image"),
        (f"[{{name: b, {SMALL}, disk: /dev/sda, image: /srv/i.raw}}]", "'/dev/sda' is not the path of a", "[0].disk"),
        (f"[{{name: b, {SMALL}, disk: /srv/a, image: /srv/a}}]", "the image is the disk itself", "[0].image"),
        (f"[{{name: b, {SMALL}, disk: /a, disks: [/b]}}]", "disk and disks", "[0].disks"),
        (f"[{{name: b, {SMALL}, disks: [/a, srv/b]}}]", "'srv/b' is not the path of a disk", "[0].disks[1]"),
        (f"[{{name: b, {SMALL}, disk: b.qcow2}}]", "'b.qcow2' is not the path of a disk", "[0].disk"),
        (f"[{{name: b, {SMALL}, disks: [/a, /b, /x/../a]}}]", "'/x/../a' is not the path", "[0].disks[2]"),
        (f"[{{name: b, {SMALL}, disks: [/a, /b, /./a]}}]", "/./a is named twice", "[0].disks[2]"),
        (f"[{{name: b, {SMALL}, disk: /}}]", "'/' is not the path of a disk", "[0].disk"),
        (f"[{{name: b, {SMALL}, networks: [{{network: ''}}]}}]", "an empty text", "[0].networks[0].network"),
        (f"[{{name: b, {SMALL}, networks: [{{bridge: ''}}]}}]", "'' is not the name", "[0].networks[0].bridge"),
        (f"[{{name: b, {SMALL}, networks: [{{bridge: 'a b'}}]}}]", "'a b' is not the name", "[0].networks[0].bridge"),
        (f"[{{name: b, {SMALL}, disks: /a}}]", "expected a list", "[0].disks"),
        (f"[{{name: b, {SMALL}, disks: [/a, 1]}}]", "expected", "[0].disks[1]"),
        (f"[{{name: b, {SMALL}, disks: [/dev/sda], image: /srv/i}}]", "'/dev/sda' is not the path", "[0].disks[0]"),
        (f"[{{name: b, {SMALL}, disks: [/a, /srv/i], image: /srv/i}}]", "the image is the disk itself", "[0].image"),
        (
            f"[{{name: a, {SMALL}, disk: /b}}, {{name: b, {SMALL}, disks: [/a, /b]}}]",
            "/b is the disk of guests a and b: two writers would destroy it",
            "[1].disks[1]",
        ),
        (f"[{{name: b, {SMALL}, user: ops}}]", "a user who cannot log in", "[0].user"),
        (f"[{{name: b, {SMALL}, user: Ops, ssh_keys: ['{KEY}']}}]", "'Ops' is not the name of a user", "[0].user"),
        (f"[{{name: b, {SMALL}, ssh_keys: ['{KEY}', /root/.ssh/id]}}]", "is not a public SSH key", "[0].ssh_keys[1]"),
        (f"[{{name: b, {SMALL}, ssh_keys: ['{KEY[:-9]}']}}]", "is not a public SSH key", "[0].ssh_keys[0]"),
        (f"[{{name: b, {SMALL}, ssh_keys: ['{KEY.replace('ed25519 ', 'rsa ')}']}}]", "not a public", "[0].ssh_keys[0]"),
        (f"[{{name: b, {SMALL}, ssh_keys: ['{SECRET}']}}]", "a private key: keep it to yourself", "[0].ssh_keys[0]"),
        (f"[{BESIDE}, {{name: b, gpus: -1}}]", "-1 is negative", "[1].gpus"),
        (f"[{BESIDE}, {{name: b, gpus: {{count: -1}}}}]", "-1 is negative", "[1].gpus"),
        (f"[{BESIDE}, {{name: b, gpus: 1, nics: -1}}]", "-1 is negative", "[1].nics"),
        (f"[{BESIDE}, {{name: b, gpus: 1, nics: {{count: -2}}}}]", "-2 is negative", "[1].nics"),
        (f"[{BESIDE}, {{name: b, gpus: 1, nvme: -1}}]", "-1 is negative", "[1].nvme"),
        (f"[{BESIDE}, {{name: b, vcpus: -1, memory: 1GiB}}]", "-1 vCPUs", "[1].vcpus"),
        (f"[{BESIDE}, {{name: b, vcpus: 0, memory: 1GiB}}]", "0 vCPUs", "[1].vcpus"),
        (f"[{BESIDE}, {{name: b, vcpus: 2, memory: -1GiB}}]", "'-1GiB' is not a size", "[1].memory"),
        (f"[{BESIDE}, {{name: b, vcpus: 2, memory: 0}}]", "0 is not a size", "[1].memory"),
        (f"[{BESIDE}, {{name: b, {SMALL}, numa: 0}}]", "0 cells", "[1].numa"),
        (f"[{BESIDE}, {{name: b, {SMALL}, numa: []}}]", "no cells", "[1].numa"),
        (f"[{BESIDE}, {{name: b, vcpus: 4, numa: [{{{SMALL}}}]}}]", "its cells add up to 2", "[1].vcpus"),
        (f"[{BESIDE}, {{name: b, memory: 4GiB, numa: [{{{SMALL}}}]}}]", "its cells add up to", "[1].memory"),
        (f"[{BESIDE}, {{name: b, numa: [{{vcpus: 0, memory: 1GiB}}]}}]", "0 vCPUs", "[1].numa[0].vcpus"),
        (f"[{BESIDE}, {{name: b}}]", "auto without a GPU", "[1].vcpus"),
        (f"[{BESIDE}, {{name: b, vcpus: 2}}]", "auto without a GPU", "[1].memory"),
        (f"[{BESIDE}, {{gpus: 1}}]", "no 'name'", "[1]"),
        (f"[{BESIDE}, {{name: b, gpus: 1, mig: {{profile: 1g.20gb}}}}]", "'1g.20gb' is not a MIG", "[1].mig.profile"),
        (f"[{BESIDE}, {{name: b, mig: {{profile: 1g.20gb}}}}]", "'1g.20gb' is not a MIG profile", "[1].mig.profile"),
        (f"[{BESIDE}, {{name: b, mig: {{profile: 1g.18gb, count: 0}}}}]", "0 instances", "[1].mig.count"),
        (f"[{BESIDE}, {{name: b, mig: {{profile: 1g.18gb, count: -1}}}}]", "-1 instances", "[1].mig.count"),
        (f"[{BESIDE}, {{name: b, mig: {{profile: 1g.18gb, on: 1}}}}]", "unknown key 'on'", "[1].mig.on"),
        (f"[{BESIDE}, null]", "found nothing", "[1]"),
        ("{a: 1}", "expected a list", ""),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_path_of_the_key(
    asked: Asked, guests: str, error: str, where: str
) -> None:
    code, out, err, path = asked(guests)
    assert (code, out) == (2, ""), err
    said = block(err)
    assert error in said["error"]
    assert said["where"] == f"{path}: guests{where}"
    assert said["do"]


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../b", "a/b", "a b", "-b", "b;reboot", "<b>", "$(b)", "b\\n", "ü", "b\\0", "{{b}}", "b%s"]
)
def test_a_name_with_odd_characters_is_refused(asked: Asked, name: str) -> None:
    code, out, err, path = asked(f'[{BESIDE}, {{name: "{name}", gpus: 1}}]')
    assert (code, out) == (2, ""), name
    said = block(err)
    if name != "b\\0":  # that one is no text of YAML
        assert "is not a guest name" in said["error"]
        assert said["where"] == f"{path}: guests[1].name"


def test_mig_where_every_gpu_is_whole_with_another_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = tmp_path / "host.json"
    host.write_text(json.dumps(mighosts.mig_host(mighosts.A, mighosts.B)))
    whole = f"{{name: a, gpus: ['{mighosts.A}', '{mighosts.B}']}}"
    code, out, err, path = ask(host, tmp_path, capsys, f"[{whole}, {{name: b, {SMALL}, mig: {{profile: 1g.18gb}}}}]")
    assert (code, out) == (2, "")
    said = block(err)
    assert f"{mighosts.A} to a" in said["error"]
    assert said["where"] == f"{path}: guests[1].mig"


# --- what does not fit -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guest", "why"),
    [
        ("{name: b, gpus: 9}", "9 GPUs wanted, 8 on this host"),
        ("{name: b, gpus: 3}", "none of 3"),
        (f"{{name: b, gpus: ['{GPU}', '0000:9a:00.0']}}", "are not a partition"),
        ("{name: b, gpus: {count: 1, model: MI300X}}", "0 on this host"),
        ("{name: b, vcpus: 5, memory: 1GiB, numa: 2}", "do not divide into 2 equal cells"),
        (f"{{name: b, {SMALL}, numa: 99}}", "99 cells wanted"),
        ("{name: b, vcpus: 4000, memory: 1GiB}", "needs 2000 cores"),
        ("{name: b, vcpus: 2, memory: 999TiB}", "999 TiB"),
        ("{name: b, gpus: 1, mig: {profile: 3g.71gb, count: 3}}", "3 x 3g.71gb wanted on each GPU"),
        (f"{{name: b, {SMALL}, mig: {{profile: 1g.18gb}}}}", "no vGPU manager"),
        (f"{{name: b, {SMALL}, nics: 99}}", "99"),
    ],
)
def test_what_does_not_fit_leaves_a_plan_of_the_others(asked: Asked, guest: str, why: str) -> None:
    code, out, err, _ = asked(f"[{{name: a, {SMALL}}}, {guest}, {{name: c, {SMALL}}}]")
    assert (code, err) == (1, "")
    found = json.loads(out)
    assert [g["name"] for g in found["guests"]] == ["a", "c"]
    (row,) = found["unplaced"]
    assert set(row) >= {"guest", "why", "relaxation"}
    assert row["guest"] == "b"
    assert any(why in line for line in row["why"]), row["why"]


def test_guests_that_take_a_gpu_from_each_other_say_who_has_it(asked: Asked) -> None:
    code, out, _, _ = asked("[{name: a, gpus: 4}, {name: b, gpus: 2}, {name: c, gpus: 4}]")
    found = json.loads(out)
    (row,) = found["unplaced"]
    assert (code, len(found["guests"])) == (1, 2)
    others = {"a", "b", "c"} - {row["guest"]}
    assert any("beside" in line and all(name in line for name in others) for line in row["why"])
    assert {f"release guest {name}" for name in others} & set(row["relaxation"])


def test_a_hundred_guests(asked: Asked) -> None:
    """188 CPUs are not reserved: 94 guests of a core are as many as there can be."""
    guests = ", ".join(f"{{name: g{i}, {SMALL}}}" for i in range(100))
    code, out, err, _ = asked(f"[{guests}]")
    assert (code, err) == (1, "")
    found = json.loads(out)
    assert (len(found["guests"]), len(found["unplaced"])) == (94, 6)
    assert all(row["why"] and row["relaxation"] for row in found["unplaced"])
