"""An NVMe controller through `nvme-cli`: its answers as values, and the two commands that erase.

The forms of the JSON are those of nvme-cli 1.13 to 2.16 (nvme-print.c, nvme-print-json.c); before 1.13 `list-ns` has no
JSON. Names of fields and bits are those of the NVM Express Base Specification 1.4 and 2.0: Identify Controller,
Identify Namespace, Sanitize Status log page, Sanitize and Format NVM commands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hosttune.errors import BadInput, CommandFailed
from hosttune.machine.system import System
from hosttune.model.jsontext import recorded_json
from hosttune.model.values import Value

T = TypeVar("T")
BLOCK_ERASE, OVERWRITE, CRYPTO_ERASE = 2, 3, 4  # SANACT
AUSE = 1 << 3  # in CDW10 of Sanitize: allow unrestricted exit
NEVER, COMPLETED, RUNNING, FAILED, COMPLETED_DEALLOCATED = 0, 1, 2, 3, 4  # SSTAT, bits 2:0
_NOT_REPORTED = 0xFFFFFFFF  # of an estimated time
_TIMES = {
    "overwrite_seconds": "over_write",
    "block_erase_seconds": "block_erase",
    "crypto_erase_seconds": "crypto_erase",
}
_SECONDS = 60.0  # of one reading command; the kernel's own limit for an admin command is 60 s


class NvmeNotUnderstood(CommandFailed):
    """nvme-cli's answer is not what any version known to hosttune prints."""

    def __init__(self, argv: tuple[str, ...], why: str) -> None:
        super().__init__(argv, f"answer not understood: {why}")


class NvmeIdentity(Value, frozen=True, kw_only=True):
    """What a controller says of itself (Identify Controller). `unvmcap`: unallocated bytes; None: not told."""

    serial: str
    model: str
    firmware: str
    cntlid: int
    cmic: int
    oacs: int
    fna: int
    sanicap: int
    unvmcap: int | None = None

    @property
    def alone(self) -> bool:
        """Whether its subsystem has no other controller (CMIC, bit 1), and the controller is no virtual function's."""
        return not self.cmic & 0b110

    @property
    def formats(self) -> bool:
        """Whether it has Format NVM (OACS, bit 1)."""
        return bool(self.oacs & 1 << 1)

    @property
    def manages_namespaces(self) -> bool:
        """Whether it has Namespace Management (OACS, bit 3): namespaces can then be detached, and space unallocated."""
        return bool(self.oacs & 1 << 3)

    @property
    def virtualizes(self) -> bool:
        """Whether it has Virtualization Management (OACS, bit 7), and so a list of secondary controllers."""
        return bool(self.oacs & 1 << 7)


class Format(Value, frozen=True, kw_only=True):
    """The format of a namespace, which stays the same when it is erased: size in bytes and Format NVM's fields.

    `remaining`: percent of a running format (FPI); None if none runs, or it is not told.
    """

    bytes: int
    lbaf: int
    pi: int
    pil: int
    ms: int
    remaining: int | None = None


class SanitizeLog(Value, frozen=True, kw_only=True):
    """The Sanitize Status log page.

    `status`: SSTAT bits 2:0. `erased`: Global Data Erased. `progress`: 0 to 65535, of a running operation. `cdw10`: of
    the command that started the last operation. Estimated times in seconds; None: the drive does not report one.
    """

    status: int
    erased: bool
    progress: int
    cdw10: int
    overwrite_seconds: int | None = None
    block_erase_seconds: int | None = None
    crypto_erase_seconds: int | None = None

    def seconds(self, action: int) -> int | None:
        """Return the estimated time of a SANACT."""
        times = {OVERWRITE: self.overwrite_seconds, BLOCK_ERASE: self.block_erase_seconds}
        return times.get(action, self.crypto_erase_seconds)

    @property
    def shown(self) -> Mapping[str, Any]:
        """The fields that are evidence."""
        return {"status": self.status, "global_data_erased": self.erased, "command": self.cdw10}


