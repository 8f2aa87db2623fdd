"""One host's ends of measurements: the server that takes one connection, the client that sends, and their output.

Nothing is left behind, whoever dies: each program runs under `timeout` (coreutils), a server takes one connection and
ends (`iperf3 -s -1`; `ib_write_bw` always does). Each is bound to one address; perftest before 23.07 has no working
option for this, and the result says so. Before it starts, the kernel is asked which interface leads to the peer:
another one than the port's is the wrong fabric, and nothing is sent.
"""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from msgspec.structs import replace

from hosttune.bench.parse.answer import NotUnderstood, document, part, positive
from hosttune.bench.parse.tools import parse_perftest
from hosttune.cluster.pairs.pathmtu import path_mtu
from hosttune.cluster.pairs.programs import Run, bounded
from hosttune.discovery.portfiles import NET, RDMA
from hosttune.discovery.ports import HARDWARE_COUNTERS, PORT_COUNTERS
from hosttune.errors import BadInput, CommandFailed
from hosttune.gpu import vendor_of
from hosttune.machine.reader import Reader
from hosttune.model.jsontext import plain_json
from hosttune.model.pairs import End, EndOutcome, EndResult, GpuMemory, Job, PathMtu
from hosttune.rules.checks.data import table

# What is allowed, and the source of each number, is in `hosttune/rules/checks/data/ports.toml`, as for `port-errors`.

Counters = Mapping[str, int | None]  # by "PORT COUNTER"; None: could not be read
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_FRAMES = {"rx_crc_errors": "statistics/rx_crc_errors", "carrier_down_count": "carrier_down_count"}


def look(reader: Reader, end: End) -> Counters:
    """Return the counters of the RDMA port (of all, if its number is not known) and the interface of an end that its
    drivers have."""
    counters: dict[str, int | None] = {}
    if end.rdma is not None and _NAME.fullmatch(end.rdma):
        for number in (str(end.rdma_port),) if end.rdma_port else reader.names(f"{RDMA}/{end.rdma}/ports"):
            at = f"{RDMA}/{end.rdma}/ports/{number}"
            paths = {name: f"{at}/counters/{name}" for name in PORT_COUNTERS}
            paths |= {name: f"{at}/hw_counters/{name}" for name in HARDWARE_COUNTERS}
            judged = [row["name"] for row in table("ports")["rdma"] if row["name"] in paths]
            counters |= {f"{end.rdma}/{number} {name}": reader.count(paths[name]) for name in judged}
    if end.interface is not None and _NAME.fullmatch(end.interface):
        counters |= {
            f"{end.interface} {name}": reader.count(f"{NET}/{end.interface}/{at}") for name, at in _FRAMES.items()
        }
    return {name: count for name, count in counters.items() if count is not None}


def came(before: Counters, after: Counters, seconds: int) -> dict[str, int]:
    """Return what was counted in between and is more than allowed in so many seconds. A counter that is smaller than
    before was reset, and began at 0 again."""
    growth: dict[str, int] = {}
    for name, count in after.items():
        first = before.get(name)
        if count is not None and first is not None:
            grown = count - first if count >= first else count
            if grown > _allowed(name.rpartition(" ")[2], seconds):
                growth[name] = grown
    return growth


def _allowed(name: str, seconds: int) -> float:
    """Return how many of these errors may come: of frames with a wrong check sum and of lost links none, of others what
    is allowed in so many seconds, at least the amount for the time that its source names."""
    row = next((row for row in table("ports")["rdma"] if row["name"] == name), None)
    if row is None:
        return 0.0
    most, period = float(row["most"]), float(row["seconds"])
    return most * max(seconds / period, 1.0) if period else most


