"""`handover` on a scratch root: quarantine in plan and apply, the hook as an action, and a statement's whole life."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import applyroots
import boardroots
import msgspec
import pytest
from applyroots import GPU, OTHER_GPU, STATE, Cli, Root, action, block, edited, outcomes
from handovers import DONE, SIGNER, Keys

from hosttune.cli import run
from hosttune.discovery import discover
from hosttune.discovery.handover import _brief
from hosttune.errors import Refused
from hosttune.handover.statement import handed_device, read_firmware, statement_of
from hosttune.inventory.devices import identity, read_catalogue
from hosttune.journal import Header, Record, Store, Transaction
from hosttune.journal.register import read_register, record_devices
from hosttune.machine.opening import open_system
from hosttune.model.clock import now_text
from hosttune.model.quarantine import DeviceRecord, HandoverState
from hosttune.model.starts import REGISTER_ANSWER
from hosttune.settings.hook import PLACE
from hosttune.transaction.guards import refuse_between_tenants
from hosttune.transaction.site import site_of

pristine = boardroots.lean_host
root = applyroots.root
cli = applyroots.cli
plan = applyroots.plan

STATEMENT = "handover-statement"
PHYSICAL, VIRTUAL = "0000:42:00.0", "0000:42:00.1"
DEFINED = (
    "<domain type='kvm'><name>a</name><memory>1048576</memory><vcpu>1</vcpu><devices><hostdev mode='subsystem' "
    "type='pci'><source><address domain='0x0000' bus='0x41' slot='0x00' function='0x0'/></source></hostdev></devices>"
    "</domain>"
)
HOOK = action("libvirt-hook", PLACE, "installed")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("no OpenSSH client")
    return Keys(tmp_path_factory.mktemp("keys"))


def quarantined(root: Root, address: str = GPU) -> DeviceRecord:
    """Put a device of the root into its register, as the course does before anything else."""
    host = discover(open_system(str(root.path)))
    who = identity(read_catalogue(host), address, host)
    record = DeviceRecord(address=address, identity=who, state="quarantined", since=now_text(), why="hand-over 1")
    record_devices(str(root.path / STATE), (record,))
    return record


def written_quarantine(root: Root) -> str:
    return root.get(f"{STATE}/handover/quarantined")


def test_a_quarantined_device_is_neither_planned_nor_applied_until_it_is_released(cli: Cli, plan: Path) -> None:
    quarantined(cli.root)
    assert written_quarantine(cli.root) == f"{GPU}\nend 1"
    code, out, _ = cli("plan", "--gpu", GPU, "-o", "json")
    (unplaced,) = json.loads(out)["unplaced"]
    assert (code, json.loads(out)["guests"]) == (1, [])
    assert f"{GPU} is quarantined since" in unplaced["why"][0]
    code, out, _ = cli("plan", "--gpus", "8", "--profile", "none", "-o", "json")
    assert (code, GPU in str(json.loads(out)["unplaced"][0]["why"])) == (1, True)
    code, out, _ = cli("plan", "--gpu", OTHER_GPU, "-o", "json")
    assert (code, [one["address"] for one in json.loads(out)["guests"][0]["devices"] if one["kind"] == "gpu"]) == (
        0, [OTHER_GPU],
    )  # fmt: skip
    before = cli.root.tree()
    for words in ((str(plan), "--yes"), (str(plan), "--dry-run")):
        code, out, err = cli("apply", *words)
        assert (code, out) == (3, "")
        assert f"{GPU} is quarantined since" in block(err)["error"]
    assert cli.root.tree().keys() - before.keys() == {f"{STATE}/lock"}

    notes = cli.json("status")["notes"]
    assert f"{GPU} is quarantined since" in notes[0]
    assert notes[1].startswith(f"virsh can start a guest with a quarantined device: {PLACE} is not installed")
    code, out, err = handover(cli, "status")
    assert (code, err) == (0, "")
    assert f"{GPU}  quarantined since" in out
    assert "are not recorded" in out
    assert handover(cli, "release", GPU, "--why", " ")[0] == 2
    assert handover(cli, "release", OTHER_GPU, "--why", "x")[0] == 3
    assert handover(cli, "release", "gpu", "--why", "x")[0] == 2
    assert handover(cli, "release", GPU, "--why", "back to the maker")[0] == 0
    assert written_quarantine(cli.root) == "end 0"
    (record,) = json.loads(handover(cli, "status", "-o", "json")[1])["devices"]
    assert (record["record"]["state"], record["record"]["why"]) == ("released", "back to the maker")
    assert cli("plan", "--gpu", GPU)[0] == 0
    assert handover(cli, "release", GPU, "--why", "again")[0] == 3


@pytest.mark.parametrize("kept", ["quarantined", "starts"])
def test_a_lost_register_frees_nothing(cli: Cli, plan: Path, kept: str) -> None:
    """The hook's list and the record of starts say that there was one."""
    quarantined(cli.root)
    for name in {"register.json", "quarantined", "starts"} - {kept}:
        (cli.root.path / STATE / "handover" / name).unlink()
    why = f"register of quarantined devices lost: absent, and handover/{kept} is there"
    code, out, _ = cli("plan", "--gpu", OTHER_GPU, "-o", "json")
    assert (code, why in json.loads(out)["unplaced"][0]["why"][0]) == (1, True)
    code, out, err = cli("apply", str(plan), "--yes")
    assert (code, out, "the register of quarantined devices is lost" in err) == (3, "", True)
    assert any("register of quarantined devices is lost" in one for one in cli.json("status")["notes"])
    _, out, _ = cli("validate", "-o", "json")
    (result,) = (one for one in json.loads(out)["results"] if one["check"] == "device-quarantined")
    assert (result["outcome"], why in result["actual"]) == ("unknown", True)
    _, out, _ = cli("validate", "-o", "prometheus")
    assert 'hosttune_handover_valid{device="unknown"} NaN' in out
    (cli.root.path / STATE / "handover").rename(cli.root.path / STATE / "away")  # the remedy that it names
    assert cli("plan", "--gpu", GPU)[0] == 0


