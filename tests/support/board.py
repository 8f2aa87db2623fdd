"""A stand-in for a board of GPUs with NVSwitches, MIG and vGPUs: driver, tools, Fabric Manager and its client.

What it does is in `board.md`, rule by rule with its source (R1 … here). It lives in a scratch root: sysfs is the root's
own, what only hardware and daemons know is in one file, each thing that happens is a line of a trace. It imports
nothing of hosttune, and answers as a program, too: board.py ROOT PROGRAM ARGUMENT… (see `programs`).
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

STATE, TRACE = "var/lib/hosttune/scratch/board", "var/lib/hosttune/scratch/board-trace"
CONFIG, NVIDIA = "usr/share/nvidia/nvswitch/fabricmanager.cfg", "sys/bus/pci/drivers/nvidia"
PCI, MDEV, GROUPS = "sys/bus/pci/devices", "sys/bus/mdev/devices", "sys/kernel/iommu_groups"
Answer = tuple[int, str]  # exit status, stdout
BADPARAM, GENERIC, NOT_SUPPORTED, NOT_ACTIVE, TIMEOUT, IN_USE = -1, -2, -3, -4, -5, -7  # fmReturn_t
NOT_CONFIGURED, NO_CONNECTION, NVLINK_ERROR = -8, -9, -10
_FAILED = {"-l": "get partition list", "-a": "activate partition", "-d": "deactivate partition"}
_INVALID, _NOT_FOUND, _USED, _FULL = 2, 6, 19, 23  # nvmlReturn_t
_WORDS = {2: "Invalid Argument", 6: "Not Found", 19: "In use by another client", 23: "Insufficient Resources"}
_IDS = {8: (0,), 4: (2, 1), 2: (3, 5, 4, 6), 1: (9, 7, 8, 11, 12, 13, 14, 10)}  # R15: not in the order of places
_FUNCTION = re.compile(r"/sys/bus/pci/devices/([0-9a-f:.]+)/(.+)")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
TYPES = {  # number: name, profile of the GPU instance, most of them on a GPU without MIG
    "1414": ("NVIDIA H200X-1-18C", "1g.18gb", 0),
    "1417": ("NVIDIA H200X-2-35C", "2g.35gb", 0),
    "1418": ("NVIDIA H200X-3-71C", "3g.71gb", 0),
    "1426": ("NVIDIA H200X-70C", "", 2),
    "1428": ("NVIDIA H200X-141C", "", 1),
}


class Board:
    """The board of a root. Its state is read before, and kept after, each thing that happens."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).resolve()
        self.load()

    def load(self) -> None:
        """Read the state."""
        file = self.root / STATE
        self.state: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        self.guests: dict[str, list[str]] = self.state.get("guests", {})
        self.before = dict(self.guests)

    def note(self, op: str, *words: object, touched: Iterable[str] = (), **more: Any) -> None:
        """Keep the state, and put what happened into the trace with all that its rules look at (`boardtrace`)."""
        held = [one for devices in self.guests.values() for one in devices if one not in self.state["gpus"]]
        gpus, manager = self.state["gpus"], self.state["manager"]
        row = {
            "op": op, "words": words, "touched": [*touched], "before": self.before, "guests": self.guests, **more,
            "mode": self._mode(), "active": {number: sorted(self.modules(number)) for number in manager["active"]},
            "drivers": {name: self.driver(name) for name in gpus}, "clients": self.state["clients"],
            "modules": {name: known["module"] for name, known in gpus.items()},
            "types": {name: self.type_of(name) for name in held},
        }  # fmt: skip
        self.keep()
        with open(self.root / TRACE, "a") as file:
            file.write(json.dumps(row) + "\n")

    def keep(self) -> None:
        """Keep the state."""
        self.put(STATE, json.dumps(self.state))

    def plant(self, **faults: Any) -> None:
        """Faults: see `board.md`. A number counts down, by one each time that the fault shows."""
        self.load()
        self.state["faults"] |= faults
        self.keep()

    def use(self, gpu: str, processes: int) -> None:
        """So many processes of the host have a GPU open."""
        self.load()
        self.state["clients"][gpu] = processes
        self.note("fault")

    def guest(self, name: str, devices: Iterable[str] | None) -> None:
        """A guest starts with these functions (and UUIDs of mediated devices), or has ended (None)."""
        self.load()
        self.guests.pop(name, None)
        if devices is not None:
            self.guests[name] = sorted(devices)
        self.note("end" if devices is None else "start", name)

    def restart_manager(self, *, resilient: bool = False, running: bool = True) -> None:
        """Fabric Manager starts anew, or has ended (R6, R7, R8)."""
        self.load()
        self._manager_starts(resilient=resilient, running=running)
        self.note("fault")

    def _manager_starts(self, *, resilient: bool = False, running: bool = True) -> None:
        self.state["manager"] = {"running": running, "awaits": resilient, "active": []}
        self.state["unset"] = sorted(self.state["gpus"]) if self.state["generation"] == "blackwell" else []

    def boot(self) -> None:
        """The host starts anew: what of the board lasts is in R14, R16, R20."""
        self.load()
        rules = "".join(path.read_text() for path in self.root.glob("etc/udev/rules.d/*"))
        for name in self.state["gpus"]:
            self._remove_functions(name)
            self._lose_instances(name, driver=True)
            by_rule = name in rules  # which takes it before a driver does
            self.link(f"{PCI}/{name}/driver", "sys/bus/pci/drivers/vfio-pci" if by_rule else NVIDIA)
            self.put(f"{PCI}/{name}/driver_override", "vfio-pci\n" if by_rule else "(null)\n")
            self.put(f"{PCI}/{name}/reset_method", self.state["methods"][name] + "\n")
        while self.guests:
            (self.root / f".hosttune/commands/virsh-domstate-{self.guests.popitem()[0]}").unlink(missing_ok=True)
        self.state["clients"].clear()
        self._manager_starts()
        self.put("proc/sys/kernel/random/boot_id", f"22222222-0000-4000-8000-{time.monotonic_ns() % 10**12:012d}\n")
        self.note("fault")

    @property
    def active(self) -> list[int]:
        """The active partitions."""
        self.load()
        return sorted(self.state["manager"]["active"])

    def run(self, argv: Iterable[str]) -> tuple[int | None, str]:
        """What a program answers: exit status and stdout. None: it does not answer."""
        self.load()
        program, *words = argv
        name = program.rpartition("/")[2]
        if name == "fmpm" and self.state["faults"].get("hang"):
            return None, ""
        acts = {"fmpm": self._fmpm, "nvidia-smi": self._smi, "sriov-manage": self._sriov, "systemctl": self._unit}
        code, out = acts[name](words)
        if {"-l", "-lgi", "-lci", "show"} & {*words}:
            self.keep()
        else:
            self.note("run", name, *words, code=code, touched=self._touched(words))
        return code, out

    def _touched(self, words: list[str]) -> list[str]:
        """The functions that a command disturbs."""
        if words[-2:-1] == ["-d"] and words[-1].isdecimal():
            return self.members(int(words[-1]))
        gpus = {*words} & {*self.state["gpus"]} if "mig" not in words else ()  # R15, R16: instances leave others alone
        return [name for gpu in gpus for name in (gpu, *self.functions(gpu))]

    def modules(self, partition: int) -> set[int]:
        """The module ids of a partition."""
        rows = self.state["listed"]["partitionInfo"]
        return {gpu["physicalId"] for row in rows if row["partitionId"] == partition for gpu in row["gpuInfo"]}

    def members(self, partition: int) -> list[str]:
        """The GPUs of a partition."""
        modules = self.modules(partition)
        return [name for name, known in self.state["gpus"].items() if known["module"] in modules]

    def _shows(self, name: str) -> bool:
        left = self.state["faults"].get(name, 0)
        self.state["faults"][name] = max(0, left - 1)
        return bool(left > 0)

    def _unit(self, words: list[str]) -> Answer:
        there = "nvidia-fabricmanager.service" in words or bool(self.state["vgpus"])
        on = there and ("nvidia-vgpu-mgr.service" in words or self.state["manager"]["running"])
        return 0, f"LoadState={'loaded' if there else 'not-found'}\nActiveState={'active' if on else 'inactive'}\n"

    def _fmpm(self, words: list[str]) -> Answer:
        """R1, R2."""
        verb, value, host = "", "", "127.0.0.1"
        while words:
            word, *words = words
            if word in ("-a", "-d", "--set-activated-list", "--hostname", "--unix-domain-socket"):
                following, *words = words
                host = following if word == "--hostname" else host
                verb, value = (verb, value) if word in ("--hostname", "--unix-domain-socket") else (word, following)
            elif word == "-l":
                verb = word
            else:
                return 255, ""
        if verb == "-a" and int(value) >= 64:
            return 255, "Invalid Partition ID.\n"
        text = (self.root / CONFIG).read_text()
        listens = re.findall(r"(?m)^FM_CMD_BIND_INTERFACE=(\S+)", text) or ["127.0.0.1"]
        by_socket = re.search(r"(?m)^FM_CMD_UNIX_SOCKET_PATH=\S", text)
        if by_socket or not self.state["manager"]["running"] or listens[-1] not in (host, "0.0.0.0"):
            return NO_CONNECTION & 255, "Failed to connect to Fabric Manager instance.\n"
        answer = self._asked(verb, value)
        self._other_client()
        if answer:
            return answer & 255, f"Failed to {_FAILED.get(verb, 'set activated partitions')}. fmReturn: {answer}\n"
        return 0, self._list() if verb == "-l" else ""

    def _mode(self) -> int:
        modes = re.findall(r"(?m)^FABRIC_MODE=(\d)", (self.root / CONFIG).read_text())
        return int(modes[-1]) if modes else 0

    def _asked(self, verb: str, value: str) -> int:
        """What Fabric Manager returns (R3 to R11)."""
        manager, mode = self.state["manager"], self._mode()
        if verb == "--set-activated-list":
            manager |= {"active": sorted({int(one) for one in value.split(",") if one}), "awaits": False}
            return 0
        if manager["awaits"] or self._shows("slow"):
            return NOT_CONFIGURED
        if mode == 0 or (mode == 2 and verb == "-a"):
            return NOT_SUPPORTED
        if verb == "-l":
            return 0
        number = int(value)
        if not self.modules(number):
            return BADPARAM
        if self._shows("busy"):
            return TIMEOUT
        refused = self._refuse_activation(number) if verb == "-a" else 0 if number in manager["active"] else NOT_ACTIVE
        if not refused and self.state["faults"].get("order"):
            refused = GENERIC if {self.driver(gpu) for gpu in self.members(number)} != {"nvidia"} else 0
        if not refused:
            manager["active"] = sorted({*manager["active"]} ^ {number})
        return refused

    def _refuse_activation(self, number: int) -> int:
        gpus = self.members(number)
        if any(self.modules(one) & self.modules(number) for one in self.state["manager"]["active"]):
            return IN_USE
        if {*gpus} & {*self.state["away"], *self.state["unset"]}:
            return NVLINK_ERROR
        mixed = self.state["generation"] == "ampere" and len(gpus) > 1 and any(self.mig(gpu)["on"] for gpu in gpus)
        return GENERIC if mixed else 0

    def _list(self) -> str:
        active, listed = self.state["manager"]["active"], self.state["listed"]
        rows = [{**row, "isActive": int(row["partitionId"] in active)} for row in listed["partitionInfo"]]
        return json.dumps({**listed, "partitionInfo": rows}, indent=3, sort_keys=True) + "\n"  # as jsoncpp

    def _other_client(self) -> None:
        """Fault `other`: [N, verb, partition]: another client asks that, after the Nth answer."""
        other = self.state["faults"].get("other") or [0]
        other[0] -= 1
        if other[0] == 0:
            self._asked(other[1], str(other[2]))
            self.note("fault")

    def mig(self, gpu: str) -> dict[str, Any]:
        """MIG of a GPU: `on`, `pending`, `instances`."""
        found: dict[str, Any] = self.state["mig"][gpu]
        return found

    def _smi(self, words: list[str]) -> Answer:
        """`nvidia-smi mig -i ADDRESS …`, `nvidia-smi -i ADDRESS -mig N` (R12 to R17)."""
        options = dict(zip(words, [*words[1:], ""], strict=True))
        gpu = options.get("-i", "")
        if not self._seen(gpu):
            return _NOT_FOUND, "No devices were found\n"
        if "-mig" in options:
            done = self._set_mode(gpu, options["-mig"] == "1")
            return 0, f"{'' if done else f'Warning: MIG mode is in pending state for GPU {gpu}'}\nAll done.\n"
        if not self.mig(gpu)["on"]:
            return _NOT_FOUND, "No MIG-enabled devices found.\n"
        if "-lgi" in options:
            return self._instances(gpu)
        if "-cgi" in options:
            return self._create(gpu, options["-cgi"])
        chosen = [one for one in self.mig(gpu)["instances"] if options.get("-gi") in (None, str(one["id"]))]
        return self._destroy(gpu, chosen, "compute" if "-dci" in options else "GPU")

    def set_mode(self, gpu: str, on: bool) -> bool:
        """NVML's setter of the MIG mode; whether the mode is that now."""
        self.load()
        done = self.driver(gpu) == "nvidia" and self._set_mode(gpu, on)
        self._refresh(gpu)
        self.note("mig-mode", gpu, on, touched=[gpu, *self.functions(gpu)], code=int(not done))
        return done

    def _set_mode(self, gpu: str, on: bool) -> bool:
        """R12, R13."""
        mig = self.mig(gpu)
        used = self.state["clients"].get(gpu) or mig["instances"] or (not on and self.functions(gpu))
        if mig["on"] != on:
            mig |= {"pending": on} if used else {"on": on, "pending": on}
        return bool(mig["on"] == on)

    def _instances(self, gpu: str) -> Answer:
        index, instances = self.state["gpus"][gpu]["index"], self.mig(gpu)["instances"]
        if not instances:
            return _NOT_FOUND, "No GPU instances found: Not Found\n"
        line, below = f"+{'-' * 57}+", f"{'ID       ID       Start:Size':>54}"
        titles = "GPU instances:", "GPU   Name               Profile  Instance   Placement", below
        rows = [line, *(f"| {title:56}|" for title in titles), f"|{'=' * 57}|"]
        for one in sorted(instances, key=lambda one: one["start"]):
            number, place = self.state["profiles"][one["profile"]][0], f"{one['start']}:{one['size']}"
            rows += [f"|{index:>4}  MIG {one['profile']:<16}{number:>4}{one['id']:>9}{place:>13}     |", line]
        return 0, "\n".join(rows) + "\n"

    def _create(self, gpu: str, wanted: str) -> Answer:
        """R15: one after the other; what was made before a refusal stays."""
        said, index, code = "", self.state["gpus"][gpu]["index"], 0
        for part in wanted.split(","):
            name, _, start = part.partition(":")
            code = self._make(gpu, name, start)
            if code:
                said += f"Unable to create a GPU instance on GPU {index:>2} using profile {name}: {_WORDS[code]}\n"
                said += f"Failed to create GPU instances: {_WORDS[code]}\n"
                break
            number = self.mig(gpu)["instances"][-1]["id"]
            said += f"Successfully created GPU instance ID {number:>2} on GPU {index:>2}\n"
        self._refresh(gpu)
        return code, said

    def _make(self, gpu: str, name: str, start: str) -> int:
        profiles, instances = self.state["profiles"], self.mig(gpu)["instances"]
        name = next((key for key, row in profiles.items() if name == str(row[0])), name)
        if name not in profiles or (start and int(start) not in profiles[name][2]):
            return _INVALID
        if self.state["clients"].get(gpu) or self._shows("mig_busy"):
            return _USED
        _, most, starts, size = profiles[name]
        taken = {one["start"] + n for one in instances for n in range(one["size"])}
        places = [at for at in ([int(start)] if start else starts) if not taken & {*range(at, at + size)}]
        slices = sum(int(one["profile"][0]) for one in instances) + int(name[0])
        if not places or slices > 7 or sum(one["profile"] == name for one in instances) >= most:
            return _FULL
        number = next(one for one in _IDS[size] if one not in {used["id"] for used in instances})
        instances.append({"id": number, "profile": name, "start": places[0], "size": size, "compute": 0})
        return 0

    def _destroy(self, gpu: str, chosen: list[dict[str, Any]], what: str) -> Answer:
        """R16."""
        carrying = [number for name, number in self.state["vgpu_of"].items() if self.physical(name) == gpu]
        chosen = [one for one in chosen if what == "GPU" or one["compute"]]
        if not chosen:
            return _NOT_FOUND, f"No {what} instances found: Not Found\n"
        for one in chosen:
            if one["id"] in carrying or self._shows("mig_busy") or (what == "GPU" and one["compute"]):
                index, why = self.state["gpus"][gpu]["index"], _WORDS[_USED]
                unable = f"Unable to destroy {what} instance ID {one['id']:>2} from GPU {index:>2}: {why}\n"
                return _USED, f"{unable}Failed to destroy {what} instances: {why}\n"
            one["compute"] = 0
            if what == "GPU":
                self.mig(gpu)["instances"].remove(one)
        self._refresh(gpu)
        return 0, f"Successfully destroyed {what} instance\n"

    def _lose_instances(self, gpu: str, *, driver: bool) -> None:
        """R14, R16. `driver`: the driver let go, or the GPU was reset."""
        self.mig(gpu)["instances"] = []
        if driver and self.state["generation"] != "ampere":
            self.mig(gpu).update({"on": False, "pending": False})

    def _seen(self, gpu: str) -> bool:
        return self.driver(gpu) == "nvidia" and gpu not in self.state["away"]

    def smi_xml(self, text: str) -> str:
        """`nvidia-smi -q -x` as it is now: of the GPUs in it those that the nvidia driver has."""
        self.load()
        block = re.compile(r'\t<gpu id="0000(.{12})">.*?</gpu>\n', re.DOTALL)
        return block.sub(lambda match: match[0] if self._seen(match[1].lower()) else "", text)

    def nvml(self) -> str:
        """What NVML tells of MIG and of processes, as hosttune records it."""
        self.load()
        told: dict[str, Any] = {}
        profiles = self.state["profiles"]
        for gpu in filter(self._seen, self.state["gpus"]):
            mig = self.mig(gpu)
            there = [{"profileId": profiles[one["profile"]][0], **one} for one in mig["instances"]]
            entry = {"busId": gpu, "processes": self.state["clients"].get(gpu, 0), "migInstances": there}
            entry["nvmlDeviceGetMigMode"] = [int(mig["on"]), int(mig["pending"])]
            for name, (number, most, starts, size, *_) in profiles.items():
                places = [[start, size] for start in starts]
                entry[f"profile{number}"] = {"name": name, "id": number, "instanceCount": most, "placements": places}
            told[str(len(told))] = entry
        return json.dumps(told)

    def functions(self, gpu: str) -> list[str]:
        """The virtual functions that a GPU has, by address."""
        return sorted(os.readlink(path).rpartition("/")[2] for path in (self.root / PCI / gpu).glob("virtfn*"))

    def physical(self, function: str) -> str:
        """The GPU of a virtual function; of another one itself."""
        link = self.root / PCI / function / "physfn"
        return os.readlink(link).rpartition("/")[2] if link.is_symlink() else function

    def _sriov(self, words: list[str]) -> Answer:
        """R18, R19."""
        verb, gpu = words
        if self.driver(gpu) != "nvidia" or not self.state["vgpus"]:
            return 1, f"{gpu}: not bound to nvidia\n"
        if (verb == "-e") == bool(self.functions(gpu)):
            return 0, ""
        if self.state["clients"].get(gpu) or self._shows("unbind_lock"):
            return 1, f"Cannot obtain unbindLock for {gpu}\n"
        self._lose_instances(gpu, driver=False)
        if self._shows("sriov_race"):
            (self.root / PCI / gpu / "driver").unlink()
            return 1, "awk: warning: error writing standard output: No such device\n"
        (self._make_functions if verb == "-e" else self._remove_functions)(gpu)
        return 0, f"{'Enabling' if verb == '-e' else 'Disabling'} VFs on {gpu}\n"

    def _make_functions(self, gpu: str) -> None:
        physical, count = (self.root / PCI / gpu).resolve(), int(self.text(gpu, "sriov_totalvfs"))
        group, bus = 1000 + 100 * self.state["gpus"][gpu]["index"], str(physical.parent.relative_to(self.root))
        skipped = shutil.ignore_patterns("sriov_*", "virtfn*", "msi_irqs", "driver*", "iommu_group", "reset_method")
        for n in range(count):
            name = f"{gpu[:-4]}{(n + 4) // 8:02x}.{(n + 4) % 8}"
            inside, at = f"{bus}/{name}", count - 1 - n if self.state["faults"].get("vf_order") else n
            shutil.copytree(physical, self.root / inside, symlinks=True, ignore=skipped)
            self.put(f"{inside}/driver_override", "(null)\n")
            self.link(f"{PCI}/{name}", inside)
            self.link(f"{inside}/physfn", f"{bus}/{gpu}")
            self.link(f"{bus}/{gpu}/virtfn{at}", inside)
            self.link(f"{inside}/driver", NVIDIA)
            self.link(f"{inside}/iommu_group", f"{GROUPS}/{group + n}")
            self.link(f"{GROUPS}/{group + n}/devices/{name}", inside)
        self.put(f"{PCI}/{gpu}/sriov_numvfs", f"{count}\n")
        self._refresh(gpu)

    def _remove_functions(self, gpu: str) -> None:
        for name in self.functions(gpu):
            shutil.rmtree((self.root / PCI / name / "iommu_group").resolve())
            for uuid in self._mediated(name):
                (self.root / MDEV / uuid).unlink()
            shutil.rmtree((self.root / PCI / name).resolve())
            (self.root / PCI / name).unlink()
            self.state["vgpu_of"].pop(name, None)
        for path in (self.root / PCI / gpu).glob("virtfn*"):
            path.unlink()
        if self.state["vgpus"]:
            self.put(f"{PCI}/{gpu}/sriov_numvfs", "0\n")

    def _mediated(self, function: str) -> list[str]:
        return [path.name for path in (self.root / PCI / function).glob("*") if _UUID.fullmatch(path.name)]

    def type_of(self, function: str) -> str:
        """The type of the vGPU that a virtual function carries, or that a UUID is; "0": none."""
        if _UUID.fullmatch(function):
            link = self.root / MDEV / function / "mdev_type"
            return os.readlink(link).rpartition("-")[2] if link.is_symlink() else "0"
        for uuid in self._mediated(function):
            return os.readlink(self.root / PCI / function / uuid / "mdev_type").rpartition("-")[2]
        return self.text(function, "nvidia/current_vgpu_type") or "0"

    def _creatable(self, gpu: str) -> list[str]:
        """R20 to R22: the types that a function without a vGPU can have now."""
        if self.state["faults"].get("no_types"):
            return []
        if self.mig(gpu)["on"]:
            used = [number for name, number in self.state["vgpu_of"].items() if self.physical(name) == gpu]
            free = {one["profile"] for one in self.mig(gpu)["instances"] if one["id"] not in used}
            return [number for number, (_, profile, _) in TYPES.items() if profile in free]
        there = [number for name in self.functions(gpu) if (number := self.type_of(name)) != "0"]
        return [number for number, (_, _, most) in TYPES.items() if len(there) < most and {*there} <= {number}]

    def _refresh(self, gpu: str) -> None:
        """Bring the files of types up to what is there."""
        free = self._creatable(gpu)
        for name in self.functions(gpu):
            can, folder = free if self.type_of(name) == "0" else [], f"{PCI}/{name}"
            if self.state["vgpus"] == "vfio":
                listed = "".join(f"{number} : {TYPES[number][0]}\n" for number in can)
                self.put(f"{folder}/nvidia/creatable_vgpu_types", listed)
                self.put(f"{folder}/nvidia/current_vgpu_type", f"{self.type_of(name)}\n")
                continue
            for number, (title, _, _) in TYPES.items():
                kind = f"{folder}/mdev_supported_types/nvidia-{number}"
                self.put(f"{kind}/name", f"{title}\n")
                self.put(f"{kind}/available_instances", f"{int(number in can)}\n")
                self.put(f"{kind}/create", "")

    def _carry(self, function: str, number: str) -> None:
        """R21: which GPU instance carries the vGPU is the driver's choice. -1: the whole GPU."""
        gpu, used = self.physical(function), self.state["vgpu_of"]
        instances = [one["id"] for one in self.mig(gpu)["instances"] if one["profile"] == TYPES[number][1]]
        busy = [carrier for name, carrier in used.items() if self.physical(name) == gpu]
        used[function] = [-1, *(one for one in instances if one not in busy)][-1]

    def refuse(self, path: str, text: str) -> int | None:
        """The errno with which the kernel refuses a write; None: it goes through, and `wrote` follows."""
        self.load()
        match, text = _FUNCTION.fullmatch(path), text.strip()
        if match is None:
            removes = path.endswith("/remove") and path.split("/")[-2]
            return errno.EBUSY if any(removes in devices for devices in self.guests.values()) else None
        name, file, gpus = match[1], match[2], self.state["gpus"]
        created = re.fullmatch(r"mdev_supported_types/nvidia-(\d+)/create", file)
        if file == "reset":
            return self._refuse_reset(name)
        if file == "reset_method" and name in gpus:
            return None if {*text.split()} <= {*self.state["methods"][name].split(), "default"} else errno.EINVAL
        if file == "sriov_numvfs" and name in gpus:
            return errno.EINVAL  # R18
        if file == "nvidia/current_vgpu_type" and text != "0":
            return None if self._can(name, text) else errno.EIO
        if not created or not _UUID.fullmatch(text):
            return errno.EINVAL if created else None
        there = (self.root / MDEV / text).is_symlink()
        return errno.EEXIST if there else None if self._can(name, created[1]) else errno.ENOSPC

    def _can(self, function: str, number: str) -> bool:
        return number in self._creatable(self.physical(function)) and self.type_of(function) == "0"

    def _refuse_reset(self, name: str) -> int | None:
        """R23 to R25."""
        method, away = self.text(name, "reset_method").partition(" ")[0], self.state["faults"].get("away", "")
        beside = [path for path in (self.root / PCI).glob(f"{name[:-4]}*") if path.name != name]
        if not method or (method == "bus" and beside):
            return errno.ENOTTY
        if away.partition(" ")[0] != name:
            return None
        self.state["away"].append(name)
        self.put(f"{PCI}/{name}/config", b"\xff" * (self.root / PCI / name / "config").stat().st_size)
        self.note("away", name)
        return None if away.endswith(" silently") else errno.ENOTTY

    def wrote(self, path: str, text: str) -> None:
        """What follows from a write that went through."""
        self.load()
        text, match = text.strip(), _FUNCTION.fullmatch(path)
        function, file = match.groups() if match else (text, "")
        if file in ("reset_method", "driver_override"):
            return
        if path.startswith(f"/{MDEV}/"):
            function = path.split("/")[5]
            self._unmediate(function)
        elif file == "nvidia/current_vgpu_type":
            self.state["vgpu_of"].pop(function, None)
            self.put(f"{PCI}/{function}/nvidia/current_vgpu_type", f"{text}\n")
            if text != "0":
                self._carry(function, text)
            self._refresh(self.physical(function))
        elif file.endswith("/create"):
            self._mediate(function, file.split("/")[1], text)
        known = function in self.state["gpus"]
        if known and file in ("", "reset"):
            self._lose_instances(function, driver=True)
        if file == "reset":
            self.state["unset"] = [one for one in self.state["unset"] if one != function]
            text = self.text(function, "reset_method").partition(" ")[0]
        self.note("write", path, text, touched=[function, *(self.functions(function) if known else ())])

    def _mediate(self, function: str, kind: str, uuid: str) -> None:
        """R22."""
        inside = str((self.root / PCI / function).resolve().relative_to(self.root))
        self._carry(function, kind.removeprefix("nvidia-"))
        self.put(f"{inside}/{uuid}/remove", "")
        self.link(f"{inside}/{uuid}/mdev_type", f"{inside}/mdev_supported_types/{kind}")
        self.link(f"{MDEV}/{uuid}", f"{inside}/{uuid}")
        self._refresh(self.physical(function))

    def _unmediate(self, uuid: str) -> None:
        folder = (self.root / MDEV / uuid).resolve()
        shutil.rmtree(folder)
        (self.root / MDEV / uuid).unlink()
        self.state["vgpu_of"].pop(folder.parent.name, None)
        self._refresh(self.physical(folder.parent.name))

    def driver(self, function: str) -> str:
        """The driver that holds a function; "" for none."""
        link = self.root / PCI / function / "driver"
        return os.readlink(link).rpartition("/")[2] if link.is_symlink() else ""

    def text(self, function: str, file: str) -> str:
        """A file of a function; "" without one."""
        path = self.root / PCI / function / file
        return path.read_text().strip() if path.exists() else ""

    def put(self, name: str, data: str | bytes) -> None:
        """A new file in the place of an old one, which may be a hard link of another root's."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{path.name}.new")
        new.write_bytes(data if isinstance(data, bytes) else data.encode())
        new.replace(path)

    def link(self, name: str, target: str) -> None:
        """A relative link, as sysfs has them."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        (self.root / target).mkdir(parents=True, exist_ok=True)
        path.symlink_to(os.path.relpath((self.root / target).resolve(), path.parent.resolve()))


def programs(root: Path, folder: Path) -> None:
    """Programs for a PATH, which answer for the board of a root."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("fmpm", "nvidia-smi", "sriov-manage"):
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{__file__}" "{root}" {name} "$@"\n')
        (folder / name).chmod(0o755)


if __name__ == "__main__":
    status, answer = Board(sys.argv[1]).run(sys.argv[2:])
    if status is None:
        time.sleep(float(Board(sys.argv[1]).state["faults"]["hang"]))
    sys.stdout.write(answer)
    sys.exit(1 if status is None else status)