SLACK_SECONDS = 6  # of a program beside waiting and measuring: it connects, exchanges results, ends
OMIT_SECONDS = 1  # of TCP's slow start, sent before the figure begins (iperf3 -O)
# `ib_write_bw` says by lines that a peer is there; what it holds back when its time limit ends it would be lost.
_BY_LINES = ("stdbuf", "-oL")
_RETRY_SECONDS = 0.4
_CONNECT_MS = "3000"
# What iperf3 and ib_write_bw say, in the order in which they are looked for. perftest (source of 4.5-0.17 to 26.01)
# connects by TCP first, and does not say why it could not ("Couldn't connect"). A server whose port is in use says
# "Couldn't listen". Status 12 is IBV_WC_RETRY_EXC_ERR of libibverbs: the peer's card acknowledged nothing.
_FAILURES: tuple[tuple[str, EndOutcome], ...] = (
    (r"Address already in use|Couldn't listen to port", "port-busy"),
    (r"Cannot assign requested address|Failed to bind socket", "wrong-fabric"),
    (r"Network is unreachable|No route to host", "no-route"),
    (r"Connection refused|the server is busy", "connection-refused"),
    (r"not installed|No such file or directory", "not-installed"),
    (r"Did not detect devices|IB device \S+ not found", "tool-failed"),
    (r"Failed status 12:|Couldn't connect to", "no-connection"),
    (r"timed out|the client has terminated|Operation now in progress", "no-connection"),
    (r"Couldn't read remote address|Failed to exchange data|ead (?:from|to) socket", "no-connection"),
    (r"the server has terminated", "nobody-came"),
)
_NO_REGION = "Couldn't allocate MR"  # perftest: ibv_reg_mr or ibv_reg_dmabuf_mr refused
_NO_BIND = "unrecognized option '--bind_source_ip'"
STALLED = "TCP connects, but no message of RDMA arrives"
UNBOUND = "this perftest (before 23.07) cannot bind to one address: the server listened on all of the host's"
_MOST = {"port": 65535, "seconds": 600, "wait": 600, "streams": 64, "rdma_port": 255}
GPU_SECONDS = 10  # more for an end with GPU memory: its driver starts, on a board with eight GPUs in seconds
_LEAST_TIME = 0.9  # of the seconds asked for; iperf3 itself ends within 1 % of them, or later
_DEVICE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_UUID = re.compile(r"GPU-[0-9A-Fa-f-]{1,40}")
_ON_THE_WAY = ("measured", "no-connection", "tool-failed")  # packets may have got lost because they are too large
_AGAIN = ("connection-refused", "no-connection")
_PERFTEST_ENDS = re.compile(
    r"^ *(local|remote) address: +LID (\S+) QPN (\S+) PSN (\S+).*?$(?:\s*^ *GID: *(\S+))?", re.MULTILINE
)


def check_job(job: Job) -> None:
    """Check the ends of a job: they become words of commands. Raises BadInput that names the first wrong value."""
    for number, end in enumerate(job.ends):
        for name in ("address", "peer_address"):
            try:
                ipaddress.ip_address(getattr(end, name))
            except ValueError as error:
                raise _bad(number, name, f"not an IP address: {getattr(end, name)[:40]!r}") from error
        for name, most in _MOST.items():
            value = getattr(end, name)
            if value is not None and not 1 <= value <= most:
                raise _bad(number, name, f"{value} is not 1 to {most}")
        if end.rate_gbps is not None and not 0.001 <= end.rate_gbps <= 10_000:
            raise _bad(number, "rate_gbps", "not 0.001 to 10000")
        if end.tool == "rdma" and not _DEVICE.fullmatch(end.rdma or ""):
            raise _bad(number, "rdma", "no name of an RDMA device")
        if end.gpu is not None and (end.tool != "rdma" or _of_gpu(end.gpu) is None):
            raise _bad(number, "gpu", "no GPU whose memory ib_write_bw can use")


def _bad(number: int, name: str, why: str) -> BadInput:
    return BadInput(why, where=f"job: ends[{number}].{name}", hint="`hosttune fleet pairs` writes the job")


def measure(
    ends: Sequence[End], run: Run, *, together: bool, look: Callable[[End], Counters] | None = None
) -> tuple[EndResult, ...]:
    """Measure these ends one after another, or all at once. Returns a result for each; never raises for an end.

    `look` returns the error counters of an end's port; it is called before and after. All at once: first those with
    host memory, then those with the memory of GPUs.
    """

    def one(end: End) -> EndResult:
        before = look(end) if look is not None else {}
        result = measure_one(end, run)
        if look is not None and before:
            after = look(end)
            # A counter that cannot be read any more may have counted anything.
            known = before.keys() <= after.keys()
            result = replace(result, errors=came(before, after, end.seconds) if known else None)
        return result if end.role == "server" else replace(result, path_mtu=_path_mtu(end, result, run))

    results: dict[int, EndResult] = {}
    for gpus in (False, True):  # never at once: both are of the same port
        part = [(number, end) for number, end in enumerate(ends) if (end.gpu is not None) == gpus or not together]
        with ThreadPoolExecutor(max_workers=max(1, len(part)) if together else 1) as pool:
            results |= zip((number for number, _ in part), pool.map(one, (end for _, end in part)), strict=True)
        if not together:
            break
    return tuple(results[number] for number in range(len(ends)))


