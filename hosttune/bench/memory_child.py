"""`python -m hosttune.bench.memory_child`: measure the bandwidth from every node's CPUs to every node's memory.

libc's memcpy runs in one thread per CPU, on up to `--threads` CPUs of a node. Buffers are bound to a node, and their
location is checked. A figure counts bytes read plus bytes written, without the bytes that caches fetch before a write.
The measurement uses the memory bandwidth of the whole machine, so the caller must ensure that no guest is running.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import sys
import threading
import time
import zlib
from collections.abc import Iterator, Sequence

from hosttune.bench.placement import NotPlaced, nodes_of, placed
from hosttune.bench.supervise import Measurement, Record, run_jobs

_BUFFER = 64 << 20  # larger than a core's share of any last-level cache
_MOST_THREADS = 16


def main(arguments: Sequence[str]) -> int:
    """Run the child: measure all pairs of nodes and print the document. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m hosttune.bench.memory_child")
    parser.add_argument("--nodes", required=True, help='JSON: {"cpus": {node: [cpu…]}, "memory": [node…]}')
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--run-seconds", type=float, default=0.1)
    parser.add_argument("--threads", type=int, default=_MOST_THREADS)
    parser.add_argument("--budget", type=float, default=60.0)
    options = parser.parse_args(arguments)
    nodes = json.loads(options.nodes)
    jobs = [
        _job(int(node), cpus[: options.threads], int(memory), options.runs, options.run_seconds)
        for node, cpus in nodes["cpus"].items()
        for memory in nodes["memory"]
    ]
    records = list(run_jobs(jobs, copies, until=time.monotonic() + options.budget))
    total = zlib.crc32(json.dumps(records, sort_keys=True).encode())
    json.dump({"library": "libc", "records": records, "sum": total}, sys.stdout)
    sys.stdout.write("\n")
    return 0


def _job(node: int, cpus: Sequence[int], memory: int, runs: int, run_seconds: float) -> Measurement:
    options = {"cpus": cpus, "memory": memory, "runs": runs, "run_seconds": run_seconds}
    return Measurement("memory", f"node{node}->node{memory}", ("memory-copy",), options, 10 + 4 * runs * run_seconds)


def copies(job: Measurement) -> Iterator[Record]:
    """Yield the runs of one pair of nodes. The first run, which fills caches and TLBs, is not recorded."""
    options = job.options
    cpus: Sequence[int] = options["cpus"]
    runs = int(options["runs"]) + 1
    start = threading.Barrier(len(cpus))
    moved = [[0.0] * runs for _ in cpus]  # bytes per second of each thread, by run
    errors: list[str] = []

    def copy(thread: int) -> None:
        try:
            rates = _thread(cpus[thread], options["memory"], runs, options["run_seconds"], start)
        except (NotPlaced, OSError, threading.BrokenBarrierError) as error:
            errors.append(str(error) or "another thread failed")
            start.abort()
            return
        moved[thread] = rates

    threads = [threading.Thread(target=copy, args=(index,)) for index in range(len(cpus))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise NotPlaced(errors[0])
    values = [sum(rates[run] for rates in moved) / 1e9 for run in range(1, runs)]
    yield {
        "metric": "memory-copy",
        "subject": job.subject,
        "unit": "GB/s",
        "values": values,
        "threads": len(cpus),
        "bytes": _BUFFER,
    }


def _thread(cpu: int, node: int, runs: int, seconds: float, start: threading.Barrier) -> list[float]:
    """Return the bytes per second of one thread, read plus written, for each run."""
    libc = ctypes.CDLL(None)
    with placed([cpu], node), mmap.mmap(-1, _BUFFER) as source, mmap.mmap(-1, _BUFFER) as target:
        places = [ctypes.addressof(ctypes.c_char.from_buffer(buffer)) for buffer in (source, target)]
        here, there = (ctypes.c_void_p(place) for place in places)
        libc.memset(here, 0x5A, ctypes.c_size_t(_BUFFER))
        libc.memset(there, 0xA5, ctypes.c_size_t(_BUFFER))
        for place in places:
            nodes = nodes_of(place, _BUFFER)
            if nodes != {node}:
                raise NotPlaced(f"memory requested on node {node} is on {sorted(nodes)}")
        rates = []
        for _ in range(runs):
            start.wait()
            begin = time.perf_counter()
            count = 0
            while time.perf_counter() - begin < seconds:
                libc.memcpy(there, here, ctypes.c_size_t(_BUFFER))
                count += 1
            rates.append(2 * _BUFFER * count / (time.perf_counter() - begin))
        return rates


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