def test_a_quarantined_device_is_not_reverted(cli: Cli, plan: Path) -> None:
    """Its driver, an earlier definition that had it, and the hook that guards it stay until it is released."""
    assert cli("apply", str(plan), "--yes")[0] == 0
    quarantined(cli.root)
    before = cli.root.contents()
    for words in ((), ("--force",)):
        code, out, err = cli("revert", "--yes", *words)
        assert (code, out) == (3, "")
        assert f"{GPU} is quarantined since" in err
        assert f"driver:{GPU} would be undone" in err
        assert "libvirt-hook:" in err
    assert (cli.root.contents(), cli.root.driver(GPU)) == (before, "vfio-pci")
    assert handover(cli, "release", GPU, "--why", "x")[0] == 0
    assert cli("revert", "--yes")[0] == 0
    assert cli.root.driver(GPU) == "nvidia"


@pytest.mark.parametrize(
    ("kind", "target", "old", "refused"),
    [
        ("driver", GPU, "nvidia", True),
        ("driver", OTHER_GPU, "nvidia", False),
        ("sriov-vfs", PHYSICAL, 0, True),  # the quarantined function would be gone, and not clean
        ("fabric-partition", f"3@{OTHER_GPU}+{GPU}", "inactive", True),
        ("mig-instance", f"{GPU} 1g.18gb:4", False, True),
        ("mig-instance", f"{OTHER_GPU} 1g.18gb:4", False, False),
        ("guest", "a", DEFINED, True),
        ("guest", "a", "<domain>", True),  # a definition that cannot be read may have it
        ("guest", "a", None, False),
        ("guest", "a", DEFINED.replace("0x41", "0x18"), False),
        ("libvirt-hook", PLACE, None, True),
        ("ksm", "/sys/kernel/mm/ksm/run", 1, False),
    ],
)
def test_what_of_a_quarantined_device_is_not_undone(
    kind: str, target: str, old: Any, refused: bool, tmp_path: Path
) -> None:
    (tmp_path / ".hosttune").mkdir()
    (tmp_path / ".hosttune/scratch").write_text("")
    devices = tmp_path / "sys/bus/pci/devices"
    for address in (PHYSICAL, VIRTUAL):
        (devices / address).mkdir(parents=True)
    (devices / VIRTUAL / "physfn").symlink_to(f"../{PHYSICAL}")
    store = Store(str(tmp_path / STATE))
    record_devices(store.folder, (held(GPU), held(VIRTUAL)))
    change = Record(
        step=1, kind=kind, target=target, actions=(), scope="runtime", needed=True, old=old, new="x", outcome="done"
    )
    header = Header(schema="", number=1, verb="apply", version="0", at=now_text())
    done = Transaction(header=header, records=(change,), state="applied", path="x")
    system = open_system(str(tmp_path))
    if refused:
        with pytest.raises(Refused, match="between two tenants"):
            refuse_between_tenants(system, store, done.records)
    else:
        refuse_between_tenants(system, store, done.records)
    record_devices(store.folder, (held(GPU, "clean"), held(VIRTUAL, "released")))
    refuse_between_tenants(system, store, done.records)


