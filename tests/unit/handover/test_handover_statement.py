"""The statement of a hand-over: its digests, and its signature by a real ssh-keygen."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from handovers import DONE, DRIVE, GPU, SIGNER, Keys, statement
from hypothesis import given, settings
from hypothesis import strategies as st
from sweeps import examples, sample

from hosttune.errors import BadInput, HosttuneError
from hosttune.handover.signing import SUFFIX, Unclean, check_list, parse_duration, sign, signature_reasons
from hosttune.model.handover import PREDICATE_TYPE, STATEMENT_TYPE, Statement, canonical_json, digest_of

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no OpenSSH client")
NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)
DAY = timedelta(hours=24)


# --- the document ------------------------------------------------------------------------------------------------


def test_a_statement_is_an_in_toto_statement_with_the_digests_of_its_fields() -> None:
    found = json.loads(statement().to_json())
    assert (found["_type"], found["predicateType"]) == (STATEMENT_TYPE, PREDICATE_TYPE)
    predicate = found["predicate"]
    rows = [("node1", {name: predicate[name] for name in ("host", "boot_id", "machine", "applied")})]
    for device in predicate["devices"]:
        fields = {name: device[name] for name in ("address", "identity", "firmware", "driver", "epoch")}
        rows.append((device["address"], fields))
    assert [(one["name"], one["digest"]["sha256"]) for one in found["subject"]] == [
        (name, digest_of(fields)) for name, fields in rows
    ]


def test_the_canonical_form_is_fixed() -> None:
    """A known text and its digest, by another tool: printf '{"a":[1,null,true],"é":"x"}' | sha256sum."""
    assert canonical_json({"é": "x", "a": [1, None, True]}) == b'{"a":[1,null,true],"\xc3\xa9":"x"}'
    assert digest_of({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abcé", max_size=3), inner, max_size=4),
    max_leaves=12,
)


def turned(value: Any) -> Any:
    """The same value with the keys of every mapping in the opposite order."""
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    return [turned(one) for one in value] if isinstance(value, list) else value


@given(JSON)
@settings(max_examples=examples(60, full=600), deadline=None)
def test_the_order_of_keys_changes_no_digest(value: Any) -> None:
    assert canonical_json(turned(value)) == canonical_json(value)
    assert json.loads(canonical_json(value)) == value


def test_a_statement_survives_its_file() -> None:
    assert Statement.from_json(statement().to_json()) == statement()


def broken(change: Mapping[str, Any]) -> str:
    """The statement's text, with values at paths ("predicate.devices.0.epoch") replaced."""
    document = json.loads(statement().to_json())
    for path, value in change.items():
        *above, last = path.split(".")
        place = document
        for name in above:
            place = place[int(name)] if isinstance(place, list) else place[name]
        place[int(last) if isinstance(place, list) else last] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        ("", "not a JSON document", "statement"),
        (statement().to_json()[:-20], "not a JSON document", "statement"),
        ("[" * 100_000, "nested deeper", "statement"),
        ("[]", "_type is 'None'", "statement"),
        (broken({"_type": "https://in-toto.io/Statement/v0.1"}), "_type is", "statement"),
        (broken({"predicateType": "https://slsa.dev/provenance/v1"}), "predicateType is", "statement"),
        (broken({"subject.0.digest.sha256": "D" * 64}), "not a sha256", "$.subject[0].digest.sha256"),
        (broken({"predicate.devices.0.epoch": "3"}), "expected a whole number", "$.predicate.devices[0].epoch"),
        (broken({"predicate.devices.1.address": GPU}), "occurs twice", "$.predicate.devices[1]"),
        (broken({"predicate.devices.1.address": "../../x"}), "not a PCI address", "$.predicate.devices[1].address"),
        (broken({"predicate.devices.1.state": "fine"}), "invalid value 'fine'", "$.predicate.devices[1].state"),
        (broken({"predicate.issued_at": "yesterday"}), "not a time", "$.predicate.issued_at"),
        (broken({"predicate.issued_at": "2026-01-01T00:00:00"}), "not a time", "$.predicate.issued_at"),
        (broken({"predicate.expires_at": "0001-01-01T00:00:00+23:00"}), "not a time", "$.predicate.expires_at"),
        (statement().to_json().replace('"host": "node1"', '"host": "a", "host": "b"'), "is there twice", "statement"),
        (statement().to_json().replace("node1", "\\ud800"), "half of a surrogate", "statement"),
        (" " * (5 << 20), "larger than 4 MiB", "statement"),
    ],
)  # fmt: skip
def test_hostile_text_is_refused_with_its_place(text: str, what: str, where: str) -> None:
    with pytest.raises(BadInput) as error:
        Statement.from_json(text)
    assert what in error.value.what
    assert where in error.value.where
    assert error.value.exit_code == 2


