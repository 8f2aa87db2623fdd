"""Several "hosts" on one machine: `python bench/collective_hosts.py --hosts 2`.

Each host is one `hosttune collective` as the fleet command starts it, with an NCCL_HOSTID of its own: NCCL then takes
its network path between them, also where they share one GPU. Answers are joined and judged as in the fleet's report.
`--die`: the last host is killed while it measures; the others must say so, and leave nothing behind.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import msgspec  # noqa: E402 (this checkout's hosttune first)

from hosttune.cluster.collective.judging import CollectiveStandard, WantedGroup, figures, joined, judged  # noqa: E402
from hosttune.cluster.collectiveanswers import expected, machines  # noqa: E402
from hosttune.model.collective import HostGroup, Member, Task  # noqa: E402

_MAIN = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from hosttune.cli import main; main()"
COMMAND = [sys.executable, "-c", _MAIN, "collective", "-o", "json", "-f", "-"]


def main() -> int:
    """Run the hosts and print what they answer. Returns 0 if they measured, or, with --die, if they noticed."""
    options = _options()
    environment = {**os.environ, **({"GLOO_SOCKET_IFNAME": "lo"} if options.on == "cpu" else {})}
    began = time.monotonic()
    listed = Member.from_json(_ask({"python": options.python}, environment).communicate(timeout=300)[0])
    print(f"listed in {time.monotonic() - began:.1f} s: {listed.library}, notes {listed.notes}")
    print(f"environment kept: {dict(listed.environment)}")
    names = tuple(f"host-{number}" for number in range(options.hosts))
    jobs = [_job(options, names, index, listed) for index in range(options.hosts)]
    began = time.monotonic()
    running = [
        subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**environment, "NCCL_HOSTID": name, **_own_gpus(options, index)},
        )
        for index, name in enumerate(names)
    ]  # fmt: skip
    for process, job in zip(running, jobs, strict=True):
        time.sleep(options.apart)  # each looks who uses the GPU: on one machine they would see each other do so
        assert process.stdin is not None
        process.stdin.write(json.dumps(job))
        process.stdin.close()
        process.stdin = None
    if options.die:
        _kill_when_measuring(running[-1])
    answers = {}
    for name, process in zip(names, running, strict=True):
        out, err = process.communicate(timeout=600)
        print(f"{name}: exit {process.returncode} after {time.monotonic() - began:.1f} s {err.strip()[-400:]}")
        if process.returncode == 0:
            answers[name] = Member.from_json(out)
            print(f"  {answers[name].outcome} {answers[name].why or ''} {answers[name].notes or ''}")
    left = subprocess.run(
        ("pgrep", "-fc", "hosttune.cluster.collective.child"), capture_output=True, text=True, check=False
    )
    print(f"processes left behind: {left.stdout.strip()}")
    if options.die:
        alone = all(one.outcome in ("member-lost", "collective-failed") for one in answers.values())
        return 0 if alone and left.stdout.strip() == "0" and len(answers) == options.hosts - 1 else 1
    return _show(options, names, answers, listed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=1, help="of each host")
    parser.add_argument("--on", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--sizes", default="33554432,268435456")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--apart", type=float, default=3.0, help="seconds between the starts of two hosts")
    parser.add_argument("--own-gpus", action="store_true", help="each host sees GPUs that no other host sees")
    parser.add_argument("--die", action="store_true")
    return parser.parse_args()


def _own_gpus(options: argparse.Namespace, index: int) -> dict[str, str]:
    """Return the variable that shows a host its own GPUs alone."""
    first = index * options.ranks
    numbers = range(first, first + options.ranks)
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, numbers))} if options.own_gpus else {}


def _ask(job: dict[str, object], environment: dict[str, str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdin is not None
    process.stdin.write(json.dumps(job))
    process.stdin.close()
    process.stdin = None
    return process


def _job(options: argparse.Namespace, names: tuple[str, ...], index: int, listed: Member) -> dict[str, object]:
    task = Task(
        group=f"bench/{os.getpid()}/0",
        hosts=names,
        index=index,
        machines=(listed.machine,) * len(names),
        address="127.0.0.1",
        port=_port(),
        own="127.0.0.1",
        ranks=options.ranks,
        kinds=("all-reduce", "all-gather"),
        sizes=tuple(map(int, options.sizes.split(","))) if not options.die else (1 << 28,) * 12,
        device=options.on,
        library=listed.library.words if listed.library else None,
        seconds=options.seconds,
        wait=60,
    )
    return {"task": msgspec.to_builtins(task), "disrupt": True, "python": options.python}


_PORTS: list[int] = []


def _port() -> int:
    """A free port, the same for all hosts of this call."""
    if not _PORTS:
        with socket.create_server(("127.0.0.1", 0)) as free:
            _PORTS.append(free.getsockname()[1])
    return _PORTS[0]


def _kill_when_measuring(host: subprocess.Popen[str]) -> None:
    """Kill a host, without a word, some seconds after its ranks were started."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        found = subprocess.run(
            ("pgrep", "-P", str(host.pid)), capture_output=True, text=True, check=False
        ).stdout.split()
        ranks = [one for pid in found for one in _children(pid)]
        if ranks:
            time.sleep(15)
            break
        time.sleep(0.2)
    host.send_signal(signal.SIGKILL)
    print(f"killed {host.pid}")


def _children(pid: str) -> list[str]:
    return subprocess.run(("pgrep", "-P", pid), capture_output=True, text=True, check=False).stdout.split()


def _show(options: argparse.Namespace, names: tuple[str, ...], answers: dict[str, Member], listed: Member) -> int:
    if len(answers) < len(names):
        return 1
    ranks = len(names) * options.ranks
    sizes = tuple(map(int, options.sizes.split(",")))
    found = joined(WantedGroup(f"bench/{os.getpid()}/0", ranks, ("all-reduce", "all-gather"), sizes, 5), answers)
    tcp = msgspec.structs.replace(listed, rdma=False, place=None)
    of = machines([tcp], options.ranks, options.on)  # NCCL has nothing but the loopback here
    group = HostGroup(
        step=1, purpose="series", hosts=names, ranks=ranks, outcome=found.outcome, why=found.why,
        figures=figures(found.timings), accused=found.accused,
    )  # fmt: skip
    standard = CollectiveStandard(lambda kind, hosts, size: expected(of, kind, hosts, size))
    (group,) = judged((group,), standard)
    print(f"outcome {group.outcome}, state {group.state}, why {group.why}")
    for one in group.figures:
        print(
            f"{one.kind} {one.size_bytes >> 20} MiB: {one.busbw:.3f} GB/s ({one.lowest:.3f} to {one.highest:.3f}),"
            f" predicted {one.typical}, low below {one.expected}, bound {one.bound}: {one.state}"
        )
    return 0 if group.outcome == "measured" else 1


if __name__ == "__main__":
    sys.exit(main())