def held(address: str, state: Any = "quarantined") -> DeviceRecord:
    return DeviceRecord(address=address, identity=address, state=state, since=now_text(), why="hand-over 1")


def handover(cli: Cli, verb: str, *words: str) -> tuple[int, str, str]:
    """A command of the group, on the root of `cli`."""
    code = run(["handover", verb, "--root", str(cli.root.path), *words])
    out, err = cli._capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("text", ["", "{}", '{"schema": "hosttune.handover-register/v1", "devices": [', "\0"])
def test_a_damaged_register_gives_nothing_away(text: str, cli: Cli, plan: Path) -> None:
    cli.root.put(f"{STATE}/handover/register.json", text)
    assert cli("apply", str(plan), "--yes")[0] == 2
    code, out, _ = handover(cli, "status")
    assert (code, "cannot be read here" in out) == (0, True)
    host = json.loads(cli("discover", "-o", "json")[1])
    assert host["handover"] is None
    assert any("register" in one["where"] for one in host["problems"])


def test_a_capture_has_what_planning_needs_and_nothing_that_names_a_machine(root: Root, tmp_path: Path) -> None:
    """A live host whose register is in $HOSTTUNE_STATE, on a System that answers as the machine would."""
    record = quarantined(root)
    assert "uuid=" in record.identity
    text = _brief(HandoverState(devices=(record,), epochs={GPU: 1}))
    assert text is not None
    assert "uuid" not in text
    folder = tmp_path / "capture"
    applyroots.unpack(applyroots.EXAMPLE, folder)
    (folder / ".hosttune/scratch").unlink()
    for answer, quarantined_there in ((text, [GPU]), ("", None), (None, None)):
        path = folder / f".hosttune/commands/{REGISTER_ANSWER}"
        path.unlink(missing_ok=True)
        if answer is not None:
            path.write_text(answer)
        found = discover(open_system(str(folder))).handover
        assert (found and [one.address for one in found.devices]) == quarantined_there


def test_what_is_not_written_on_a_captured_host(cli: Cli, tmp_path: Path) -> None:
    document = tmp_path / "host.json"
    document.write_text(cli("discover", "-o", "json")[1])
    for words in (("--root", str(applyroots.EXAMPLE)), ("--host", str(document))):
        assert run(["handover", "release", *words, GPU, "--why", "x"]) == 3
        assert run(["handover", "status", *words]) == 0
    cli._capsys.readouterr()


def test_the_hook_is_installed_by_an_action_and_taken_back(cli: Cli, plan: Path, tmp_path: Path) -> None:
    path = edited(plan, tmp_path / "hook.json", actions=[HOOK], guests=[])
    assert outcomes(cli.json("apply", path, "--yes")) == {f"libvirt-hook:{PLACE}": "done"}
    hook = cli.root.path / PLACE[1:]
    assert hook.stat().st_mode & 0o777 == 0o755
    assert "folder=/var/lib/hosttune/handover\n" in hook.read_text()
    assert "by other programs: recorded and guarded by the hook" in handover(cli, "status")[1]
    assert outcomes(cli.json("apply", path, "--yes")) == {f"libvirt-hook:{PLACE}": "already"}
    cli.root.put(PLACE[1:], hook.read_text() + "exit 0\n")
    (drift,) = cli.json("status", code=1)["drift"]
    assert drift["actual"] == "of another version or state directory"
    recording = json.loads(handover(cli, "status", "-o", "json")[1])["recording"]
    assert recording["why"] == f"{PLACE} is not what this hosttune writes there"
    assert recording["active"] is False
    cli.json("revert", "--yes", "--force")
    assert not hook.exists()
    cli.root.put(PLACE[1:], "#!/bin/sh\nexit 0\n")
    assert outcomes(cli.json("apply", path, "--yes")) == {f"libvirt-hook:{PLACE}": "pending"}
    assert hook.read_text() == "#!/bin/sh\nexit 0\n"