# --- the signature -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "statement.json"
    path.write_text(statement().to_json())
    return path


def reasons(keys: Keys, file: Path, *, identity: str = SIGNER, revoked: bool = True) -> list[str]:
    """The names of the reasons against a signature."""
    krl = (str(keys.revoked),) if revoked else ()
    found = signature_reasons(file.read_bytes(), f"{file}{SUFFIX}", str(keys.signers), identity, krl)
    return [one.reason for one in found]


def test_what_is_signed_is_verified(keys: Keys, file: Path) -> None:
    signed = sign(str(file), str(keys.key), DAY, at=NOW)
    assert signed.predicate.expires_at == "2026-01-02T01:00:00+00:00"
    assert Statement.from_json(file.read_bytes()) == signed
    assert reasons(keys, file) == reasons(keys, file, revoked=False) == []
    assert signed.subject == statement().subject


def test_every_changed_byte_is_noticed(keys: Keys, file: Path, tmp_path: Path) -> None:
    sign(str(file), str(keys.key), DAY, at=NOW)
    data = file.read_bytes()
    changed = tmp_path / "changed.json"
    shutil.copy(f"{file}{SUFFIX}", f"{changed}{SUFFIX}")

    @given(st.integers(0, len(data) - 1), st.integers(0, 255))
    @settings(max_examples=examples(20, full=400), deadline=None)
    def try_one(place: int, byte: int) -> None:
        changed.write_bytes(data[:place] + bytes((byte,)) + data[place + 1 :])
        if changed.read_bytes() == data:
            return
        try:
            Statement.from_json(changed.read_bytes())
        except BadInput:
            return  # unparsable: exit 2
        assert reasons(keys, changed) == ["signature"]

    try_one()


def test_a_signature_that_is_missing_cut_or_of_another_namespace(keys: Keys, file: Path) -> None:
    assert reasons(keys, file) == ["no-signature"]
    sign(str(file), str(keys.key), DAY, at=NOW)
    signature = Path(f"{file}{SUFFIX}")
    whole = signature.read_text()
    signature.write_text(whole[:120])
    assert reasons(keys, file) == ["signature"]
    signature.write_text("")
    assert reasons(keys, file) == ["signature"]
    signature.unlink()
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-n", "file", "-f", str(keys.key), str(file)], check=True)
    assert reasons(keys, file) == ["signature"]


def test_a_signer_who_is_not_allowed(keys: Keys, file: Path) -> None:
    sign(str(file), str(keys.other), DAY, at=NOW)
    assert reasons(keys, file) == ["signer"]
    sign(str(file), str(keys.key), DAY, at=NOW)
    assert reasons(keys, file, identity="eve@example.com") == ["signer"]
    try:
        keys.allow(keys.key, 'valid-before="20200101"')
        assert reasons(keys, file) == ["signer"]
    finally:
        keys.allow(keys.key)
    assert reasons(keys, file) == []


def test_a_revoked_key(keys: Keys, file: Path) -> None:
    sign(str(file), str(keys.key), DAY, at=NOW)
    try:
        keys.revoke(keys.key)
        assert reasons(keys, file) == ["revoked"]
        assert reasons(keys, file, revoked=False) == []
    finally:
        keys.revoke()


def test_lists_that_cannot_be_read_are_an_error(keys: Keys, file: Path) -> None:
    sign(str(file), str(keys.key), DAY, at=NOW)
    for signers, revoked in ((file.parent / "none", keys.revoked), (keys.signers, file.parent / "none")):
        with pytest.raises(BadInput, match="cannot read"):
            signature_reasons(file.read_bytes(), f"{file}{SUFFIX}", str(signers), SIGNER, (str(revoked),))


def test_every_list_of_revoked_keys_counts(keys: Keys, file: Path, tmp_path: Path) -> None:
    """A KRL and a file of public keys; what is neither is an error, and not a revoked key."""
    sign(str(file), str(keys.key), DAY, at=NOW)
    plain, other, broken = (tmp_path / name for name in ("plain", "other", "broken"))
    plain.write_bytes(keys.key.with_suffix(".pub").read_bytes())
    other.write_bytes(b"# none of ours\n" + keys.other.with_suffix(".pub").read_bytes())
    broken.write_bytes(keys.revoked.read_bytes()[:20])

    def found(*lists: Path) -> list[str]:
        told = signature_reasons(
            file.read_bytes(), f"{file}{SUFFIX}", str(keys.signers), SIGNER, tuple(map(str, lists))
        )
        return [one.reason for one in told]

    assert found(keys.revoked, other) == []
    assert found(keys.revoked, other, plain) == found(plain, keys.revoked) == ["revoked"]
    plain.write_text("# none\n\n")
    check_list(str(plain))
    assert found(plain) == []
    for bad in (broken, file):
        with pytest.raises(BadInput, match="not a list of revoked keys") as raised:
            found(keys.revoked, bad)
        assert raised.value.where == str(bad)


