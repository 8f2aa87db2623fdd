"""A Reader gives values or says why not: numbers in their range, text without NULs, what cannot be seen."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hosttune.errors import Unreadable
from hosttune.machine import manifest
from hosttune.machine.capture import Archive
from hosttune.machine.reader import Reader
from hosttune.machine.system import COMPLETE
from hosttune.model.host import Problem
from hosttune.model.values import MAX_ID, MAX_SIZE

AT = "/sys/file"


def reading(text: str | bytes) -> Reader:
    return Reader(Archive({AT: text.encode() if isinstance(text, str) else text}, {}, "test"))


@pytest.mark.parametrize(
    ("text", "count", "identifier"),
    [
        ("0\n", 0, 0),
        ("21", 21, 21),
        (str(MAX_ID), MAX_ID, MAX_ID),
        (str(MAX_ID + 1), MAX_ID + 1, "not an id"),
        (str(MAX_SIZE), MAX_SIZE, "not an id"),
        (str(MAX_SIZE + 1), "not a count", "not an id"),
        ("18446744073709551615", "not a count", "not an id"),
        ("9" * 5000, "not a count", "not an id"),
        ("-1", "not a count", None),  # the kernel's own word for "none"
        ("-2", "not a count", "not an id"),
        ("0x10", "not a count", "not an id"),
        ("", None, None),
    ],
)
def test_numbers_stay_in_their_range(text: str, count: int | str | None, identifier: int | str | None) -> None:
    for expected, method in ((count, Reader.count), (identifier, Reader.identifier)):
        reader = reading(text)
        value = method(reader, AT)
        doubts = [Problem(what=expected, where=AT, why=f"reads {text[:40]!r}")] if isinstance(expected, str) else []
        assert (value, reader.problems) == (None if doubts else expected, doubts)


@pytest.mark.parametrize(
    ("text", "base", "value"),
    [
        ("-1", 10, -1),
        ("0xffffffffffffffff", 16, (1 << 64) - 1),
        ("18446744073709551616", 10, None),
        ("9" * 5000, 10, None),
        *((text, 10, None) for text in ("+1", "1_2", "٤٥", "0x10", "--1", "1 2", "- 1")),
        *((text, 16, None) for text in ("-1", "1_0", "0x", "0x" + "f" * 17)),
    ],
)
def test_an_integer_has_at_most_64_bits(text: str, base: int, value: int | None) -> None:
    reader = reading(text)
    assert reader.integer(AT, base) == value
    assert [problem.what for problem in reader.problems] == (["not a number"] if value is None else [])


@pytest.mark.parametrize("data", [b"7\n\0", b"7\0\n", b"7\0", b" 7 \n"])
def test_a_terminating_nul_is_no_text(data: bytes) -> None:
    reader = reading(data)
    assert (reader.text(AT), reader.integer(AT), reader.count(AT)) == ("7", 7, 7)


class Shut(Archive):
    """Below /shut nothing can be seen."""

    def exists(self, path: str) -> bool:
        self._look(path)
        return super().exists(path)

    def list(self, path: str) -> list[str]:
        self._look(path)
        return super().list(path)

    def query(self, name: str, live: Callable[[], str | None]) -> str | None:
        raise Unreadable(f"/.hosttune/commands/{name}", "Permission denied")

    @staticmethod
    def _look(path: str) -> None:
        if path.startswith("/shut"):
            raise Unreadable(path, "Permission denied")


def test_what_cannot_be_seen_is_neither_there_nor_absent() -> None:
    reader = Reader(Shut({"/sys/here": b""}, {}, "test"))
    assert (reader.exists("/sys/here"), reader.exists("/sys/none"), reader.problems) == (True, False, [])
    assert reader.exists("/shut/kvm") is None
    assert reader.listing("/shut/nodes") is None
    assert reader.query("uname-m", str) is None
    assert [(p.what, p.where) for p in reader.problems] == [
        ("unreadable", "/shut/kvm"),
        ("unreadable", "/shut/nodes"),
        ("unreadable", "/.hosttune/commands/uname-m"),
    ]


def test_a_listing_is_unknown_where_an_incomplete_capture_lacks_it() -> None:
    assert Reader(Archive({}, {}, "x")).listing("/sys/none") is None
    assert Reader(Archive({}, {}, "x", ["/sys/none"])).listing("/sys/none") == []
    assert Reader(Archive({COMPLETE: b"1\n"}, {}, "x")).listing("/sys/none") is None, (
        "an older version lists no absence"
    )
    looked_for = manifest.write((), (), ["/sys/none"]).encode()
    assert Reader(Archive({COMPLETE: looked_for}, {}, "x")).listing("/sys/none") == []
    assert Reader(Archive({COMPLETE: looked_for}, {}, "x")).listing("/sys/other") is None
    assert Reader(Archive({"/sys/some/a": b""}, {}, "x")).listing("/sys/some") == ["a"]


def test_what_escapes_a_reader_is_an_unreadable_capture() -> None:
    assert Unreadable("/sys", "Permission denied").exit_code == 2
