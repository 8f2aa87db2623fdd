"""Guests' processes and leftovers from a recorded /proc and /sys; all of it is synthetic."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosttune.discovery.processes import read_leftovers, read_processes
from hosttune.machine import manifest
from hosttune.machine.capture import Archive
from hosttune.machine.reader import Reader
from hosttune.machine.system import COMMANDS, COMPLETE
from hosttune.model.evidence import GuestProcess, GuestThread, Leftovers
from hosttune.model.host import Host, RunningGuest

PROCESSES = f"{COMMANDS}qemu-processes"
PID_FILE = "/run/libvirt/qemu/{}.pid"
RAM = "7f0{0}00{1}{2} bind:{0} file=/dev/hugepages/x huge dirty={1} N{0}={1} kernelpagesize_kB={2}\n"
OF_GUEST = (
    "7f0000000000 bind:0 file=/dev/hugepages/libvirt/qemu/12-{}/ram-node0 huge dirty=4 N0=4 kernelpagesize_kB=1048576\n"
)
HEAP = "55d0b0000000 default heap anon=77 dirty=77 N1=77 kernelpagesize_kB=4\n"


def thread(process: int, number: int, name: str, status: str | None) -> dict[str, str]:
    folder = f"/proc/{process}/task/{number}"
    return {f"{folder}/comm": f"{name}\n"} | ({} if status is None else {f"{folder}/status": status})


def on(cpus: str) -> str:
    return f"Name:\tx\nCpus_allowed:\tffff\nCpus_allowed_list:\t{cpus}\n"


def reader(files: Mapping[str, str], links: Mapping[str, str] | None = None) -> Reader:
    return Reader(Archive({path: text.encode() for path, text in files.items()}, dict(links or {}), "test"))


def of(files: Mapping[str, str], state: str | None = "running", name: str = "a") -> tuple[GuestProcess, Reader]:
    found = reader(files)
    (process,) = read_processes(found, Host(guests=(RunningGuest(name=name, state=state),))) or ()
    return process, found


RUNS = {
    PROCESSES: "17 a\n18 b\n",
    **thread(17, 17, "qemu-system-x86", on("0-1")),
    **thread(17, 20, "CPU 0/KVM", on("4")),
    **thread(17, 21, "CPU 1/KVM", on("5")),
    **thread(17, 22, "worker", on("0-1")),
    **thread(17, 23, "worker", on("0-1")),
    "/proc/17/numa_maps": HEAP + RAM.format(0, 6, 1048576) + RAM.format(1, 2, 1048576),
}


def test_a_guest_that_runs_is_read_with_its_threads_and_memory() -> None:
    process, found = of(RUNS)
    assert process == GuestProcess(
        guest="a",
        pid=17,
        threads=(
            GuestThread(name="qemu-system-x86", cpus="0-1"),
            GuestThread(name="CPU 0/KVM", cpus="4"),
            GuestThread(name="CPU 1/KVM", cpus="5"),
            GuestThread(name="worker", cpus="0-1"),  # alike ones once
        ),
        memory_by_node={"0": 6 << 30, "1": 2 << 30},
        page_sizes=(1 << 30,),
    )
    assert found.problems == []


@pytest.mark.parametrize("state", ["running", "paused", "crashed", "in shutdown"])
def test_a_paused_guest_has_a_process_too(state: str) -> None:
    assert of(RUNS, state)[0].pid == 17


@pytest.mark.parametrize("state", ["shut off", None])
def test_a_guest_that_does_not_run_has_none(state: str | None) -> None:
    assert read_processes(reader(RUNS), Host(guests=(RunningGuest(name="a", state=state),))) == ()


def test_unknown_guests_are_unknown_processes() -> None:
    assert read_processes(reader(RUNS), Host(guests=None)) is None


def test_a_stale_file_of_libvirt_names_no_process() -> None:
    """The id belongs to a shell now; no QEMU has the guest's name."""
    files = {PROCESSES: "18 b\n", PID_FILE.format("a"): "17\n", **thread(17, 17, "bash", on("0-127"))}
    assert of(files)[0] == GuestProcess(guest="a")