def measure_one(end: End, run: Run) -> EndResult:
    """Measure one end: the way to the peer first, then its program.

    A client that has met nobody tries again until its wait is over; a server that was met takes no second connection.
    """
    lost = wrong_way(end, run)
    if lost is not None:
        return _result(end, *lost)
    deadline = time.monotonic() + end.wait
    while True:
        result, met = _once(end, run, max(1.0, deadline - time.monotonic()))
        again = end.role == "client" and not met and result.outcome in _AGAIN and time.monotonic() < deadline
        if not again:
            return result
        time.sleep(_RETRY_SECONDS)


def _path_mtu(end: End, result: EndResult, run: Run) -> PathMtu:
    """Return what path this end had; not asked again for the memory of a GPU, which has the same one."""
    if end.gpu is not None:
        return PathMtu(state="not-asked")
    return path_mtu(end, run) if result.outcome in _ON_THE_WAY else PathMtu()


def wrong_way(end: End, run: Run) -> tuple[EndOutcome, str] | None:
    """Return why packets from the end's address to its peer would not leave through its port; None if they do."""
    return other_way(end.interface, end.address, end.peer_address, run)


def other_way(interface: str | None, address: str, peer: str, run: Run) -> tuple[EndOutcome, str] | None:
    """Return why packets from an address to a peer would not leave through this interface; None if they do."""
    if interface is None:
        return None
    try:
        rows = plain_json(run(("ip", "-j", "route", "get", peer, "from", address), 10.0), where="ip")
        device = rows[0].get("dev") if rows else None
    except CommandFailed as error:
        text = _last(error.output) or error.reason
        mine = re.search(r"Invalid argument|Cannot assign", text)  # the address is not (any more) one of this host
        return ("wrong-fabric" if mine else "no-route"), f"no route from {address} to {peer}: {text}"
    except (BadInput, AttributeError, TypeError, KeyError):
        return "not-understood", "`ip -j route get` gave an answer that cannot be read"
    if device == interface:
        return None
    return "wrong-fabric", f"the route from {address} to {peer} leaves by {device}, not by {interface}"


def command(end: End, seconds_to_connect: float, *, bound: bool = True) -> tuple[tuple[str, ...], float]:
    """Return the command of an end, and its own time limit in seconds. Not `bound`: for a perftest that cannot."""
    omit = OMIT_SECONDS if end.tool == "tcp" else GPU_SECONDS if end.gpu is not None else 0
    limit = round(seconds_to_connect + omit + end.seconds + SLACK_SECONDS)
    words = _iperf3(end) if end.tool == "tcp" else _perftest(end, bound=bound)
    return bounded(limit, *words), float(limit)


def _iperf3(end: End) -> tuple[str, ...]:
    words = ("iperf3", "-J", "-B", end.address, "-p", str(end.port))
    if end.role == "server":
        return (*words, "-s", "-1")
    bound = () if end.rate_gbps is None else ("-b", f"{round(end.rate_gbps * 1e9 / end.streams)}")
    timing = ("-t", str(end.seconds), "-O", str(OMIT_SECONDS), "--connect-timeout", _CONNECT_MS)
    return (*words, "-c", end.peer_address, *timing, "-P", str(end.streams), *bound)


def _perftest(end: End, *, bound: bool) -> tuple[str, ...]:
    """Return `ib_write_bw` (linux-rdma/perftest, its man page): 1 MiB messages, reported in Gb/s, by duration.

    A rate is limited by the program, one message at a time: what a card limits itself is a few fixed rates. Which of
    the port's GIDs it uses it chooses itself (get_best_gid_index of its source: by device and port).
    """
    environment, memory = (_of_gpu(end.gpu) if end.gpu is not None else None) or ((), ())
    words: tuple[str, ...] = (*environment, *_BY_LINES, "ib_write_bw", "-d", str(end.rdma))
    words += ("--report_gbits", "-F", "-s", "1048576")
    words += ("-i", str(end.rdma_port)) if end.rdma_port is not None else ()
    words += ("-q", str(end.streams), "-D", str(end.seconds), "-p", str(end.port))
    words += ("--bind_source_ip", end.address) if bound else ()
    words += memory
    if end.role == "server":
        return words
    if end.rate_gbps is not None:
        words += ("--rate_limit_type", "SW", "--burst_size", "1", "--rate_units", "g")
        words += ("--rate_limit", f"{end.rate_gbps:g}")
    return (*words, end.peer_address)