class Secondary(Value, frozen=True, kw_only=True):
    """A secondary controller: its id, its virtual function's number (from 1), whether it is online."""

    cntlid: int
    function: int
    online: bool


class Drive:
    """The controller NAME ("nvme0") of a System. Every call asks the drive. All raise CommandFailed."""

    def __init__(self, system: System, name: str) -> None:
        self._system = system
        self.name = name
        self.node = f"/dev/{name}"

    def identity(self) -> NvmeIdentity:
        """Identify Controller."""
        argv, answer = self._ask("id-ctrl")
        return _understood(argv, parse_identity, answer)

    def format(self, nsid: int) -> Format:
        """Identify Namespace."""
        argv, answer = self._ask("id-ns", "-n", str(nsid))
        return _understood(argv, parse_format, answer)

    def namespaces(self, *, allocated: bool = False) -> tuple[int, ...]:
        """Return the namespaces that are attached to it, or all that are allocated in its subsystem."""
        argv, answer = self._ask("list-ns", *(("--all",) if allocated else ()))
        return _understood(argv, lambda plain: _ids(plain, "nsid_list", "nsid"), answer)

    def controllers(self) -> tuple[int, ...]:
        """Return the controllers of its subsystem."""
        argv, answer = self._ask("list-ctrl")
        return _understood(argv, lambda plain: _ids(plain, "ctrl_list", "ctrl_id"), answer)

    def secondaries(self) -> tuple[Secondary, ...]:
        """Return its secondary controllers."""
        argv, answer = self._ask("list-secondary")
        return _understood(argv, parse_secondaries, answer)

    def sanitize_log(self) -> SanitizeLog:
        """Return the Sanitize Status log page."""
        argv, answer = self._ask("sanitize-log")
        return _understood(argv, parse_sanitize_log, answer)

    def sanitize(self, cdw10: int) -> None:
        """Start a sanitize; the drive answers when it has begun. The overwrite pattern is 0, in one pass."""
        action = cdw10 & 0b111
        options = (*(("--owpass=1",) if action == OVERWRITE else ()), *(("--ause",) if cdw10 & AUSE else ()))
        self._system.change(("nvme", "sanitize", self.node, f"--sanact={action}", *options), timeout=_SECONDS)

    def erase_namespace(self, nsid: int, form: Format, ses: int, seconds: float) -> None:
        """Format a namespace in its present form, with secure erase `ses`; the drive answers when it has ended.

        As a command of its own words: `nvme format` of nvme-cli 2.3 (Debian 12) drops its --timeout, so that the kernel
        resets the drive after 60 s, and where all namespaces have one format it would change it.
        """
        word = form.lbaf & 0xF | form.ms << 4 | form.pi << 5 | form.pil << 8 | ses << 9 | (form.lbaf >> 4) << 12
        limit = f"--timeout={int(seconds * 1000)}"
        words = ("nvme", "admin-passthru", self.node, "--opcode=0x80", f"--namespace-id={nsid}", f"--cdw10={word:#x}")
        self._system.change((*words, limit), timeout=seconds + _SECONDS)

    def _ask(self, command: str, *options: str) -> tuple[tuple[str, ...], Any]:
        argv = ("nvme", command, self.node, *options, "-o", "json")
        try:
            text = self._system.run(argv, timeout=_SECONDS)
        except CommandFailed as error:
            if error.reason == "not installed":
                error.hint = "install nvme-cli, 1.13 or newer (package nvme-cli)"
            raise
        try:
            return argv, recorded_json(text, where=" ".join(argv))
        except BadInput as error:
            raise NvmeNotUnderstood(argv, error.what) from error


def command_dword(action: int, before: SanitizeLog) -> int:
    """Return CDW10 of a Sanitize command that differs from the last one's, so that the log shows which one it is about.

    It is restricted (a failed sanitize leaves nothing readable), except where the last command was the same: then the
    exit is unrestricted, which changes nothing else of a successful sanitize. After a failure it is always restricted,
    since a drive aborts an unrestricted one after a restricted one has failed (NVM Express Base Specification 1.4,
    5.24); there the log shows a new operation by its status.
    """
    word = action | (1 << 4 if action == OVERWRITE else 0)  # OWPASS 1
    return word | AUSE if word == before.cdw10 and before.status != FAILED else word


