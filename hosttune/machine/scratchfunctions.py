"""Virtual functions of a scratch root: made and removed by their number, with what their physical function keeps."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from typing import Any

from hosttune.errors import WriteFailed
from hosttune.linux.pciconfig import decode
from hosttune.machine.scratchfiles import ScratchFiles
from hosttune.machine.system import COMMANDS
from hosttune.model import sysfs
from hosttune.model.pci import vf_address

_ROW: dict[str, Any] = {"link_type": "ether", "address": "00:00:00:00:00:00", "vlan_list": [{}], "spoofchk": True,
                        "rate": {"max_tx": 0, "min_tx": 0}, "link_state": "auto", "trust": False}  # fmt: skip
_OF_ROW = {"mac": "address", "state": "link_state", "node_guid": "node guid",
           "port_guid": "port guid"}  # fmt: skip


class ScratchFunctions(ScratchFiles):
    """A captured host whose virtual functions can be changed."""

    def count_functions(self, match: re.Match[str], text: str) -> None:
        """Change the number of virtual functions as the kernel does: only from or to 0."""
        now = self._held(match[0]).decode().strip()
        most = (self.read(f"{match['device']}/sriov_totalvfs") or "").strip()
        if not text.isdecimal():
            raise WriteFailed(match[0], os.strerror(errno.EINVAL), errno.EINVAL)
        if most.isdecimal() and int(text) > int(most):
            raise WriteFailed(match[0], os.strerror(errno.ERANGE), errno.ERANGE)
        if text not in ("0", now) and now != "0":
            raise WriteFailed(match[0], os.strerror(errno.EBUSY), errno.EBUSY)
        if text != now:
            self._show(self._folder(match["device"]), match["device"].rpartition("/")[2], int(text))
        self._store(match[0], f"{int(text)}\n".encode())

    def _show(self, folder: str, physical: str, count: int) -> None:
        devices, groups = self._folder(sysfs.PCI_DEVICES), self._folder(sysfs.IOMMU_GROUPS)
        for name in (one for one in os.listdir(folder) if one.startswith("virtfn")):
            own = os.path.realpath(f"{folder}/{name}")
            address, group = os.path.basename(own), os.path.realpath(f"{own}/iommu_group")
            if os.path.dirname(group) == os.path.realpath(groups) and os.listdir(f"{group}/devices") in ([address], []):
                shutil.rmtree(group)
            shutil.rmtree(own)
            os.unlink(f"{devices}/{address}")
            os.unlink(f"{folder}/{name}")
        sriov = decode(self.read_bytes(f"{sysfs.function(physical)}/config") or b"").sriov
        of_config = (sriov.offset, sriov.stride, sriov.device_id) if sriov else ()
        told = [self.read(sysfs.function(physical, f"sriov_{name}")) for name in ("offset", "stride", "vf_device")]
        facts = [text for text in told if text is not None] if None not in told else [*map(str, of_config)]
        for number in range(count if facts else 0):
            address = vf_address(physical, int(facts[0]), int(facts[1]), number)
            own = f"{os.path.dirname(folder)}/{address}"
            os.makedirs(own)
            for name in ("vendor", "class", "numa_node", "local_cpulist"):
                if os.path.exists(f"{folder}/{name}"):
                    shutil.copy(f"{folder}/{name}", own)
            with open(f"{own}/device", "w") as file:
                file.write(f"0x{facts[2]}\n")
            group = f"{groups}/{1 + max(map(int, os.listdir(groups)), default=-1)}"
            os.makedirs(f"{group}/devices")
            links = {f"{folder}/virtfn{number}": own, f"{devices}/{address}": own, f"{own}/physfn": folder,
                     f"{own}/iommu_group": group, f"{group}/devices/{address}": own}  # fmt: skip
            for place, to in links.items():
                os.symlink(os.path.relpath(to, os.path.realpath(os.path.dirname(place))), place)
        for interface in os.listdir(f"{folder}/net") if os.path.isdir(f"{folder}/net") else ():
            self._answer(interface, [{"vf": number, **_ROW} for number in range(count)])
        self.forget()

    def _answer(self, interface: str, rows: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
        """Return what `ip link show` tells of an interface's virtual functions, or change it."""
        path = f"{COMMANDS}ip-link-{interface}"
        links = json.loads(self.read(path) or json.dumps([{"ifname": interface}]))
        if rows is not None:
            links[0]["vfinfo_list"] = rows
            self._made.make(COMMANDS.rstrip("/"))
            self._put(path, json.dumps(links).encode())
        return list(links[0].get("vfinfo_list", ()))

    def set_function(self, interface: str, number: int, words: tuple[str, ...]) -> None:
        """Change what a physical function keeps for a virtual one, as `ip link set DEV vf NUMBER` does."""
        rows = self._answer(interface)
        row = next(row for row in rows if row["vf"] == number)
        for word, value in zip(words[::2], words[1::2], strict=True):
            if word in ("vlan", "qos"):
                row["vlan_list"] = [{**row["vlan_list"][0], word: int(value)}]
            elif word in ("max_tx_rate", "min_tx_rate"):
                row["rate"] = {**row["rate"], word.removesuffix("_rate"): int(value)}
            elif word in ("proto", *_OF_ROW):
                row[_OF_ROW.get(word, "protocol")] = value
            else:
                row["query_rss_en" if word == "query_rss" else word] = value == "on"
        self._answer(interface, rows)
