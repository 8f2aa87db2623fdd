"""Malformed plans by mutation of a real one: what `apply` makes of each, and every file that it touched meanwhile.

A program (`python -m faultplans ROOT PLAN`, numbers of mutants on its stdin), for Python's audit events cannot be
unheard again: one JSON object a line, a `Verdict` of each mutant. The number is the seed: a mutant can be made again.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from hosttune.cli.process import run

HOSTILE: tuple[Any, ...] = (
    None, "", " ", ".", "..", "../../etc/passwd", "/etc/shadow", "/sys/../etc/passwd", "a/b", "a\nb", "a\0b", "\x1b[2J",
    "$(touch /tmp/owned)", "`id`", "; rm -rf /", "| sh", "&& reboot", "'", '"', "\\", "%n%s", "{{ 7*7 }}", "${HOME}",
    "-rf", "--help", "<x/>", "]]><x/>", "<!DOCTYPE x [<!ENTITY e SYSTEM 'file:///etc/passwd'>]>", "&e;", "é", "\u202e",
    "x" * 100_000, "0", "-1", "1e9", "0-99999999999", "1-", "cpus 0-4294967296", "0000:00:06.0", "0000:ff:1f.7",
    "10000:00:06.0", "all", "*", "one", "ONE", "nan", 0, 1, -1, 2**31, 2**63, 2**64, 10**30, 0.5, -0.0, 1e308, True,
    False, [], {}, [None], [[[[[]]]]], {"": ""}, {"a": {"b": {"c": []}}}, ["one", "one"],
)  # fmt: skip
_ROOM = re.compile(
    r"/sys/(devices/system/(node/node\d+/hugepages/hugepages-\d+kB/nr_hugepages|cpu/cpu\d+/[a-z_/]+)|kernel/mm/[a-z_/]+"
    r"|bus/pci/(devices/[0-9a-f:.]+/[a-z0-9_/]+|drivers/[a-z0-9_-]+/(bind|unbind)))"
    r"|/proc/sys/(vm|kernel)/[a-z_]+|/proc/irq/\d+/smp_affinity_list"
    r"|/etc/(systemd/system/(irqbalance\.service\.d/hosttune\.(conf|env)|(system|user)\.slice\.d/90-hosttune\.conf|hosttune-boot\.service"
    r"|dev-hugepages(1G|2M)\.mount)|apparmor\.d/local/abstractions/libvirt-qemu"
    r"|sysctl\.d/90-hosttune\.conf|udev/rules\.d/10-hosttune-vfio\.rules|default/grub\.d/zz-hosttune\.cfg)"
    r"|/var/lib/hosttune/guests/[A-Za-z0-9_.-]+/(seed\.iso|meta-data|user-data|bundle/[A-Za-z.-]+)"
)
_COMMANDS = ("systemctl ", "/usr/sbin/update-grub", "udevadm ", "modprobe vfio-pci")
_CALLS = re.compile(
    r"(nvmlDeviceSet[A-Za-z]+-[0-9a-f:.]{12}|virsh-(dumpxml|domstate)-[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}) "
)


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant. `wrong`: what must never be. `accepted`: still a plan, stopped at the prompt only."""

    number: int
    what: str
    code: int
    accepted: bool
    error: str
    wrong: tuple[str, ...]