# --- a statement's life ------------------------------------------------------------------------------------------


@pytest.fixture
def handed(cli: Cli, plan: Path, tmp_path: Path) -> Path:
    """A statement of one GPU of the root, with the hook installed and the plan's settings applied."""
    cli.json("apply", str(plan), "--yes")
    record = quarantined(cli.root)
    system = open_system(str(cli.root.path))
    before = discover(open_system(str(applyroots.EXAMPLE)))
    firmware = read_firmware(system, before, GPU)
    assert firmware == {"vbios": before.index.gpus[GPU].firmware_version}
    host = discover(system)
    device = handed_device(host, GPU, DONE, firmware, kind="gpu")
    assert (device.driver, device.epoch, device.state) == ("vfio-pci", 1, "clean")
    path = tmp_path / "statement.json"
    path.write_text(statement_of(site_of(system), host, [device]).to_json())
    changes: dict[str, Any] = {"state": "clean", "boot_id": host.boot_id, "driver": "vfio-pci"}
    assert host.handover is not None
    clean = host.handover.noted(msgspec.structs.replace(record, since=now_text(), firmware=firmware, **changes))
    record_devices(str(cli.root.path / STATE), (clean,))
    return path


def verified(cli: Cli, keys: Keys, file: Path, *more: str, place: str = "root") -> tuple[int, dict[str, Any]]:
    """The exit code and the answer of `verify`."""
    words = ["--signers", str(keys.signers), "--identity", SIGNER, "-o", "json", *more]
    there = ["--root", str(cli.root.path)] if place == "root" else ["--host", place]
    code = run(["handover", "verify", *there, str(file), *words])
    out, err = cli._capsys.readouterr()
    assert err == ""
    return code, json.loads(out)


def void(cli: Cli, keys: Keys, file: Path, *more: str, place: str = "root") -> set[str]:
    """The reasons' names."""
    code, answer = verified(cli, keys, file, *more, place=place)
    assert (code, answer["verdict"]) == (1, "void")
    return {one["reason"] for one in answer["reasons"]}


def test_the_life_of_a_statement(cli: Cli, plan: Path, handed: Path, keys: Keys, tmp_path: Path) -> None:
    assert void(cli, keys, handed) == {"no-signature", "no-expiry"}
    assert run(["handover", "sign", str(handed), "--key", str(keys.key), "--expires", "24h"]) == 0
    assert f"signed: {handed}.sig, valid until" in cli._capsys.readouterr().err
    code, answer = verified(cli, keys, handed, "--revoked", str(keys.revoked))
    assert (code, answer["verdict"], answer["about"], answer["reasons"]) == (0, "valid", "host", [])
    assert not (cli.root.path / STATE / "handover/signed").exists()  # verify writes nothing unless it is asked to
    assert shown(cli) == ("skip", "no signed statement of a hand-over is kept here", None, [])
    assert verified(cli, keys, handed, "--revoked", str(keys.revoked), "--keep")[0] == 0
    until = answer["expires_at"]
    assert shown(cli) == (
        "pass", f"valid, until {until}", datetime.fromisoformat(until).timestamp(),
        [f"{GPU}: its statement is valid until {until} (signer {SIGNER}, {JUST_NOW})"],
    )  # fmt: skip
    assert f"{GPU}  valid" in handover(cli, "status")[1]

    document = tmp_path / "host.json"
    document.write_text(cli("discover", "-o", "json")[1])
    assert void(cli, keys, handed, place=str(document)) == {"unknown"}  # the applied settings are not in it
    assert verified(cli, keys, handed, place=str(document))[1]["about"] == "document"

    data = handed.read_bytes()
    handed.write_bytes(data.replace(b'"epoch": 1', b'"epoch": 2'))
    assert void(cli, keys, handed) >= {"signature", "subject", "started"}
    handed.write_bytes(data)
    boot = cli.root.get(applyroots.BOOT_ID)
    cli.root.put(applyroots.BOOT_ID, boot[:-1] + ("0" if boot[-1] != "0" else "1") + "\n")
    assert void(cli, keys, handed) == {"boot", "unknown"}  # firmware was read before that boot
    cli.root.put(applyroots.BOOT_ID, boot + "\n")
    pages = cli.root.get(applyroots.PAGES)
    cli.root.put(applyroots.PAGES, f"{int(pages) - 1}\n")
    assert void(cli, keys, handed) == {"setting"}
    outcome, why, expiry, (note,) = shown(cli)
    assert (outcome, expiry, why in note) == ("warn", 0.0, True)
    assert why.startswith("void: hugepages:")
    assert verified(cli, keys, handed, "--keep")[0] == 1  # what is void is not kept: the older one stays
    cli.root.put(applyroots.PAGES, f"{pages}\n")
    assert verified(cli, keys, handed)[0] == 0

    cli.root.activate(7)
    found = cli.json("apply", edited(plan, tmp_path / "again.json", based_on=None), "--yes", "--start")
    assert outcomes(found)["guest-state:gpu-guest"] == "done"
    assert cli.root.get(f"{STATE}/handover/own-starts").startswith(f"{GPU} guest 20")
    assert void(cli, keys, handed) == {"started", "in-use", "unknown"}
    assert shown(cli)[:3] == ("skip", "a guest has it: the statement was for the time before its start", 0.0)
    for path in (cli.root.path / STATE / "handover/signed").glob("*.signers"):
        path.unlink()
    outcome, why, expiry, (note,) = shown(cli)
    assert (outcome, expiry is not None and math.isnan(expiry), "cannot read" in note) == ("unknown", True, True)


