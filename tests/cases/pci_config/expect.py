"""Write the expectations of this folder: what lspci (pciutils) reads in each dump, as JSON beside it.

Run by hand when a case is added (`python expect.py`, needs lspci); the tests read the committed JSON only, so the
expectation stays what another program said. `libvirt.json` is for the raw files under tests/hosts/libvirt/pciconfig.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RAW = HERE.parents[1] / "hosts" / "libvirt" / "pciconfig"
PORT_TYPES = {
    "Endpoint": "endpoint",
    "Legacy Endpoint": "legacy-endpoint",
    "Root Port": "root-port",
    "Upstream Port": "upstream-port",
    "Downstream Port": "downstream-port",
    "PCI-Express to PCI/PCI-X Bridge": "pcie-to-pci-bridge",
    "PCI/PCI-X to PCI-Express Bridge": "pci-to-pcie-bridge",
    "Root Complex Integrated Endpoint": "root-complex-endpoint",
    "Root Complex Event Collector": "root-complex-event-collector",
}


def facts_of(text: str) -> dict[str, Any]:
    """The facts that one function's `lspci -n -vvv` text states; a fact that it does not state is left out."""
    facts: dict[str, Any] = {}
    head = re.match(r"\S+ (\w{4}): (\w{4}):(\w{4})(?: \(rev (\w\w)\))?", text)
    assert head, text[:80]
    facts["class"], facts["vendor_id"], facts["device_id"] = head[1], head[2], head[3]
    facts["revision"] = head[4] or "00"
    if found := re.search(r"Subsystem: (\w{4}):(\w{4})", text):
        facts["subsystem_vendor_id"], facts["subsystem_device_id"] = found[1], found[2]
    if found := re.search(r"\] Express \(v\d\) ([^,(]+?)(?: \(Slot[+-]\))?,", text):
        facts["port_type"] = PORT_TYPES[found[1]]
    if found := re.search(r"DevCap:\tMaxPayload (\d+)", text):
        facts["max_payload_supported_bytes"] = int(found[1])
    if found := re.search(r"MaxPayload (\d+) bytes, MaxReadReq (\d+) bytes", text):
        facts["max_payload_bytes"], facts["read_request_bytes"] = int(found[1]), int(found[2])
    if found := re.search(r"DevCtl:.*\n\s+RlxdOrd([+-])", text):
        facts["relaxed_ordering"] = found[1] == "+"
    if found := re.search(
        r"LnkCap:\t.*Speed (?:([\d.]+)GT/s|unknown), Width x(\d+), ASPM (not supported|[L01s ]+)", text
    ):
        facts["max_speed_gts"], facts["max_width"] = float(found[1]) if found[1] else None, int(found[2]) or None
        facts["aspm_supported"] = "none" if found[3] == "not supported" else found[3].strip()
    if found := re.search(r"LnkCap2: Supported Link Speeds: (?:[\d.]+-)?([\d.]+)GT/s", text):
        facts["max_speed_gts"] = float(found[1])
    if found := re.search(r"LnkCtl:\tASPM (Disabled|[L01s ]+)", text):
        facts["aspm"] = "off" if found[1] == "Disabled" else found[1].strip()
    if found := re.search(r"LnkSta:\tSpeed (?:([\d.]+)GT/s|unknown)[^,]*, Width x(\d+)", text):
        facts["speed_gts"], facts["width"] = float(found[1]) if found[1] else None, int(found[2]) or None
    for word, name in (("Cap", "capable"), ("Ctl", "enabled")):
        if found := re.search(rf"ACS{word}:\t(.*)", text):
            facts.setdefault("acs", {})[name] = [bit[:-1] for bit in found[1].split() if bit.endswith("+")]
    if found := re.search(r"ATSCtl:\tEnable([+-])", text):
        facts["ats_enabled"] = found[1] == "+"
    if found := re.search(r"Total VFs: (\d+), Number of VFs: (\d+)", text):
        enabled = re.search(r"IOVCtl:\tEnable\+", text) is not None
        place = re.search(r"VF offset: (\d+), stride: (\d+), Device ID: ([0-9a-f]{4})", text)
        assert place is not None
        facts["sriov"] = {"total_vfs": int(found[1]), "vfs": int(found[2]), "enabled": enabled,
                          "offset": int(place[1]), "stride": int(place[2]), "device_id": place[3]}  # fmt: skip
    return facts


def lspci(dump: Path) -> dict[str, dict[str, Any]]:
    """Facts of every function of a hex dump, by address."""
    output = subprocess.run(
        ["lspci", "-D", "-n", "-vvv", "-F", str(dump)], capture_output=True, text=True, check=True
    ).stdout
    return {text.split(" ", 1)[0]: facts_of(text) for text in output.strip().split("\n\n")}


def hexdump(address: str, config: bytes) -> str:
    """Configuration space as lspci -x writes it."""
    lines = [f"{address} raw"]
    lines += [f"{at:02x}: {config[at : at + 16].hex(' ')}" for at in range(0, len(config), 16)]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Rewrite every expectation."""
    for dump in sorted(HERE.glob("*.txt")):
        dump.with_suffix(".json").write_text(json.dumps(lspci(dump), indent=1) + "\n")
    raw: dict[str, dict[str, Any]] = {}
    for path in sorted(RAW.glob("*.config")):
        domain, bus, slot = path.name.removesuffix(".config").split("-")
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(hexdump(f"{domain}:{bus}:{slot}", path.read_bytes()))
            file.flush()
            raw[path.name] = next(iter(lspci(Path(file.name)).values()))
    (HERE / "libvirt.json").write_text(json.dumps(raw, indent=1) + "\n")


if __name__ == "__main__":
    main()