def _of_gpu(gpu: GpuMemory) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return `env` with its variables, and the words of `ib_write_bw`, for a GPU's memory; None if there are none."""
    vendor = vendor_of(gpu.maker)
    test = vendor.memory_test if vendor is not None else None
    right = _ADDRESS.fullmatch(gpu.address) and (gpu.uuid is None or _UUID.fullmatch(gpu.uuid))
    chosen = test.chosen(gpu.address, gpu.uuid) if test is not None and right else None
    if test is None or chosen is None:
        return None
    variables = tuple(f"{name}={value}" for name, value in chosen[0].items())
    return ("env", *variables) if variables else (), (*chosen[1], *((test.dmabuf,) if gpu.dmabuf else ()))


def _once(end: End, run: Run, seconds_to_connect: float) -> tuple[EndResult, bool]:
    """Run the end's program once; a perftest that cannot bind to an address, a second time without.

    Returns (the result, whether a peer was met).
    """
    argv, limit = command(end, seconds_to_connect)
    text, failed = _ran(argv, limit, run)
    unbound = _NO_BIND in text
    if unbound:
        argv, limit = command(end, seconds_to_connect, bound=False)
        text, failed = _ran(argv, limit, run)
    met = ('"cookie"' in text or "remote address" in text) or (
        end.gpu is not None and _used(end.gpu, text) is not None
    )  # it looks for it afterwards
    if failed is not None and failed.reason == "exit status 124" and not met:
        return _alone(end, limit), met
    result = _read(end, text, failed)
    told = unbound and end.role == "server" and result.outcome == "measured" and result.why is None
    return (replace(result, why=UNBOUND) if told else result), met


def _read(end: End, text: str, failed: CommandFailed | None) -> EndResult:
    try:
        return parse_iperf3(end, text) if end.tool == "tcp" else parse_ib_write_bw(end, text)
    except NotUnderstood as error:
        if end.gpu is not None and (lost := _no_memory(end.gpu, text)) is not None:
            return _result(end, "tool-failed", lost)
        said = _known_failure(text) or _known_failure(failed.reason if failed is not None else "")
        if said is not None:
            return _result(end, said[0], said[1])
        if failed is not None:
            return _result(end, "tool-failed", f"{failed.reason}: {_last(text)}")
        return _result(end, "not-understood", error.what)


def _no_memory(gpu: GpuMemory, text: str) -> str | None:
    """Return what a program said of a GPU's memory that it, or the NIC, cannot use; None if it did not."""
    vendor = vendor_of(gpu.maker)
    own = vendor.memory_test.failed if vendor is not None and vendor.memory_test is not None else "$^"
    match = re.search(rf"^.*(?:{own}|{_NO_REGION}).*$", text, re.MULTILINE)
    way = "dma-buf" if gpu.dmabuf else "the peer memory module"
    return f"GPU {gpu.address}, by {way}: {match[0].strip()}" if match else None


def _ran(argv: tuple[str, ...], limit: float, run: Run) -> tuple[str, CommandFailed | None]:
    try:
        return run(argv, limit + 5), None
    except CommandFailed as error:
        return error.output, error


def _alone(end: End, limit: float) -> EndResult:
    """Return the result of an end that had no peer until its time limit ended it."""
    if end.role == "server":
        return _result(end, "nobody-came", f"nobody connected to {end.address} port {end.port} within {limit:g} s")
    return _result(end, "no-connection", f"{end.peer_address} port {end.port} did not answer within {limit:g} s")


