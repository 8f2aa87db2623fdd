"""A result as people read it: the worst first with its reason, targets that are alike as one row."""

from __future__ import annotations

from hosttune.model.result import Drift, Entry, Result
from hosttune.model.settingtext import value_lines
from hosttune.report.draw.text import printed
from hosttune.report.result import result_report
from hosttune.settings.drivers import Driver

GPUS = ("0000:18:00.0", "0000:29:00.0", "0000:41:00.0")


def text(result: Result) -> str:
    """What is printed, with one blank between words: where a line is broken does not count."""
    return " ".join(printed(result_report(result)).split())


def bound(address: str, outcome: str = "done", why: str | None = None) -> Entry:
    return Entry(action=f"driver:{address}", outcome=outcome, before="nvidia", want="vfio-pci", why=why)  # type: ignore[arg-type]


def test_what_failed_comes_first_with_its_reason() -> None:
    entries = (bound(GPUS[0]), bound(GPUS[1], "failed", "the driver holds it"), bound(GPUS[2], "pending"))
    said = text(Result(verb="apply", entries=entries, exit_code=1))
    assert said.index("the driver holds it") < said.index(GPUS[0]) < said.index(GPUS[2])


def test_targets_that_are_alike_are_one_row_and_others_are_not() -> None:
    same = text(Result(verb="apply", entries=tuple(map(bound, GPUS))))
    assert "driver of 3 targets, each: nvidia -> vfio-pci" in same
    assert same.count("vfio-pci") == 1
    assert all(address in same for address in GPUS)
    apart = text(Result(verb="apply", entries=(bound(GPUS[0]), bound(GPUS[1], why="it is its guest's"))))
    assert apart.count("vfio-pci") == 2


def test_what_has_drifted_comes_first_with_what_it_was_and_is() -> None:
    pages = Entry(action="hugepages:pool", outcome="done", before=0, want=254, after=254)
    drift = (Drift(action="hugepages:pool", expected=254, actual=300),)
    said = text(Result(verb="status", entries=(bound(GPUS[0]), pages), drift=drift))
    assert said.index("it was 254, and is 300 now") < said.index(GPUS[0])


def test_writes_to_alike_places_are_one_line_and_commands_are_all_there() -> None:
    cpus = tuple(f'write /sys/devices/system/cpu/cpu{n}/power/limit <- "{10 if n else 0}"' for n in range(4))
    reload = "run systemctl daemon-reload"
    said = text(Result(verb="apply", writes=(*cpus, reload, "file  /etc/x (mode 644, 9 bytes)\n  | line", reload)))
    assert 'cpu1/power/limit <- "10" (and 2 more places alike)' in said
    assert 'cpu0/power/limit <- "0" write' in said
    assert "cpu2/" not in said
    assert said.count(reload) == 2
    assert "| line" in said


def test_the_prompt_folds_alike() -> None:
    drivers = [(Driver(address), "nvidia", "vfio-pci", "") for address in GPUS]
    assert [*value_lines(drivers)] == ["  driver of 3 targets, each: nvidia -> vfio-pci", f"      {', '.join(GPUS)}"]
    assert [*value_lines(drivers[:1])] == [f"  driver {GPUS[0]}: nvidia -> vfio-pci"]


def test_contents_of_the_same_length_are_said_to_be_edited() -> None:
    files = Entry(action="guest-files:a", outcome="done", before={"x": "1\n"}, want={"x": "2\n"})
    assert "guest-files a: (1 file), edited" in text(Result(verb="apply", entries=(files,)))