@pytest.mark.parametrize(
    ("kept", "pid"),
    [("19", 19), ("17", 17), ("18", None), ("", None), ("-17", None), ("17 19", None), ("9" * 40, None), ("١٧", None)],
)
def test_of_two_of_one_name_libvirt_says_which(kept: str, pid: int | None) -> None:
    files = {PROCESSES: "17 a\n18 b\n19 a\n", PID_FILE.format("a"): kept}
    assert of(files)[0].pid == pid


@pytest.mark.parametrize(
    ("kept", "pid"), [("17", 17), ("17\n", 17), (None, 17), ("18", None), ("", None), ("x", None), ("9" * 40, None)]
)
def test_libvirt_names_another_process(kept: str | None, pid: int | None) -> None:
    process, found = of(RUNS if kept is None else RUNS | {PID_FILE.format("a"): kept})
    assert process.pid == pid
    assert [problem.what for problem in found.problems] == ["process of a guest not known"] * (pid is None)


def test_the_file_of_libvirt_that_names_the_process_was_lost() -> None:
    path = PID_FILE.format("a")
    kept = manifest.write([*RUNS, path, COMPLETE], [], [])
    assert of(RUNS | {path: "17", COMPLETE: kept})[0].pid == 17
    assert of(RUNS | {COMPLETE: kept})[0].pid is None


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({PROCESSES: "17 a\n17 b\n"}, "process of two guests"),
        (thread(17, 17, "bash", on("0-1")), "process of another guest"),
        ({"/proc/17/numa_maps": OF_GUEST.format("b")}, "process of another guest"),
        ({"/proc/17/numa_maps": OF_GUEST.format("a") + OF_GUEST.format("b")}, "process of another guest"),
    ],
)
def test_a_process_of_another_guest_or_of_none(changes: dict[str, str], what: str) -> None:
    process, found = of(RUNS | changes)
    assert process == GuestProcess(guest="a")
    assert [problem.what for problem in found.problems] == [what]


@pytest.mark.parametrize(
    ("name", "folder"), [("a", "a"), ("a guest of twenty-six letters", "a\\040guest\\040of\\040twenty-si"), ("ä", "ä")]
)
def test_the_folder_of_its_huge_pages_names_the_guest(name: str, folder: str) -> None:
    files = {**RUNS, PROCESSES: f"17 {name}\n", "/proc/17/numa_maps": OF_GUEST.format(folder)}
    assert of(files, name=name)[0].memory_by_node == {"0": 4 << 30}


@pytest.mark.parametrize(
    "listed", ["0 a\n", "-1 a\n", f"{(1 << 22) + 1} a\n", f"{'9' * 5000} a\n", "١٧ a\n", "x a\n", "", "17\n"]
)
def test_a_hostile_list_of_processes_names_none(listed: str) -> None:
    assert of({PROCESSES: listed})[0] == GuestProcess(guest="a")


class Counting(Archive):
    """Notes which files are read."""

    def read_bytes(self, path: str) -> bytes | None:
        self.read_paths = [*getattr(self, "read_paths", []), path]
        return super().read_bytes(path)


def test_the_list_of_processes_is_read_once_for_all_guests() -> None:
    system = Counting({PROCESSES: b"1 a\n2 b\n3 c\n"}, {}, "test")
    guests = tuple(RunningGuest(name=name, state="running") for name in "abc")
    found = read_processes(Reader(system), Host(guests=guests)) or ()
    assert [process.pid for process in found] == [1, 2, 3]
    assert system.read_paths.count(PROCESSES) == 1


@pytest.mark.parametrize("name", ["../../etc/x", "a\0b", "a/b"])
def test_a_name_that_is_no_file_name_is_looked_up_in_no_folder(name: str) -> None:
    files = {PROCESSES: f"17 {name}\n19 {name}\n", "/run/libvirt/etc/x.pid": "17"}
    assert of(files, name=name)[0].pid is None


# --- threads -------------------------------------------------------------------------------------------------