# --- mutants -------------------------------------------------------------------------------------------------


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON document, by its path."""
    rows = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in rows:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def mutant(plan: str, number: int) -> tuple[str, bytes]:
    """(what was done, the mutant) of a number."""
    random = Random(number)
    if random.random() < 0.2:
        return _torn(plan, random)
    document = json.loads(plan)
    said = [_changed(document, random) for _ in range(random.choice((1, 1, 1, 2, 3)))]
    return "; ".join(said)[:300], json.dumps(document).encode()


def _changed(document: Any, random: Random) -> str:
    *path, key = random.choice(list(places(document)))
    owner = document
    for step in path:
        owner = owner[step]
    where = ".".join(map(str, (*path, key)))
    roll = random.random()
    if roll < 0.1:
        del owner[key]
        return f"{where} gone"
    if roll < 0.15 and isinstance(owner, dict):
        owner[random.choice(("colour", "__class__", "$ref"))] = owner[key]
        return f"beside {where}"
    if roll < 0.25 and isinstance(owner, list):
        owner.append(owner[key]) if random.random() < 0.5 else owner.reverse()
        return f"{where} again, or all in reverse"
    owner[key] = random.choice(HOSTILE)
    return f"{where} = {owner[key]!r:.60}"


def _torn(plan: str, random: Random) -> tuple[str, bytes]:
    data = bytearray(plan.encode())
    at = random.randrange(len(data))
    key = random.choice(re.findall(rb'"[a-z_]+": ', bytes(data)))
    torn: dict[str, Callable[[], bytes]] = {
        "cut": lambda: bytes(data[:at]),
        "a byte": lambda: bytes(data[:at] + bytes((random.randrange(256),)) + data[at + 1 :]),
        "NUL": lambda: bytes(data[:at] + b"\0" + data[at:]),
        "no UTF-8": lambda: bytes(data[:at] + b"\xff\xfe" + data[at:]),
        "a part twice": lambda: bytes(data[:at] + data[at // 2 :]),
        "a key twice": lambda: bytes(data).replace(key, key + b'"twice", ' + key, 1),
        "a huge number": lambda: re.sub(rb": \d+", b": " + b"9" * random.choice((20, 400, 6000)), bytes(data), count=1),
        "NaN": lambda: re.sub(rb": \d+", b": NaN", bytes(data), count=1),
        "deep": lambda: b'{"actions":' + b"[" * 50_000,
        "deep within": lambda: bytes(data).replace(b'"settings": null', b'"settings": {"a":' + b"[" * 5000),
        "a BOM": lambda: b"\xef\xbb\xbf" + bytes(data),
        "nothing": lambda: b"",
        "another document": lambda: b'["hosttune.plan/v1"]',
        "another version": lambda: bytes(data).replace(b"hosttune.plan/v1", b"hosttune.plan/v2"),
        "another machine": lambda: re.sub(rb'"host_digest": "[0-9a-f]+', b'"host_digest": "' + b"0" * 64, bytes(data)),
        "no machine": lambda: re.sub(rb'"host_digest": "[0-9a-f]+"', b'"host_digest": null', bytes(data)),
    }
    what = random.choice(list(torn))
    return what, torn[what]()


# --- trial ---------------------------------------------------------------------------------------------------


def call(words: list[str]) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command, in this process."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = run(words)
    return code, output.getvalue(), errors.getvalue()


def outside(writes: list[str]) -> list[str]:
    """Of what a rehearsal would write, what no setting of ours owns."""
    found = []
    for text in writes:
        verb, _, rest = text.partition(" ")
        rest = rest.lstrip()
        path = rest.split(" ")[0].split("\n")[0]
        known = {
            "write": _ROOM.fullmatch(path) is not None,
            "file": _ROOM.fullmatch(path) is not None,
            "unlink": _ROOM.fullmatch(path) is not None,
            "run": rest.startswith(_COMMANDS),
            "call": _CALLS.match(rest) is not None,
            "(would": True,
        }
        if not known.get(verb, False) or ".." in path:
            found.append(text[:200])
    return found


def judge(root: Path, path: Path, number: int, what: str, touched: list[str]) -> Verdict:
    """Apply a plan that may be anything. Nobody is there to answer the prompt, so nothing may be written."""
    touched.clear()
    code, output, errors = call(["apply", str(path), "--root", str(root), "--start"])
    wrong = [f"touched {name}" for name in touched if not name.endswith("/var/lib/hosttune/lock")]
    accepted = "cannot ask for confirmation" in errors
    if code not in (0, 1, 2, 3) or "Traceback" in errors or "internal error" in errors:
        wrong.append(f"exit {code}: {errors[-300:]}")
    elif code == 0 and '"changed": true' in output:
        wrong.append("it changed something")
    elif code and not re.search(r"error: .+\nwhere: .+\n   do: .+", errors, re.DOTALL):
        wrong.append(f"no named error: {errors[-300:]}")
    if accepted:
        touched.clear()
        code_of_rehearsal, output, errors = call(["apply", str(path), "--root", str(root), "--dry-run", "-o", "json"])
        if code_of_rehearsal != 0:
            wrong.append(f"its rehearsal exits {code_of_rehearsal}: {errors[-300:]}")
        else:
            wrong += [f"would write {text}" for text in outside(json.loads(output)["writes"])]
        wrong += [f"its rehearsal touched {name}" for name in touched]
    return Verdict(number, what, code, accepted, errors.partition("\n")[0][:200], tuple(wrong))


def main(root: Path, plan: str, numbers: Iterable[int]) -> None:
    """Try the mutants of these numbers."""
    touched: list[str] = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        name = str(arguments[0]) if arguments else ""
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        changes = (
            event.startswith(("os.r", "os.mk", "os.sym", "os.link", "os.ch", "os.trunc")) and event != "os.listdir"
        )
        runs = event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn")
        if runs or ((writes or changes) and name.startswith("/") and not name.startswith(("/dev/", str(mutants)))):
            touched.append(f"{event} {name}" if runs else name)

    with tempfile.TemporaryDirectory() as folder:
        mutants = Path(folder)
        sys.addaudithook(hook)
        for number in numbers:
            what, data = mutant(plan, number)
            (mutants / "plan.json").write_bytes(data)
            print(json.dumps(asdict(judge(root, mutants / "plan.json", number, what, touched))), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]).read_text(), map(int, sys.stdin.readlines()))