def parse_iperf3(end: End, text: str) -> EndResult:
    """Read `iperf3 -J` of one end. The figure is what the receiver got; the cookie is the client's, known to both ends.

    Raises NotUnderstood for output that is not of iperf3. An error that it reports is a result.
    """
    root = document(text, "iperf3")
    start = part(root.get("start"), dict, "iperf3", "start")
    if isinstance(root.get("error"), str):
        error: str = root["error"]
        said = _known_failure(error)
        outcome: EndOutcome = said[0] if said else "tool-failed"
        if outcome == "no-connection" and end.role == "client" and start.get("connected"):
            outcome = "tool-failed"  # it was connected, and stopped
        return _result(end, outcome, error)
    over = part(root.get("end"), dict, "iperf3", "end")
    got = part(over.get("sum_received"), dict, "iperf3", "sum_received")
    bits, bytes_, seconds = (positive(got.get(key), "iperf3", key) for key in ("bits_per_second", "bytes", "seconds"))
    if abs(bits * seconds / 8 - bytes_) > 0.02 * bytes_:
        raise NotUnderstood("iperf3", "rate, bytes and time contradict each other")
    if seconds < _LEAST_TIME * end.seconds:  # a burst of what buffers and the first moments let through
        raise NotUnderstood("iperf3", f"it measured {seconds:g} s instead of {end.seconds}")
    cookie = start.get("cookie")
    sent = over.get("sum_sent")
    again_sent = sent.get("retransmits") if isinstance(sent, dict) and end.role == "client" else None
    return EndResult(
        rail=end.rail,
        role=end.role,
        outcome="measured",
        gbps=bits / 1e9,
        connection=cookie if isinstance(cookie, str) and cookie else None,
        seen=_seen(start),
        retransmits=again_sent if isinstance(again_sent, int) else None,
    )


def _seen(start: dict[str, Any]) -> str | None:
    for key in ("accepted_connection", "connecting_to"):
        named = start.get(key)
        if isinstance(named, dict) and isinstance(named.get("host"), str):
            return str(named["host"])
    return None


def parse_ib_write_bw(end: End, text: str) -> EndResult:
    """Read `ib_write_bw --report_gbits` of one end. Its queue pairs, the client's first, name the connection.

    Raises NotUnderstood.
    """
    figure = parse_perftest(text, end.rail, stalled=True).samples[0].value
    if end.gpu is not None and (other := _other_gpu(end.gpu, text)) is not None:
        return _result(end, "not-understood", other)
    sides = _PERFTEST_ENDS.findall(text)
    local = [part_ for side, *part_ in sides if side == "local"]
    remote = [part_ for side, *part_ in sides if side == "remote"]
    if not local or len(local) != len(remote):
        raise NotUnderstood("ib_write_bw", "its queue pairs and those of the peer are not named")
    first, second = (local, remote) if end.role == "client" else (remote, local)
    name = ">".join(",".join("/".join(side) for side in sides_) for sides_ in (first, second))
    return EndResult(
        rail=end.rail,
        role=end.role,
        outcome="measured",
        gbps=figure,
        connection=name,
        seen=_address(remote[0][3]),
        why=None if figure else STALLED,
    )


def _other_gpu(gpu: GpuMemory, text: str) -> str | None:
    """Return why the figure is not one of this GPU's memory, as the program printed it; None if it is."""
    used = _used(gpu, text)
    if used is None:
        return f"ib_write_bw does not say that it used the memory of GPU {gpu.address}"
    return None if gpu.address.partition(":")[2].startswith(used) else f"it used the GPU at {used}, not {gpu.address}"


def _used(gpu: GpuMemory, text: str) -> str | None:
    """Return the beginning of the address of the GPU that the program says it used; None if it does not say."""
    vendor = vendor_of(gpu.maker)
    return vendor.memory_test.used(text) if vendor is not None and vendor.memory_test is not None else None


def _address(gid: str) -> str | None:
    """Return the IP address in a GID as perftest prints it, 16 decimal numbers; None without one (InfiniBand)."""
    parts = gid.split(":")
    if len(parts) != 16 or not all(part_.isdecimal() and int(part_) < 256 for part_ in parts):
        return None
    address = ipaddress.IPv6Address(bytes(map(int, parts)))
    return str(address.ipv4_mapped or address)


def _result(end: End, outcome: EndOutcome, why: str | None) -> EndResult:
    return EndResult(rail=end.rail, role=end.role, outcome=outcome, why=why[:300] if why else None)


def _known_failure(text: str) -> tuple[EndOutcome, str] | None:
    """Return what a program's words mean, and the line that says it; None for words that are not known."""
    for pattern, outcome in _FAILURES:
        match = re.search(rf"^.*(?:{pattern}).*$", text, re.MULTILINE)
        if match:
            return outcome, match[0].strip()
    return None


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