@pytest.mark.parametrize("left", [b"", b"\n", bytes(100), b"# ours\n" + bytes(80)])
def test_a_list_of_revoked_keys_that_lost_its_contents_is_an_error(
    keys: Keys, file: Path, tmp_path: Path, left: bytes
) -> None:
    """What a copy that broke off, or a crash, leaves; ssh-keygen finds no key revoked by it."""
    sign(str(file), str(keys.key), DAY, at=NOW)
    lost = tmp_path / "lost"
    lost.write_bytes(left)
    with pytest.raises(BadInput, match="an empty list of revoked keys, or one with zero bytes") as raised:
        signature_reasons(file.read_bytes(), f"{file}{SUFFIX}", str(keys.signers), SIGNER, (str(lost),))
    assert raised.value.where == str(lost)


def test_no_beginning_of_a_list_makes_a_revoked_key_good(keys: Keys, file: Path, tmp_path: Path) -> None:
    """A KRL without its sections is one without keys, and cannot be told from it: its head of 44 bytes alone."""
    sign(str(file), str(keys.key), DAY, at=NOW)
    try:
        keys.revoke(keys.other, keys.key)
        whole, cut, good = keys.revoked.read_bytes(), tmp_path / "cut", []
        for length in sample("a list of revoked keys that is cut", range(len(whole)), 12):
            cut.write_bytes(whole[:length])
            try:
                told = signature_reasons(file.read_bytes(), f"{file}{SUFFIX}", str(keys.signers), SIGNER, (str(cut),))
            except BadInput:
                continue
            good += [length] if not told else []
    finally:
        keys.revoke()
    assert set(good) <= {44}


def test_only_clean_devices_are_signed(keys: Keys, file: Path) -> None:
    step = msgspec.structs.replace(DONE[3], outcome="not-supported", why="no sanitize, no format")
    (gpu, drive) = statement().predicate.devices
    unclean = msgspec.structs.replace(drive, steps=(*DONE[:3], step, *DONE[4:]))
    cut = msgspec.structs.replace(gpu, steps=DONE[:5])
    held = msgspec.structs.replace(gpu, state="quarantined")
    for devices, what in (
        ((gpu, unclean), f"{DRIVE}: erased: not-supported (no sanitize, no format)"),
        ((cut, drive), f"{GPU}: step returned is missing"),
        ((held, drive), f"{GPU}: its state is quarantined"),
        ((), "it has no device"),
    ):
        file.write_text(statement(devices=devices).to_json())
        with pytest.raises(Unclean) as error:
            sign(str(file), str(keys.key), DAY)
        assert what in error.value.what
        assert error.value.exit_code == 1
        assert not Path(f"{file}{SUFFIX}").exists()


def test_what_sign_refuses(keys: Keys, file: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot read .*no-key"):
        sign(str(file), str(keys.key.parent / "no-key"), DAY)
    with pytest.raises(HosttuneError, match="ssh-keygen"):
        sign(str(file), str(keys.signers), DAY)  # not a key
    forged = json.loads(file.read_text())
    forged["predicate"]["devices"][0]["epoch"] = 7
    file.write_text(json.dumps(forged))
    with pytest.raises(BadInput, match="digests of its subjects"):
        sign(str(file), str(keys.key), DAY)
    assert not Path(f"{file}{SUFFIX}").exists()


def test_a_clock_that_is_behind_the_statement_signs_nothing(keys: Keys, file: Path) -> None:
    before = file.read_bytes()
    with pytest.raises(BadInput, match=r"issued at 2026-01-01.*it is 2025-12-31T23:54:00.* one of the clocks is wrong"):
        sign(str(file), str(keys.key), DAY, at=datetime(2025, 12, 31, 23, 54, tzinfo=UTC))
    assert (file.read_bytes(), Path(f"{file}{SUFFIX}").exists()) == (before, False)
    sign(str(file), str(keys.key), DAY, at=datetime(2025, 12, 31, 23, 56, tzinfo=UTC))  # what clocks may differ by
    assert reasons(keys, file) == []


@pytest.mark.parametrize("text", ["", "24", "0h", "-1h", "1w", "24 h", "99999d", "31d", "1h1m", "١h"])
def test_an_expiry_that_is_not_a_time(text: str) -> None:
    with pytest.raises(BadInput) as error:
        parse_duration(text)
    assert error.value.where == "--expires"