HOSTILE = {
    "backwards": "5-1",
    "half a range": "4-",
    "only a dash": "-",
    "huge": "0-9999999",
    "many": ",".join("0-60000" for _ in range(3)),
    "long": "1" * 400,
}


@pytest.mark.parametrize("cpus", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_list_that_is_none_is_unknown_and_a_problem(cpus: str) -> None:
    process, found = of(RUNS | thread(17, 20, "CPU 0/KVM", on(cpus)))
    assert process.threads is not None
    assert GuestThread(name="CPU 0/KVM", cpus=None) in process.threads
    assert [problem.where for problem in found.problems] == ["/proc/17/task/20/status"]


@pytest.mark.parametrize("status", ["", "Name:\tx\n", "Cpus_allowed_list:\tabc\n", "Cpus_allowed_list:\t\n", on(",,")])
def test_a_status_without_the_list_is_unknown(status: str) -> None:
    process, _ = of(RUNS | thread(17, 20, "CPU 0/KVM", status))
    assert GuestThread(name="CPU 0/KVM", cpus=None) in (process.threads or ())


def test_a_refused_status_is_unknown_and_not_left_out() -> None:
    refused = "/proc/17/task/21/status\tPermission denied\n"
    files = {path: text for path, text in RUNS.items() if path != "/proc/17/task/21/status"}
    process, found = of({**files, "/.hosttune/unreadable": refused})
    assert GuestThread(name="CPU 1/KVM", cpus=None) in (process.threads or ())
    assert found.problems


def test_a_list_told_twice_is_none_and_alike_it_is_one() -> None:
    process, found = of(
        RUNS | thread(17, 20, "CPU 0/KVM", on("4") + on("0-7")) | thread(17, 21, "x", on("5") + on("5"))
    )
    assert {one.name: one.cpus for one in process.threads or ()} | {"CPU 0/KVM": None, "x": "5"} == {
        one.name: one.cpus for one in process.threads or ()
    }
    assert [problem.where for problem in found.problems] == ["/proc/17/task/20/status"]


@pytest.mark.parametrize(
    ("lost", "count", "missed"),
    [
        (None, 5, False),
        (None, 4, False),  # one began after the others were counted
        (23, 5, True),
        (17, None, True),  # a process has the thread of its own id
        (17, 5, True),
        (23, None, False),  # nobody counts them
    ],
)
def test_threads_that_are_counted_or_must_be_there_are_missed(
    lost: int | None, count: int | None, missed: bool
) -> None:
    counted = "" if count is None else f"Threads:\t{count}\n"
    files = {path: text + counted * path.endswith("/status") for path, text in RUNS.items()}
    process, found = of({path: text for path, text in files.items() if f"/task/{lost}/" not in path})
    assert (GuestThread(name="", cpus=None) in (process.threads or ())) is missed
    assert [problem.where for problem in found.problems] == ["/proc/17/task"] * missed


def test_a_process_without_threads_or_maps_shows_nothing() -> None:
    assert of({PROCESSES: "17 a\n"})[0] == GuestProcess(guest="a", pid=17)


# --- memory --------------------------------------------------------------------------------------------------


def test_pages_of_two_sizes_are_both_told() -> None:
    process, _ = of(RUNS | {"/proc/17/numa_maps": RAM.format(0, 1, 1048576) + RAM.format(1, 512, 2048)})
    assert process.page_sizes == (2 << 20, 1 << 30)
    assert process.memory_by_node == {"0": 1 << 30, "1": 1 << 30}


def test_without_huge_pages_everything_counts() -> None:
    process, _ = of(RUNS | {"/proc/17/numa_maps": HEAP + "7f00 bind:0 anon=1000 N0=1000 kernelpagesize_kB=4\n"})
    assert process.page_sizes == ()
    assert process.memory_by_node == {"0": 1000 << 12, "1": 77 << 12}


@pytest.mark.parametrize(
    ("lines", "resident"),
    [
        ("VmRSS:\t 4194304 kB\n", 4 << 30),
        ("", None),
        ("VmRSS:\t 4194304 kB\nVmRSS:\t 1 kB\n", None),
        ("VmRSS:\t -1 kB\n", None),
    ],
)
def test_the_kernel_counts_ordinary_memory_too(lines: str, resident: int | None) -> None:
    process, _ = of(RUNS | {"/proc/17/task/17/status": RUNS["/proc/17/task/17/status"] + lines})
    assert process.resident_bytes == resident


def test_pages_of_an_untold_size_are_unknown_memory() -> None:
    process, _ = of(RUNS | {"/proc/17/numa_maps": HEAP + "7f00 bind:0 huge N0=1000\n"})
    assert process.memory_by_node is None


HUGE = "7f0 bind:0 file=/dev/b huge dirty=4 N1=4 kernelpagesize_kB=1048576"


@pytest.mark.parametrize(
    "line",
    [
        *(HUGE.replace("N1=4", word) for word in ("N1=0x4", "N1=-4", "n1=4", "N1=٤", "N1=", "N1=3", "N1=4 N0=4")),
        HUGE[:36],
        HUGE,  # a second time
        "7f1 bind:0 anon=9 dirty=7 N0=7",
        "7f1 default mapped=x N0=7",
        "7f1",
    ],
)
def test_a_line_of_numa_maps_that_was_not_read_whole_leaves_the_memory_unknown(line: str) -> None:
    process, found = of(RUNS | {"/proc/17/numa_maps": f"{HEAP}{HUGE}\n{line}\n"})
    assert process.memory_by_node is None
    assert [problem.what for problem in found.problems] == ["not a line of numa_maps"]


@pytest.mark.parametrize(
    "line",
    [
        "7f1 default file=/usr/lib/x.so",
        "7f1 prefer (many):0-1 stack:17 anon=2 dirty=1 N0=2 kernelpagesize_kB=4",
        "7f1 default file=/x\\040N0=9 mapped=7 mapmax=2 active=3 N0=3 N1=4 kernelpagesize_kB=4",
        "7f1 default anon=3 mapped=7 N0=7 kernelpagesize_kB=4",
    ],
)
def test_lines_that_the_kernel_writes_are_read(line: str) -> None:
    process, found = of(RUNS | {"/proc/17/numa_maps": f"{HUGE}\n{line}\n"})
    assert (process.memory_by_node, found.problems) == ({"1": 4 << 30}, [])


@given(st.text(max_size=200), st.text(alphabet="N0123456789= \nkernelpagesize_kB:bindhuge\t", max_size=200))
def test_any_text_is_read_without_an_error(cpus: str, maps: str) -> None:
    process, _ = of(RUNS | thread(17, 20, cpus, on(cpus)) | {"/proc/17/numa_maps": maps})
    assert process.pid == 17


# --- leftovers -----------------------------------------------------------------------------------------------

UUID = "4b20d080-1b54-4048-85b3-a6a62d165c01"
MDEV = f"/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0/{UUID}"


def test_a_mediated_device_is_told_with_the_function_it_is_of() -> None:
    found = reader({f"{MDEV}/uevent": ""}, {f"/sys/bus/mdev/devices/{UUID}": f"../../../..{MDEV}"})
    assert read_leftovers(found, Host()) == Leftovers(mdevs={UUID: "0000:41:00.0"})


def test_one_whose_place_is_no_function_has_no_parent() -> None:
    place = f"/sys/devices/virtual/mtty/mtty/{UUID}"
    found = reader({f"{place}/uevent": ""}, {f"/sys/bus/mdev/devices/{UUID}": f"../../../..{place}"})
    assert read_leftovers(found, Host()) == Leftovers(mdevs={UUID: ""})


def test_without_the_bus_there_is_none_where_everything_was_recorded() -> None:
    assert read_leftovers(reader({"/sys/x": ""}), Host()) == Leftovers(mdevs=None)
    looked_for = manifest.write((), (), ["/sys/bus/mdev/devices"])
    assert read_leftovers(reader({COMPLETE: looked_for}), Host()) == Leftovers(mdevs={})
