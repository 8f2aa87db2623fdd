"""Replaces what identifies a machine or its owner: the same input gets the same replacement within one host.

Used by `capture`. A replacement has the same form as the original, so that every reader still understands it. A
replacement is recognized when it is scrubbed again, so that a capture of a capture changes nothing. It is derived with
a key (the machine id), because a plain hash of an address or a serial number can be reversed by trying all values.

| replaced | becomes |
|---|---|
| UUID (GPU, MIG instance, DMI, boot, guest, file system) | 5c2b0000-0000-4000-8000-XXXXXXXXXXXX |
| MAC and InfiniBand hardware address; in an interface name | 02:00:5c:XX:XX:XX…; enx02005cXXXXXX |
| InfiniBand GUID, GID | 5c2b:XXXX:XXXX:XXXX, fe80:0000:0000:0000:5c2b:XXXX:XXXX:XXXX |
| serial number, asset tag | SCRUBBED-XXXXXXXX |
| machine id, other hexadecimal ids | 5c2bXXXX… of the same length |
| PCI Device Serial Number | 8 bytes from 5c 2b on |
| host name | scrubbed-host-XXXXXXXX |
| IPv4 address (kernel arguments) | one of 198.18.0.0/15, reserved for benchmarks (RFC 2544) |
| destination and gateway of a route, IPv6 address (hexadecimal) | of 198.18.0.0/15, or fd00:5c2b::/32 |
| mount point below a usual directory | /scrubbed-XXXXXXXX |
| value of a kernel argument that names hosts, volumes or secrets | scrubbed-XXXXXXXX |
| path of a user's file in the kernel log | /scrubbed-XXXXXXXX |

Kept: guest names, PCI addresses, models, versions. Process names are left out, and so are mounts, except those of block
devices, huge pages and control groups.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import struct
from collections.abc import Callable

import msgspec
from lxml import etree
from lxml.etree import _Element

from hosttune.discovery.libvirtd import LibvirtFacts
from hosttune.domain.arguments import CLIQUE, passed_functions
from hosttune.domain.reader import domain_facts
from hosttune.domain.xml import QEMU, parse
from hosttune.errors import BadInput
from hosttune.model import sysfs
from hosttune.model.values import to_json

# A prefix such as "GPU-" may precede it; a longer row of hex groups is not a UUID.
_UUID = re.compile(
    r"(?<![0-9A-Fa-f])(?<![0-9A-Fa-f]-)[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}(?![0-9A-Fa-f])"
)
_MAC = re.compile(r"(?<![0-9A-Fa-f:])[0-9A-Fa-f]{2}(?:(?::[0-9A-Fa-f]{2}){5}|(?::[0-9A-Fa-f]{2}){19})(?![0-9A-Fa-f:])")
_ENX = re.compile(r"(?<![0-9a-z])enx([0-9a-f]{12})(?![0-9a-f])")
_GID = re.compile(r"(?<![0-9a-f:])(?:[0-9a-f]{4}:){4}((?:[0-9a-f]{4}:){3}[0-9a-f]{4})(?![0-9a-f:])")
_GUID = re.compile(r"(?<![0-9a-f:])(?:[0-9a-f]{4}:){3}[0-9a-f]{4}(?![0-9a-f:])")
_IPV4 = re.compile(r"(?<![\w.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![\w.])")
# "serial" of nvidia-smi's XML, text and NVML's names in JSON: <serial>1</serial>, Serial Number : 1, "…Serial": "1"
_SERIAL = re.compile(r"(?i)(serial[\w ]*(?:>|\s*:\s|\"\s*:\s*\"))([^\s<\"][^\n<\"]*?)(?=\s*(?:\n|<|\"|$))")
_DSN = re.compile(r'("dsn"\s*:\s*")([0-9a-f]{16})')
_PROCESS = re.compile(r"(<process_name>)[^<]*(</process_name>)")
_ID_FILES = frozenset(
    ("machine-id", "unique_id", "wwid", "nguid", "eui", "hostid", "phys_switch_id", "phys_port_id", "vendor_uid")
)
_SERIAL_FILES = re.compile(r"(?:product_|board_|chassis_)?serial(?:_number)?|(?:chassis_|board_)?asset_tag|\w+nqn")
# In free text: "Serial Number: X", "serial=X", "S/N X"; "wwn 0x5…".
_LOG_SERIAL = re.compile(r"(?i)\b(serial(?:[ _-]?(?:number|no\.?))?|s/n|wwn|asset[ _]tag)(\s*[:=#]\s*|\s+)([\w.-]{4,})")
_LOG_PATH = re.compile(r"(?<![\w/.:-])/(?:[\w.+@%-]+/)+[\w.+@%-]*")
_NO_PRIVATE_PATH = re.compile(r"/(?:sys|proc|dev|usr|lib\w*|s?bin|boot)/|/scrubbed-")
_HOST_FILES = ("/proc/sys/kernel/hostname", "/etc/hostname")
_KEPT_GPUS = "kept-gpus"  # its four PCI ids in a row look like a GUID
_MOUNT_FILES = ("mounts", "mountinfo")
_KEPT_FILE_SYSTEMS = ("hugetlbfs", "cgroup", "cgroup2", "cpuset")
_USUAL_MOUNT = re.compile(
    r"/(?:boot(?:/\w+)?|home|opt|root|srv|tmp|usr|var(?:/(?:lib|log|tmp|cache))?|mnt|(?:sys|dev|run)/.*)?"
)
_ROUTE_FILES = ("route", "ipv6_route", "if_inet6")
_ROUTE4 = re.compile(r"(?<![0-9A-Fa-f])[0-9A-F]{8}(?=\t)")
_ROUTE6 = re.compile(r"(?<![0-9A-Fa-f])[0-9a-f]{32}(?![0-9A-Fa-f])")
_NO_HOST = ("", "(none)", "localhost", "localhost.localdomain")
_NO_SERIAL = ("n/a", "[n/a]", "0", "none", "unknown", "not supported", "not specified", "to be filled by o.e.m.")
# Parts of a kernel argument's name, separated by dots, dashes and underscores.
_SECRET_WORD = re.compile(
    r"pass(?:w|word|wd)?|secret|token|cred(?:ential)?s?|key(?:file)?|luks|user(?:name)?|host(?:name)?|domain(?:name)?"
    r"|ur[li]|server|proxy|ssid|ip|nameserver|netroot|nfsroot|ifname|bootif|ds|lvm|iscsi|initiator|zfs|label"
)
_MARK = b"SMDL=SW_MNG"
_ROOTS = ("root", "resume", "rootflags")
_PLAIN_ROOT = re.compile(r"(?:/dev/(?:sd|vd|xvd|nvme|mmcblk|md|dm-)[\w/]*|(?:PART)?UUID=[\w-]+|[0-9]+|ro|rw)")


class Scrub:
    """Replacements for one machine; `key` is its machine id, or any text that only its owner knows."""

    def __init__(self, key: str, hostname: str | None) -> None:
        self._key = key.encode()
        self._hostname = None if hostname is None or hostname in _NO_HOST else hostname

    def path(self, path: str) -> str:
        """Scrub a path or a link's target: device names can contain UUIDs and MAC addresses."""
        return _ENX.sub(self._enx, _UUID.sub(self._uuid, path))

    def node(self, path: str) -> str:
        """Scrub the path of a device node: links to disks have serial numbers, volumes have names. Interfaces stay."""
        if re.match(r"/sys/class/net/|/dev/(?:vhost-vdpa-|scrubbed-|[a-z0-9-]+$)", path):
            return self.path(path)
        return f"/dev/scrubbed-{self._hex('node', path, 8)}"

    def contents(self, path: str, data: bytes) -> bytes:
        """Scrub the contents of a file or a recorded answer; bytes that are not text are kept (but see `_config`)."""
        name = path.rpartition("/")[2]
        if name == "config" and len(data) > 256:
            return self._config(data)
        if name == "vpd" and data:  # part and serial numbers; only the mark is needed (`gpu.bridges`)
            return _MARK if _MARK in data else b"scrubbed"
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return data
        return self._text(path, name, text).encode()

    def words(self, text: str) -> str:
        """Scrub free text, such as a kernel log line: serial numbers, addresses, names of this host, and paths."""
        text = _LOG_SERIAL.sub(lambda m: f"{m[1]}{m[2]}{self._serial(m[3])}", text)
        text = _IPV4.sub(self._ipv4, _LOG_PATH.sub(self._place, self._patterns(text)))
        return self._without_host(text)

    def _place(self, match: re.Match[str]) -> str:
        place = match[0]
        return place if _NO_PRIVATE_PATH.match(place) else f"/scrubbed-{self._hex('path', place, 8)}"

    def _without_host(self, text: str) -> str:
        """Scrub the name of this host, whole or its first label."""
        if self._hostname is None:
            return text
        fresh = self._host(self._hostname)
        for name in (self._hostname, self._hostname.partition(".")[0]):
            if len(name) > 3:
                text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", fresh, text)
        return text

    def _text(self, path: str, name: str, text: str) -> str:
        value = text.strip()
        if path in _HOST_FILES:
            return text.replace(value, self._host(value)) if value else text
        if _SERIAL_FILES.fullmatch(name):
            return text.replace(value, self._serial(value)) if value else text
        if name in _ID_FILES and value:
            return text.replace(value, self._identifier(value))
        if path == "/proc/cmdline":
            text = re.sub(r'(?:[^\s"]|"[^"]*(?:"|$))+', lambda match: self._argument(match[0]), text)
        elif path == "/proc/version":
            text = re.sub(r"\(\S+@\S+\)", "(scrubbed)", text)
        elif path.startswith("/proc/") and name in _MOUNT_FILES:
            text = "".join(self._mount(line) for line in text.splitlines(keepends=True))
        elif path.startswith("/proc/") and name in _ROUTE_FILES:
            text = _ROUTE6.sub(self._route6, _ROUTE4.sub(self._route4, text))
        elif path.startswith("/.hosttune/commands/"):
            text = _PROCESS.sub(r"\1scrubbed\2", _SERIAL.sub(lambda m: m[1] + self._serial(m[2]), text))
            if name == _KEPT_GPUS:
                text = _DSN.sub(lambda m: m[1] + self._dsn(bytes.fromhex(m[2])[::-1])[::-1].hex(), text)
                return _UUID.sub(self._uuid, text)
            text = self._without_host(text)
        return self._patterns(text)

    def _patterns(self, text: str) -> str:
        if "-" in text:
            text = _UUID.sub(self._uuid, text)
        if ":" in text:
            text = _GUID.sub(self._guid, _GID.sub(self._gid, _MAC.sub(self._mac, text)))
        return _ENX.sub(self._enx, text) if "enx" in text else text

    # --- one function for each kind ------------------------------------------------------------------------------

    def _hex(self, kind: str, value: str, digits: int) -> str:
        """Return as many hex digits as requested, derived from the value and the key."""
        found = ""
        while len(found) < digits:
            found += hmac.new(self._key, f"{kind} {len(found)} {value}".encode(), hashlib.sha256).hexdigest()
        return found[:digits]

    def _uuid(self, match: re.Match[str]) -> str:
        value = match[0].lower()
        if value.startswith("5c2b0000-0000-4000-8000-") or not value.strip("0-"):
            return value
        return f"5c2b0000-0000-4000-8000-{self._hex('uuid', value, 12)}"

    def _mac(self, match: re.Match[str]) -> str:
        value = match[0].lower()
        if value.startswith("02:00:5c:") or not value.strip("0:") or not value.strip("f:"):
            return value
        digits = self._hex("mac", value, (value.count(":") - 2) * 2)
        return ":".join(("02:00:5c", *(digits[i : i + 2] for i in range(0, len(digits), 2))))

    def _enx(self, match: re.Match[str]) -> str:
        mac = ":".join(match[1][i : i + 2] for i in range(0, 12, 2))
        return "enx" + _MAC.sub(self._mac, mac).replace(":", "")

    def _guid(self, match: re.Match[str]) -> str:
        return self._guid_of(match[0])

    def _gid(self, match: re.Match[str]) -> str:
        if not match[0].strip("0:"):
            return match[0]
        return f"fe80:0000:0000:0000:{self._guid_of(match[1])}"

    def _guid_of(self, value: str) -> str:
        if value.startswith("5c2b:") or not value.strip("0:"):
            return value
        digits = self._hex("guid", value, 12)
        return f"5c2b:{digits[:4]}:{digits[4:8]}:{digits[8:]}"

    def _identifier(self, value: str) -> str:
        """Scrub an identifier: same prefix ("eui.", "0x"), same length; a UUID becomes a UUID."""
        if _UUID.fullmatch(value):
            return _UUID.sub(self._uuid, value)
        prefix = next((sign for sign in ("0x", "eui.", "uuid.", "naa.", "t10.", "nvme.") if value.startswith(sign)), "")
        rest = value.removeprefix(prefix)
        if rest.startswith("5c2b") or not rest.strip("0"):
            return value
        return f"{prefix}5c2b{self._hex('id', value, max(len(rest) - 4, 4))}"

    def _serial(self, value: str) -> str:
        if value.startswith("SCRUBBED-") or value.lower() in _NO_SERIAL:
            return value
        return f"SCRUBBED-{self._hex('serial', value, 8)}"

    def _host(self, value: str) -> str:
        if value in _NO_HOST or value.startswith("scrubbed-host-"):
            return value
        return f"scrubbed-host-{self._hex('host', value, 8)}"

    def _ipv4(self, match: re.Match[str]) -> str:
        parts = [int(part) for part in match[0].split(".")]
        if max(parts) > 255 or parts[0] in (0, 127, 255) or parts[:2] in ([198, 18], [198, 19]):
            return match[0]
        digits = self._hex("ipv4", match[0], 5)
        number = int(digits, 16)
        return f"198.{18 + (number >> 16 & 1)}.{number >> 8 & 255}.{number & 255}"

    def _mount(self, line: str) -> str:
        """Scrub a line of a mount table: rename unusual paths; keep block devices, huge pages and control groups."""
        parts = line.split(" ")
        at = 4 if len(parts) > 8 and parts[0].isdecimal() else 1  # mountinfo begins with ids
        if len(parts) <= at or not (" /dev/" in f" {line}" or any(kind in parts for kind in _KEPT_FILE_SYSTEMS)):
            return ""
        place = parts[at]
        if not _USUAL_MOUNT.fullmatch(place) and not place.startswith("/scrubbed-"):
            parts[at] = f"/scrubbed-{self._hex('mount', place, 8)}"
        return " ".join(parts)

    def _route4(self, match: re.Match[str]) -> str:
        """Scrub a route's address: eight digits, the last byte of the address first. Masks (ones from the top) stay."""
        octets = bytes.fromhex(match[0])[::-1]
        number = int.from_bytes(octets)
        inverted = number ^ 0xFFFFFFFF
        if inverted & (inverted + 1) == 0 or octets[:2] in (b"\xc6\x12", b"\xc6\x13"):
            return match[0]
        fresh = bytes((198, 18, *bytes.fromhex(self._hex("ipv4", octets.hex(), 4))))
        return fresh[::-1].hex().upper()

    def _route6(self, match: re.Match[str]) -> str:
        value = match[0]
        if not value[8:].strip("0") or value.startswith("fd005c2b"):
            return value  # a default route, loopback or link-local prefix identifies no host
        return f"fd005c2b{self._hex('ipv6', value, 24)}"

    def _argument(self, argument: str) -> str:
        key, equals, value = argument.partition("=")
        if not equals or not value:
            return argument
        bare = key.strip('"').lower()
        plain = _PLAIN_ROOT.fullmatch(value) is not None
        if (bare in _ROOTS and not plain) or any(map(_SECRET_WORD.fullmatch, re.split(r"[._-]", bare))):
            return argument if value.startswith("scrubbed-") else f"{key}=scrubbed-{self._hex('argument', value, 8)}"
        value = _IPV4.sub(self._ipv4, value)
        if self._hostname is not None and len(self._hostname) > 3:
            value = re.sub(rf"(?<![\w-]){re.escape(self._hostname)}(?![\w-])", self._host(self._hostname), value)
        return f"{key}={value}"

    def _config(self, data: bytes) -> bytes:
        """Replace the Device Serial Number capability in config space (id 3; PCIe base specification 7.9.3)."""
        offset, seen = 0x100, set[int]()
        while 0x100 <= offset <= len(data) - 12 and offset not in seen:
            seen.add(offset)
            (header,) = struct.unpack_from("<I", data, offset)
            serial = data[offset + 4 : offset + 12]
            if header & 0xFFFF == 3 and any(serial):
                return data[: offset + 4] + self._dsn(serial) + data[offset + 12 :]
            offset = header >> 20 & 0xFFC
        return data

    def _dsn(self, serial: bytes) -> bytes:
        known = serial.startswith(b"\x5c\x2b")
        return serial if known else b"\x5c\x2b" + bytes.fromhex(self._hex("dsn", serial.hex(), 12))