def test_a_list_of_revoked_keys_counts_from_when_the_host_was_given_it(
    cli: Cli, handed: Path, keys: Keys, tmp_path: Path
) -> None:
    """Kept with an older list; a newer one is given with a statement that is then void; the older undoes nothing."""
    assert run(["handover", "sign", str(handed), "--key", str(keys.key), "--expires", "24h"]) == 0
    cli._capsys.readouterr()
    older, newer = str(keys.revoked), tmp_path / "newer"
    newer.write_bytes(keys.key.with_suffix(".pub").read_bytes())
    answer = verified(cli, keys, handed, "--keep")[1]
    assert (answer["verdict"], answer["revoked"]) == ("valid", [])
    answer = verified(cli, keys, handed, "--revoked", older, "--keep")[1]
    assert [one["sha256"] for one in answer["revoked"]] == [hashlib.sha256(keys.revoked.read_bytes()).hexdigest()]
    assert verified(cli, keys, handed, "--revoked", str(newer))[1]["verdict"] == "void"
    assert verified(cli, keys, handed)[0] == 0  # without --keep nothing is written
    assert void(cli, keys, handed, "--revoked", str(newer), "--keep") == {"revoked"}
    assert void(cli, keys, handed) == void(cli, keys, handed, "--revoked", older, "--keep") == {"revoked"}
    outcome, _, expiry, (note,) = shown(cli)
    assert (outcome, expiry, "is void: its key is revoked" in note) == ("warn", 0.0, True)
    assert JUST_NOW in " ".join(handover(cli, "status")[1].split())

    byte, broken = handed.with_name("byte.json"), tmp_path / "broken"
    byte.write_bytes(handed.read_bytes() + b" ")
    byte.with_name("byte.json.sig").write_bytes(Path(f"{handed}.sig").read_bytes())
    broken.write_text("no key\n")
    words = ["handover", "verify", "--root", str(cli.root.path), str(byte), "--signers", str(keys.signers)]
    assert (
        run([*words, "--identity", SIGNER, "--keep", "--revoked", str(broken)]) == 2
    )  # it would void all from then on
    assert block(cli._capsys.readouterr().err)["where"] == str(broken)

    there = sorted((cli.root.path / STATE / "handover/revoked").iterdir())
    assert len(there) == 2
    for path in there:  # neither is what its name says
        whole = path.read_bytes()
        path.write_bytes(b"# none\n")
        told = ["--signers", str(keys.signers), "--identity", SIGNER]
        assert run(["handover", "verify", "--root", str(cli.root.path), str(handed), *told]) == 2
        found = block(cli._capsys.readouterr().err)
        assert (found["where"], "was changed since it was kept" in found["error"]) == (str(path), True)
        assert shown(cli)[0] == "unknown"
        path.write_bytes(whole)
    for path in there:
        path.unlink()
    outcome, _, expiry, (note,) = shown(cli)
    assert (outcome, expiry is not None and math.isnan(expiry)) == ("unknown", True)
    assert "a list of revoked keys that it was verified with is missing" in note


JUST_NOW = "list of revoked keys given less than an hour ago"


