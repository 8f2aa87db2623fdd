"""An NVMe drive behind the seam, written from the text of the NVM Express Base Specification 1.4, not from the product.

What it follows, by section of 1.4: 5.24 (Sanitize command: a drive that supports the action and runs no sanitize starts
one in the background and then completes the command; while one runs, another is aborted with Sanitize In Progress;
after one without AUSE has failed, one with AUSE is aborted with Sanitize Failed),
5.14.1.16.2 (Sanitize Status log page: SPROG, SSTAT, SCDW10; SCDW10 is that of the command that started the operation in
SSTAT), 8.15 (Sanitize Operations: user data of all namespaces; continues after a power loss or a reset; reads are
aborted while it runs and after it failed in restricted mode), 5.23 (Format NVM: secure erase of one namespace; Invalid
Field for an action that the drive lacks). The JSON is in the forms of nvme-cli (tests/cases/nvme). Everything here is
synthetic.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cutshort import KilledError, put

from hosttune.errors import CommandFailed, InUse, Unreadable
from hosttune.handover.erasing import Clock, EraseOrder
from hosttune.machine.scratch import Scratch

ADDRESS, SERIAL, BLOCK = "0000:c1:00.0", "S6CKNE0T100123", 4096
OTHER = "0000:c2:00.0"
NONE = 0xFFFFFFFF


class Time(Clock):
    """A clock that only waiting moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class FakeDrive(Scratch):
    """A host with one NVM subsystem, whose behaviour a test changes.

    `lies`: an erasure leaves the data. `stale`: the log never changes. `ends_as`: SSTAT after a sanitize. `refuses`:
    what nvme-cli prints for an erasing command. `claimed`: block devices that something has. `bad`: offsets that cannot
    be read. `hook`: called before each command and each read, with its words. `starts`: the erasing commands that the
    drive took.
    """

    def __init__(self, root: Path, *, blocks: int = 16, namespaces: int = 1) -> None:
        put(root, "/.hosttune/scratch", "")
        super().__init__(str(root))
        self.time = Time()
        self.serial, self.sanicap, self.oacs, self.fna, self.cmic, self.unvmcap = SERIAL, 0b11, 0b1010, 0b100, 0, 0
        self.controllers: tuple[int, ...] = (1,)
        self.secondaries: tuple[dict[str, int], ...] = ()
        self.loose: tuple[int, ...] = ()
        self.version = "2.16"
        self.sstat, self.erased, self.scdw10, self.seconds = 0, 0, 0, 40
        self.ends_as, self.sets_erased, self.lies, self.stale = 1, 1, False, False
        self.refuses: str | None = None
        self.hangs = False
        self.ends_at: float | None = None
        self.claimed: set[str] = set()
        self.bad: set[int] = set()
        self.starts: list[tuple[str, ...]] = []
        self.hook: Callable[[tuple[str, ...]], None] = lambda words: None
        self.cut, self.after, self.steps = -1, False, 0  # killed before or after command number `cut`
        self.media = {
            n: [bytes([n, i % 251, i // 251, 7]) * 1024 for i in range(blocks)] for n in range(1, namespaces + 1)
        }
        self._tree(root, namespaces)

    def _tree(self, root: Path, namespaces: int) -> None:
        device = root / "sys/bus/pci/devices" / ADDRESS
        put(root, "/sys/bus/pci/drivers/nvme/module", "")
        for n in range(1, namespaces + 1):
            put(root, f"/sys/bus/pci/devices/{ADDRESS}/nvme/nvme0/nvme0n{n}/size", "1")
            put(root, f"/sys/class/block/nvme0n{n}/nsid", f"{n}\n")
            put(root, f"/sys/class/block/nvme0n{n}/dev", f"259:{n}\n")
        put(root, f"/sys/bus/pci/devices/{ADDRESS}/class", "0x010802\n")
        (device / "driver").symlink_to("../../drivers/nvme")
        self.add_controller("nvme0", 1, ADDRESS)
        put(root, "/proc/self/mounts", "proc /proc proc rw 0 0\n")
        self.forget()

    def add_controller(self, name: str, cntlid: int, address: str, nqn: str = "nqn.2014.08.org:a") -> None:
        """Let the host's nvme driver show a controller."""
        root = Path(self.root)
        for file, text in (("subsysnqn", nqn), ("cntlid", str(cntlid)), ("address", address)):
            put(root, f"/sys/class/nvme/{name}/{file}", f"{text}\n")
        self.forget()

    # --- the seam --------------------------------------------------------------------------------------------

    def run(self, argv: tuple[str, ...], *, timeout: float = 20.0) -> str:
        self._step(argv)
        assert argv[0] == "nvme"
        assert argv[-2:] == ("-o", "json")
        answer = getattr(self, "_" + argv[1].replace("-", "_"))(argv)
        self._after()
        return json.dumps(answer)

    def change(self, argv: tuple[str, ...], *, timeout: float = 60.0, stdin: str | None = None) -> str:
        if argv[0] != "nvme":
            return super().change(argv, timeout=timeout, stdin=stdin)
        self._step(argv)
        if self.refuses is not None:
            raise CommandFailed(argv, "exit status 1", self.refuses)
        self._progress()
        options = dict(word.removeprefix("--").partition("=")[::2] for word in argv[3:])
        {"sanitize": self._sanitize, "admin-passthru": self._format}[argv[1]](argv, options)
        self._after()
        if self.hangs:
            raise CommandFailed(argv, f"no answer within {timeout:g} s")
        return ""

    def read_medium(self, path: str, offset: int, size: int) -> bytes:
        self._step(("read", path, str(offset)))
        self._progress()
        nsid = int(path.removeprefix("/dev/nvme0n"))
        if self.sstat in (2, 3) or offset in self.bad:
            raise Unreadable(path, "Input/output error")
        assert offset % BLOCK == 0
        return b"".join(self.media[nsid][offset // BLOCK : (offset + size) // BLOCK])

    @contextlib.contextmanager
    def claim(self, path: str) -> Iterator[None]:
        if path in self.claimed:
            raise InUse(path, "it or a partition of it is mounted, or part of an array, volume or pool")
        self.claimed.add(path)
        try:
            yield
        finally:
            self.claimed.discard(path)

    def _step(self, words: tuple[str, ...]) -> None:
        if self.steps == self.cut and not self.after:
            raise KilledError
        self.hook(words)

    def _after(self) -> None:
        """Count a command; a kill after it: the drive has it, the caller does not know."""
        self.steps += 1
        if self.steps == self.cut + 1 and self.after:
            raise KilledError

    # --- the drive -------------------------------------------------------------------------------------------

    def _progress(self) -> None:
        if self.ends_at is not None and self.time.now >= self.ends_at:
            self.sstat, self.erased, self.ends_at = self.ends_as, self.sets_erased, None
            if self.ends_as in (1, 4) and not self.lies:
                self._wipe(*self.media)

    def _wipe(self, *nsids: int) -> None:
        for nsid in nsids:
            self.media[nsid] = [bytes(BLOCK)] * len(self.media[nsid])

    def _sanitize(self, argv: tuple[str, ...], options: dict[str, str]) -> None:
        action = int(options["sanact"])
        if not self.sanicap & {4: 1, 2: 2, 3: 4}[action]:
            raise CommandFailed(argv, "exit status 2", "NVMe status: Invalid Field in Command(0x4002)")
        if self.sstat == 2 or (self.ends_at is not None):
            raise CommandFailed(argv, "exit status 1", "NVMe status: Sanitize In Progress(0x1d)")
        if self.sstat == 3 and not self.scdw10 & 8 and "ause" in options:
            raise CommandFailed(argv, "exit status 1", "NVMe status: Sanitize Failed(0x1c)")
        self.starts.append(argv)
        self.ends_at = self.time.now + self.seconds
        if not self.stale:
            self.sstat, self.erased = 2, 0
            self.scdw10 = action | ("ause" in options) << 3 | int(options.get("owpass", 0)) << 4

    def _format(self, argv: tuple[str, ...], options: dict[str, str]) -> None:
        assert options["opcode"] == "0x80"
        ses = int(options["cdw10"], 16) >> 9 & 0b111
        if not self.oacs & 2 or (ses == 2 and not self.fna & 4):
            raise CommandFailed(argv, "exit status 1", "NVMe status: Invalid Command Opcode(0x1)")
        self.starts.append(argv)
        if ses in (1, 2) and not self.lies:
            self._wipe(int(options["namespace-id"]))

    # --- nvme-cli --------------------------------------------------------------------------------------------

    def _id_ctrl(self, argv: tuple[str, ...]) -> Any:
        assert argv[2].startswith("/dev/nvme")
        return {
            "sn": f"{self.serial:<20}", "mn": "EXAMPLE SSD", "fr": "GDC5602Q", "cntlid": 1, "cmic": self.cmic, "vid": 1,
            "oacs": self.oacs, "fna": self.fna, "sanicap": self.sanicap, "unvmcap": self.unvmcap, "tnvmcap": 1 << 40,
        }  # fmt: skip

    def _id_ns(self, argv: tuple[str, ...]) -> Any:
        nsid = int(argv[4])
        rows = [{"ms": 0, "ds": 9, "rp": 0}, {"ms": 0, "ds": 12, "rp": 0}]
        return {"nsze": len(self.media[nsid]), "flbas": 1, "dps": 0, "fpi": 0, "nmic": 0, "lbafs": rows}

    def _list_ns(self, argv: tuple[str, ...]) -> Any:
        loose = self.loose if "--all" in argv else ()
        return {"nsid_list": [{"nsid": nsid} for nsid in (*self.media, *loose)]}

    def _list_ctrl(self, argv: tuple[str, ...]) -> Any:
        return {"num_ctrl": len(self.controllers), "ctrl_list": [{"ctrl_id": one} for one in self.controllers]}

    def _list_secondary(self, argv: tuple[str, ...]) -> Any:
        return {"num": len(self.secondaries), "secondary-controllers": list(self.secondaries)}

    def _sanitize_log(self, argv: tuple[str, ...]) -> Any:
        if not self.stale:
            self._progress()
        words = {0: "NVM Subsystem has never been sanitized.", 2: "Sanitize in Progress."}
        text = words.get(self.sstat, "Most Recent Sanitize Command Completed Successfully.")
        key = text if self.version in ("2.7", "2.8") else "status"
        left = 0 if self.ends_at is None else max(0.0, self.ends_at - self.time.now)
        progress = int(65536 * max(0.0, 1 - left / self.seconds)) if self.sstat == 2 else 65535
        return {
            "nvme0": {
                "sprog": min(progress, 65535),
                "sstat": {"global_erased": self.erased, "no_cmplted_passes": 0, key: f"({self.sstat}) {text}"},
                "cdw10_info": self.scdw10,
                "time_over_write": NONE, "time_block_erase": self.seconds, "time_crypto_erase": NONE,
            }
        }  # fmt: skip


def order(**changes: Any) -> EraseOrder:
    """The order to erase the drive; its fields can be changed."""
    facts: dict[str, Any] = {
        "address": ADDRESS, "serial": SERIAL, "handover": "7", "owner": "guest a, from its definition",
        "belonging": (ADDRESS,),
    }  # fmt: skip
    return EraseOrder(**{**facts, **changes})