# --- definitions of guests -------------------------------------------------------------------------------------
# Definitions of guests for a capture: only what shows a guest's resources, without secrets.

# The elements of a domain XML that show a guest's resources. A capture keeps only these (no disks, networks, secrets).
_KEPT = (
    *("name", "uuid", "memory", "currentMemory", "maxMemory", "vcpu", "vcpus", "iothreads", "iothreadids"),
    *("cputune", "numatune", "memoryBacking", "memtune", "cpu", "features"),
)
_KEPT_DEVICES = ("hostdev", "controller", "memballoon", "iommu", "memory")


def strip_facts(text: str, scrubbed: Callable[[str], str]) -> str:
    """Return the same facts without what discovery does not need: of each domain only CPUs, memory and host devices.

    `scrubbed`: replaces the path of a device node.
    """
    facts = msgspec.json.decode(text, type=LibvirtFacts)
    domains = facts.domains
    if domains is not None:
        domains = tuple(
            msgspec.structs.replace(d, xml=strip_xml(d.xml, scrubbed), inactive_xml=strip_xml(d.inactive_xml, scrubbed))
            for d in domains
        )
    return to_json(msgspec.structs.replace(facts, domains=domains))


def strip_xml(xml: str | None, scrubbed: Callable[[str], str]) -> str | None:
    """Return a domain's XML with only its CPUs, memory and host devices, and without paths of files.

    Of disks and interfaces that share a device of the host only the path is kept, of arguments only the function.
    """
    if xml is None:
        return None
    try:
        root = parse(xml)
        facts = domain_facts(root, where="a definition")
    except (etree.XMLSyntaxError, ValueError, BadInput):
        return "<unreadable/>"  # not a domain, as before
    for child in list(root):
        if child.tag == "devices":
            drop = [device for device in child if not _is_kept(device)]
        elif child.tag == "os":
            drop = [part for part in child if part.tag != "type"]
        elif child.tag == f"{QEMU}override":
            drop = [
                element for element in child if any(p.get("name") != CLIQUE for p in element.iter(f"{QEMU}property"))
            ]
        elif child.tag in _KEPT:
            continue
        else:
            root.remove(child)
            continue
        for element in drop:
            child.remove(element)
    for disk in root.iterfind("devices/disk"):
        _keep_only(disk, "source")  # a serial number or a secret would be beside it, or in it
        for source in disk:
            _keep_only(source, "address")
    for path in map(scrubbed, facts.host_paths):
        tag, kind = ("interface", "direct") if path.startswith(sysfs.NET) else ("disk", "block")
        devices = next(root.iterfind("devices"), None)
        element = etree.SubElement(etree.SubElement(root, "devices") if devices is None else devices, tag, type=kind)
        etree.SubElement(element, "source", dev=path.removeprefix(f"{sysfs.NET}/"))
    for address in filter(None, passed_functions(facts.qemu_arguments).values()):
        words = etree.SubElement(root, f"{QEMU}commandline")
        for word in ("-device", f"vfio-pci,host={address}"):
            etree.SubElement(words, f"{QEMU}arg", value=word)
    for element in list(root.iter("path", "mac")):
        element.getparent().remove(element)  # of a memory device; of a virtual function
    for element in root.iter():
        element.attrib.pop("file", None)  # of a device's ROM
    return str(etree.tostring(root, encoding="unicode"))


def _keep_only(element: _Element, tag: str) -> None:
    for child in list(element):
        if child.tag != tag:
            element.remove(child)


def _is_kept(device: _Element) -> bool:
    """Return whether a device is a PCI function of the host, or a disk on one, or belongs to the guest's PCI topology.

    SCSI devices are not kept, because they name other hosts.
    """
    if device.tag in ("hostdev", "interface"):
        return device.get("type") in (("pci", "mdev") if device.tag == "hostdev" else ("hostdev",))
    if device.tag == "disk":
        return device.get("type") == "nvme"
    return device.tag in _KEPT_DEVICES