def shown(cli: Cli) -> tuple[str, str, float | None, list[str]]:
    """What validate, metrics and status show of the statement: outcome and its text, the expiry, the notes."""
    (result,) = (one for one in json.loads(cli("validate", "-o", "json")[1])["results"] if one["check"] == STATEMENT)
    lines = cli("validate", "-o", "prometheus")[1].splitlines()
    times = [float(one.split()[-1]) for one in lines if one.startswith("hosttune_handover_expiry_timestamp_seconds{")]
    notes = [
        one
        for one in json.loads(cli("status", "-o", "json")[1])["notes"]
        if "statement is" in one or "statement not" in one
    ]
    return result["outcome"], result["actual"], times[0] if times else None, notes


def test_a_start_that_the_hook_recorded(cli: Cli, handed: Path, keys: Keys) -> None:
    assert run(["handover", "sign", str(handed), "--key", str(keys.key), "--expires", "1h"]) == 0
    assert verified_quietly(cli, keys, handed) == 0
    starts, line = f"{STATE}/handover/starts", "guest 2026-01-01T00:00:00Z vm\n"
    before = cli.root.get(starts) + "\n"
    assert before.startswith(f"{GPU} hand-over 20")
    cli.root.put(starts, f"{before}{OTHER_GPU} {line}")
    assert verified_quietly(cli, keys, handed) == 0
    for text in (f"{before}{GPU} {line}", f"{before}* {line}", f"{before}{GPU}"):
        cli.root.put(starts, text)
        assert void(cli, keys, handed) == {"started", "unknown"}
    # The file was lost; then also written anew by a start, so that there are as many lines as before.
    for text in ("", f"{GPU} {line}"):
        cli.root.put(starts, text)
        assert void(cli, keys, handed) == {"unknown"}
    cli.root.put(starts, before)
    assert verified_quietly(cli, keys, handed) == 0
    cli.root.put(".hosttune/unreadable", f"{PLACE}\tEIO\n")
    assert void(cli, keys, handed) == {"unknown"}
    (cli.root.path / ".hosttune/unreadable").unlink()
    (cli.root.path / PLACE[1:]).unlink()
    assert void(cli, keys, handed) == {"setting", "unknown"}
    record = read_register(str(cli.root.path / STATE)).record(GPU)
    assert record is not None
    record_devices(str(cli.root.path / STATE), (msgspec.structs.replace(record, state="quarantined"),))
    assert "quarantined" in void(cli, keys, handed)


def verified_quietly(cli: Cli, keys: Keys, file: Path) -> int:
    """The exit code of `verify`, whatever was printed before."""
    cli._capsys.readouterr()
    return verified(cli, keys, file)[0]


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (("verify", "{file}", "--signers", "{keys}/none", "--identity", "a"), "{keys}/none"),
        (("verify", "{file}", "--signers", "{keys}/allowed_signers", "--identity", "*"), "--identity"),
        (("verify", "{file}", "--signers", "{keys}/allowed_signers", "--identity", "a", "--revoked", "/none"), "/none"),
        (("verify", "/none", "--signers", "{keys}/allowed_signers", "--identity", "a"), "/none"),
        (("verify", "{keys}/key.pub", "--signers", "{keys}/allowed_signers", "--identity", "a"), "{keys}/key.pub"),
        (("verify", "-", "--signers", "{keys}/allowed_signers", "--identity", "a"), "-"),
        (("verify", "{file}"), "command line"),
        (("sign", "{keys}/key.pub", "--key", "{keys}/key", "--expires", "1h"), "{keys}/key.pub"),
        (("sign", "{file}", "--key", "{keys}/none", "--expires", "1h"), "{keys}/none"),
        (("sign", "{file}", "--key", "{keys}/key", "--expires", "1y"), "--expires"),
        (("sign", "-", "--key", "{keys}/key", "--expires", "1h"), "-"),
        (("release", "0000:41:00.0"), "command line"),
    ],
)
def test_bad_input(words: tuple[str, ...], where: str, keys: Keys, tmp_path: Path, cli: Cli) -> None:
    from handovers import statement

    file = tmp_path / "statement.json"
    file.write_text(statement().to_json())
    names = {"file": str(file), "keys": str(keys.key.parent)}
    assert run(["handover", *(word.format(**names) for word in words)]) == 2
    out, err = cli._capsys.readouterr()
    assert out == ""
    assert block(err)["where"] == where.format(**names)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root", "statement.json"]
