"""The answers of nvme-cli, in the forms of its versions (tests/cases/nvme/README.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cutshort import put

from hosttune.errors import CommandFailed
from hosttune.handover.erasing.nvme import (
    Drive,
    Format,
    NvmeIdentity,
    SanitizeLog,
    Secondary,
    parse_format,
    parse_identity,
    parse_sanitize_log,
    parse_secondaries,
)
from hosttune.machine.scratch import Scratch

CASES = Path(__file__).parents[2] / "cases/nvme"
VERSIONS = ("1.16", "2.3")
MODEL = {"serial": "EXAMPLE0001", "model": "EXAMPLE NVME SSD", "firmware": "FW000001"}
ENTERPRISE = NvmeIdentity(**MODEL, cntlid=0x41, cmic=2, oacs=0x9E, fna=4, sanicap=0x60000003, unvmcap=1 << 30)
SMALL = NvmeIdentity(
    serial="EXAMPLE0002", model="WDC PC SN730 SDBQNTY-256G-1001", firmware="11170101", cntlid=8215, cmic=0, oacs=23,
    fna=4, sanicap=0x60000003, unvmcap=0,
)  # fmt: skip
LOGS = {
    "done": SanitizeLog(
        status=1, erased=True, progress=65535, cdw10=10, block_erase_seconds=40, crypto_erase_seconds=5
    ),
    "done4": SanitizeLog(status=4, erased=True, progress=65535, cdw10=2),
    "never": SanitizeLog(
        status=0, erased=True, progress=65535, cdw10=0,
        overwrite_seconds=10800, block_erase_seconds=120, crypto_erase_seconds=2,
    ),
    "running": SanitizeLog(status=2, erased=False, progress=655, cdw10=2),
    "failed": SanitizeLog(status=3, erased=False, progress=65535, cdw10=4),
}  # fmt: skip


def plain(name: str) -> Any:
    return json.loads((CASES / f"{name}.json").read_text())


@pytest.mark.parametrize(
    ("case", "expected"), [*((f"id-ctrl-{version}", ENTERPRISE) for version in VERSIONS), ("id-ctrl-sn730-1.x", SMALL)]
)
def test_identify_controller(case: str, expected: NvmeIdentity) -> None:
    found = parse_identity(plain(case))
    assert found == expected
    assert (found.alone, found.formats) == (case.endswith("1.x"), True)
    assert (found.manages_namespaces, found.virtualizes) == (case[-3:] != "1.x", case[-3:] != "1.x")


@pytest.mark.parametrize("version", VERSIONS)
def test_identify_namespace(version: str) -> None:
    found = parse_format(plain(f"id-ns-{version}"))
    assert found == Format(bytes=7501476528 * 512, lbaf=0, pi=2, pil=1, ms=1, remaining=25)


@pytest.mark.parametrize("version", VERSIONS)
def test_secondary_controllers(version: str) -> None:
    found = parse_secondaries(plain(f"list-secondary-{version}"))
    assert found == tuple(Secondary(cntlid=0x100 + n, function=n + 1, online=bool(n)) for n in range(2))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", LOGS)
def test_sanitize_log(case: str, version: str) -> None:
    assert parse_sanitize_log(plain(f"sanitize-log-{case}-{version}")) == LOGS[case]


@pytest.mark.parametrize("version", ["2.8", "2.16"])
def test_sanitize_log_of_other_versions(version: str) -> None:
    assert parse_sanitize_log(plain(f"sanitize-log-done-{version}")) == LOGS["done"]


class Answers(Scratch):
    """A host whose nvme-cli prints one text, and whose changes are noted."""

    def __init__(self, root: Path, text: str) -> None:
        put(root, "/.hosttune/scratch", "")
        super().__init__(str(root))
        self.text, self.changes = text, []  # type: ignore[var-annotated]

    def run(self, argv: tuple[str, ...], *, timeout: float = 20.0) -> str:
        return self.text

    def change(self, argv: tuple[str, ...], *, timeout: float = 60.0, stdin: str | None = None) -> str:
        self.changes.append(argv)
        return ""


@pytest.mark.parametrize("version", VERSIONS)
def test_lists(tmp_path: Path, version: str) -> None:
    namespaces = Drive(Answers(tmp_path, (CASES / f"list-ns-{version}.json").read_text()), "nvme0")
    assert namespaces.namespaces(allocated=True) == (1, 2, 9)
    controllers = Drive(Answers(tmp_path, (CASES / f"list-ctrl-{version}.json").read_text()), "nvme0")
    assert controllers.controllers() == (0x41, 0x42)


def test_the_words_of_a_format(tmp_path: Path) -> None:
    """nvme-cli 1.16 and 2.3 send this dword for --lbaf=1 --ms=1 --pi=2 --pil=1 --ses=2."""
    system = Answers(tmp_path, "")
    form = Format(bytes=4096, lbaf=1, pi=2, pil=1, ms=1)
    Drive(system, "nvme3").erase_namespace(7, form, 2, 60.0)
    words = ("--opcode=0x80", "--namespace-id=7", "--cdw10=0x551", "--timeout=60000")
    assert system.changes == [("nvme", "admin-passthru", "/dev/nvme3", *words)]


def damaged(case: str) -> list[str]:
    """The text of a case, cut off, and with each of its values lost or of another kind."""
    text = (CASES / f"{case}.json").read_text()
    found = ["", "null", "[]", "{}", "0", '"a"', text[: len(text) // 2], text + "x"]
    whole = json.loads(text)
    for part in (whole, *(value for value in whole.values() if isinstance(value, dict))):
        for key in list(part):
            kept = part[key]
            others: tuple[Any, ...] = (None, "x", -(1 << 40), [], True)
            for other in others:
                part[key] = other
                found.append(json.dumps(whole))
            del part[key]
            found.append(json.dumps(whole))
            part[key] = kept
    return found


@pytest.mark.parametrize("case", ["sanitize-log-done-2.3", "sanitize-log-done-2.16"])
def test_a_damaged_log_is_never_another_log(tmp_path: Path, case: str) -> None:
    """It is the same log (a value that is not used was lost), one with a time less, or it is not understood."""
    refused = []
    for text in damaged(case):
        try:
            found = Drive(Answers(tmp_path, text), "nvme0").sanitize_log()
        except CommandFailed as error:
            refused.append(error.reason)
        else:
            assert found == LOGS["done"], text
    assert len(refused) > 40
    assert all("not understood" in reason for reason in refused)


def test_a_damaged_identity_is_not_understood(tmp_path: Path) -> None:
    for key in ("sn", "mn", "fr", "cntlid", "cmic", "oacs", "fna", "sanicap"):
        wrong: tuple[Any, ...] = (None, [], -1 if key != "sanicap" else 1 << 32, True)
        for value in wrong:
            text = json.dumps({**plain("id-ctrl-2.3"), key: value})
            with pytest.raises(CommandFailed, match="not understood"):
                Drive(Answers(tmp_path, text), "nvme0").identity()
    for serial in ("   ", "a\nb", "a\x00"):
        text = json.dumps({**plain("id-ctrl-2.3"), "sn": serial})
        with pytest.raises(CommandFailed, match="not understood"):
            Drive(Answers(tmp_path, text), "nvme0").identity()