def _understood(argv: tuple[str, ...], parse: Callable[[Any], T], plain: Any) -> T:
    try:
        return parse(plain)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NvmeNotUnderstood(argv, f"{type(error).__name__}: {error}") from error


def parse_identity(plain: Any) -> NvmeIdentity:
    """Return Identify Controller from its JSON. Raises KeyError, TypeError, ValueError."""
    serial = _text(plain["sn"])
    if not serial:
        raise ValueError("no serial number")
    spare = plain.get("unvmcap")
    return NvmeIdentity(
        serial=serial,
        model=_text(plain["mn"]),
        firmware=_text(plain["fr"]),
        **{name: _whole(plain[name]) for name in ("cntlid", "cmic", "oacs", "fna")},
        sanicap=_word(plain["sanicap"]),
        unvmcap=None if spare is None else _amount(spare),
    )


def parse_format(plain: Any) -> Format:
    """Return the format of a namespace from Identify Namespace. Raises KeyError, TypeError, ValueError."""
    flbas, dps, fpi = (_whole(plain[name]) for name in ("flbas", "dps", "fpi"))
    lbaf = flbas & 0xF | (flbas & 0x60) >> 1
    size = _whole(plain["nsze"]) << _whole(plain["lbafs"][lbaf]["ds"])
    remaining = fpi & 0x7F if fpi & 0x80 and fpi & 0x7F else None
    return Format(bytes=size, lbaf=lbaf, pi=dps & 0b111, pil=dps >> 3 & 1, ms=flbas >> 4 & 1, remaining=remaining)


def parse_secondaries(plain: Any) -> tuple[Secondary, ...]:
    """Return the secondary controllers. Raises KeyError, TypeError, ValueError."""
    rows = plain["secondary-controllers"]
    return tuple(
        Secondary(
            cntlid=_whole(row["secondary-controller-identifier"]),
            function=_whole(row["virtual-function-number"]),
            online=bool(_whole(row["secondary-controller-state"]) & 1),
        )
        for row in rows
    )


def parse_sanitize_log(plain: Any) -> SanitizeLog:
    """Return the Sanitize Status log page. Raises KeyError, TypeError, ValueError.

    The status is a text that begins with its number: the value of `status`, in nvme-cli 2.7 and 2.8 of a key that is
    the text itself.
    """
    (log,) = plain.values()  # named for the device
    state = log["sstat"]
    texts = [value for value in state.values() if isinstance(value, str)]
    (status,) = [match[1] for value in texts if (match := re.match(r"\(([0-7])\)", value))]
    times = {name: _word(log[f"time_{key}"]) for name, key in _TIMES.items()}
    erased = _whole(state["global_erased"])
    if erased not in (0, 1):
        raise ValueError(f"global_erased {erased}")
    return SanitizeLog(
        status=int(status),
        erased=erased == 1,
        progress=_whole(log["sprog"]),
        cdw10=_word(log["cdw10_info"]),
        **{name: seconds for name, seconds in times.items() if seconds != _NOT_REPORTED},
    )


def _ids(plain: Any, rows: str, key: str) -> tuple[int, ...]:
    return tuple(_word(row[key]) for row in plain[rows])


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(f"{value!r} is not a text")
    return value.strip()


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 64:
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _word(value: Any) -> int:
    """Return a number of 32 bits; nvme-cli 2.3 prints one from 2^31 on as negative ("time_over_write":-1)."""
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 31) <= value < 1 << 32:
        raise ValueError(f"{value!r} is not a number of 32 bits")
    return value & 0xFFFFFFFF


def _amount(value: Any) -> int:
    """Return a number of 128 bits, which nvme-cli prints as a number, a float or a text."""
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        return int(value)
    if isinstance(value, float) and value >= 0:
        return int(value) or int(value > 0)
    return _whole(value)
