"""The intent: what an operator asks for (YAML or JSON, `version: 1`). Unknown keys are refused with their path."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import inspect

from hosttune.errors import BadInput
from hosttune.model.hints import did_you_mean, too_few_bytes_hint
from hosttune.model.jsontext import check_version, plain_json
from hosttune.model.limits import check_count, check_size, limit
from hosttune.model.login import check_login, is_file_path
from hosttune.model.networkintent import NetworkIntent, Roce, check_fabric
from hosttune.model.text import (
    below_root,
    decoding_fault,
    decoding_problem,
    either,
    refuse_surrogates,
    refuse_unwritable,
)
from hosttune.model.values import (
    INTERFACE,
    Part,
    parse_address,
    parse_size,
    to_builtins,
    to_json,
    without_nulls,
)

INTENT_VERSION = 1
LEAST_MEMORY = 1 << 20  # bytes; firmware alone takes more. Less is a number whose unit was forgotten


class GpuRequest(Part, frozen=True, kw_only=True):
    """A number of GPUs, of one model, connected by NVLink or not."""

    count: int
    """How many GPUs."""
    model: str | None = None
    """A word of the model's name, such as "H200", or "vendor:device" ids."""
    nvlink: bool | None = None
    """Whether NVLink must connect them; left out: either."""


class NicRequest(Part, frozen=True, kw_only=True):
    """A number of the nearest NICs."""

    count: int
    """How many NICs, the nearest ones first."""
    rdma: bool | None = None
    """true: only with an RDMA device; false: only without; left out: either."""


class MigRequest(Part, frozen=True, kw_only=True):
    """MIG instances of one profile."""

    profile: str
    """Name of the profile, such as "1g.18gb"."""
    count: int = 1
    """Instances in this guest; beside whole GPUs, on each of them."""


class CellRequest(Part, frozen=True, kw_only=True):
    """One NUMA cell of the guest. Every cell has its own host node."""

    vcpus: int
    """vCPUs of the cell."""
    memory: int | str
    """SIZE: bytes, or a number with KiB, MiB, GiB or TiB."""


class Boot(Part, frozen=True, kw_only=True):
    """Direct kernel boot."""

    kernel: str
    """Path of the kernel on the host."""
    initrd: str | None = None
    """Path of the initial RAM disk on the host."""
    cmdline: str | None = None
    """Arguments of the kernel."""


class Network(Part, frozen=True, kw_only=True):
    """A NIC of the guest: on a libvirt network, on a bridge of the host, or a virtual function of a NIC (one of these).

    The keys after `vf_of` are a virtual function's: what its NIC does with it, whatever the guest wants. `guid` is for
    InfiniBand, which has no MAC.
    """

    network: str | None = None
    """Name of a libvirt network."""
    bridge: str | None = None
    """Name of a bridge of the host."""
    vf_of: str | None = None
    """Address of a NIC, of which the guest gets a virtual function."""
    mac: str | None = None
    """MAC of the virtual function; without it hosttune chooses one that stays."""
    vlan: int | None = None
    """VLAN into which the NIC puts all its packets, 1 to 4094."""
    trust: bool | None = None
    """Whether its guest may change its MAC and see all packets; as the driver has it if left out."""
    spoof_check: bool | None = None
    """Whether packets from other MACs are dropped; as the driver has it if left out."""
    max_rate_mbps: int | None = None
    """Most Mbit/s that it sends."""
    guid: str | None = None
    """Node and port GUID of one of InfiniBand, instead of a MAC."""

    @property
    def text(self) -> str:
        """The network or bridge by its name; of a virtual function all that is asked for."""
        keys = (f"{key} {value}" for key, value in to_builtins(_given(self)).items())
        return self.network or self.bridge or ", ".join(keys)


class Reserve(Part, frozen=True, kw_only=True):
    """What stays with the host on every node."""

    cores_per_node: int | None = None
    """Cores of each node that stay with the host, by default 1, or 2 of at least 32 if the host sees each interrupt of
    a passed device; 0 gives up the boot core too."""
    memory_per_node: int | str | None = None
    """Memory of each node that stays with the host, a SIZE or 0; default 8GiB, or what BARs' page tables, QEMU and the
    host need, at most a quarter of the node."""


class GuestIntent(Part, frozen=True, kw_only=True):
    """One guest. docs/intent.md has examples."""

    name: str
    """At most 64 letters, digits, ".", "_" and "-"."""
    gpus: int | tuple[str, ...] | GpuRequest | None = None
    """A number of GPUs, a list of PCI addresses, or a number of one model."""
    mig: MigRequest | None = None
    """MIG instances: alone as vGPUs, beside `gpus` made inside the guest."""
    vcpus: int | Literal["auto"] = "auto"
    """A number, or "auto": the share of the node's CPUs that its GPUs have among the GPUs there."""
    memory: int | str = "auto"
    """A SIZE, or "auto": the share of the node's memory that its GPUs have among the GPUs there."""
    nics: int | tuple[str, ...] | NicRequest | None = None
    """A number of the nearest NICs, a list of PCI addresses, or a number with or without RDMA."""
    nvme: int | tuple[str, ...] | None = None
    """A number of the nearest drives, or a list of PCI addresses."""
    numa: int | Literal["auto"] | tuple[CellRequest, ...] = "auto"
    """"auto": a cell on each node of its GPUs; a number of cells; or the size of each cell."""
    smt: Literal["cores", "threads"] = "cores"
    """"cores": no core is shared with anyone; "threads": free sibling threads of others' cores may be used."""
    hugepages: Literal["auto", "2MiB", "1GiB", "none"] = "auto"
    """"auto": 1 GiB pages where they fit, else 2 MiB; "none": ordinary memory."""
    firmware: Literal["efi", "bios"] = "efi"
    """The firmware that boots it."""
    secure_boot: bool = False
    """UEFI firmware with the distributions' keys: the guest loads only signed drivers."""
    tpm: bool = False
    """A TPM 2.0, emulated by swtpm."""
    watchdog: bool = False
    """A watchdog that resets the guest where its system stops serving it."""
    accelerator: Literal["kvm", "tcg"] = "kvm"
    """"tcg" is emulation, for tests on machines without KVM."""
    autostart: bool | Literal["keep"] = "keep"
    """Whether libvirt starts it when the host has booted; "keep": as it is."""
    boot: Boot | None = None
    """Boot this kernel directly."""
    disk: str | None = None
    """Path of its disk."""
    disks: tuple[str, ...] | None = None
    """Paths of its disks, instead of `disk`; it boots from the first."""
    image: str | None = None
    """Path of an image on the host, of which apply makes the first disk if it is not there."""
    user: str | None = None
    """A user that its seed makes, with `ssh_keys`; left out: the keys are of the image's own user."""
    ssh_keys: tuple[str, ...] | None = None
    """Public SSH keys of that user."""
    networks: tuple[Network, ...] | None = None
    """Its virtual NICs."""
    seed: bool = False
    """Make a drive for cloud-init that applies hosttune's settings inside the guest."""
    sysctl: Mapping[str, int | str] | None = None
    """Sysctls inside the guest, by their names."""
    state: Literal["present", "absent"] = "present"
    """"absent": take the guest away; only its name counts."""

    MAPPINGS = ("sysctl",)

    @property
    def disk_paths(self) -> dict[str, str]:
        """Its disks by their keys, the first one first: {"disk": PATH}, or {"disks[0]": PATH, "disks[1]": PATH, …}."""
        single = {"disk": self.disk} if self.disk is not None else {}
        return single | {f"disks[{n}]": path for n, path in enumerate(self.disks or ())}


class Intent(Part, frozen=True, kw_only=True):
    """What the operator wants of one host."""

    version: int
    """Version of this format: 1."""
    profile: Literal["guest", "host", "none"] = "guest"
    """Which host settings are planned: none, those of the guests alone, or those of a host for guests only."""
    settings: Mapping[str, Any] | None = None
    """Host settings by name: they add to the profile or override it. `keep` leaves a setting alone."""
    reserve: Reserve = Reserve()
    """What stays with the host on every node."""
    guests: tuple[GuestIntent, ...] = ()
    """The guests; all of them are decided together."""
    fabric: NetworkIntent | None = None
    """What must hold at the host's network ports; it changes nothing."""

    MAPPINGS = ("settings",)

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str = "intent") -> Intent:
        """Read an intent. Raises BadInput with the path of the offending key, also for a key given twice."""
        check_size(len(text), "intent", where)
        return _convert(plain_json(text, where=where, most_values=limit("values of an intent"), once=True), where)

    @property
    def present(self) -> tuple[GuestIntent, ...]:
        """The guests that are wanted; the others are taken away."""
        return tuple(guest for guest in self.guests if guest.state == "present")

    @classmethod
    def from_yaml(cls, text: str | bytes, *, where: str = "intent") -> Intent:
        """Read an intent from YAML. Raises BadInput with the path of the offending key, also for a key given twice."""
        from hosttune.model.yamltext import load_yaml  # PyYAML loads slowly, and every host document imports intents

        return _convert(load_yaml(text, where), where)

    def to_json(self) -> str:
        """Return the intent as a JSON document that `from_json` can read."""
        return to_json(self)

    def to_yaml(self) -> str:
        """Return the intent as YAML that `from_yaml` can read, without the keys that have their default."""
        import yaml  # few commands write YAML

        return yaml.safe_dump(to_builtins(_given(self)), sort_keys=False, allow_unicode=True)


def _given(value: Any) -> Any:
    """Return the fields of a part of an intent that do not have their default."""
    if isinstance(value, tuple):
        return [_given(item) for item in value]
    if not isinstance(value, msgspec.Struct):
        return value
    fields = ((field, getattr(value, field.name)) for field in msgspec.structs.fields(value))
    return {item.name: _given(given) for item, given in fields if given != item.default}


def check_prunable(text: str | bytes, where: str) -> None:
    """Raise BadInput for an intent that does not say which guests it wants: pruning would take all away."""
    from hosttune.model.yamltext import load_yaml

    document = load_yaml(text, where)
    if isinstance(document, dict) and "guests" not in document:
        raise BadInput(
            "--prune with an intent that has no key guests",
            where=where,
            hint="write guests: [] if none of its guests is wanted any more",
        )


def _convert(document: object, where: str) -> Intent:
    if not isinstance(document, dict):
        raise BadInput("not a mapping", where=where, hint="begin with `version: 1`")
    check_version(document, INTENT_VERSION, "an intent (docs/intent.md)", where)
    refuse_surrogates(document, where)
    try:
        intent = msgspec.convert(without_nulls(document, Intent), Intent)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _refusal(error, where) from error
    check(intent, where=where)
    return intent


_NUMBER = "a number"
_PARTS: Mapping[str, type[Part]] = {
    "reserve": Reserve,
    "guests": GuestIntent,
    "gpus": GpuRequest,
    "mig": MigRequest,
    "nics": NicRequest,
    "numa": CellRequest,
    "boot": Boot,
    "networks": Network,
    "fabric": NetworkIntent,
    "roce": Roce,
}


def _refusal(error: Exception, where: str) -> BadInput:
    """Return a decoding error with the path of its key. For an unknown key, list the keys that are known there."""
    problem, path, unknown = decoding_fault(error)
    path = below_root(path)
    if unknown is None:
        at = f"{where}: {path}" if path else where
        return BadInput(decoding_problem(problem), where=at, hint=_value_hint(problem, path))
    part = _PARTS.get(path.rpartition(".")[2].partition("[")[0], Intent)
    key = f"{path}.{unknown}" if path else unknown
    known = ", ".join(part.__struct_fields__)
    hint = did_you_mean(unknown, part.__struct_fields__, f"known here: {known}")
    return BadInput(f"unknown key {unknown!r}", where=f"{where}: {key}", hint=hint)


def _value_hint(problem: str, path: str) -> str:
    """Return what to write at a path whose value has the wrong type, or is not one of the key's words."""
    words = _allowed_words(path)
    match = re.fullmatch(r"Invalid enum value '(.*)'", problem, re.DOTALL)
    given = match[1] if match else ""
    kinds = re.fullmatch(r"Expected `([^`]*\bint\b[^`]*)`, got `str`", problem)
    if kinds or (given.isdecimal() and words[:1] == [_NUMBER]):
        more = ", or a list of addresses" if kinds and "array" in kinds[1] else ""
        return f"write a number without quotation marks{more}"
    if words:
        return did_you_mean(given, words, f"write {either(words)}")
    if path == "guests":
        return "write a list of guests, each beginning with `- name: NAME`"
    return "see docs/intent.md for the keys"


def _allowed_words(path: str) -> list[str]:
    """Return the words that a key may have, after "a number" if it may be one; none for a key without such words."""
    above, _, key = path.rpartition(".")
    part = _PARTS.get(above.rpartition(".")[2].partition("[")[0], Intent)
    kind = next((field.type for field in inspect.type_info(part).fields if field.name == key), None)  # type: ignore[attr-defined]
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    words = [str(word) for kind in kinds if isinstance(kind, inspect.LiteralType) for word in kind.values]
    number = [_NUMBER] if words and any(isinstance(kind, inspect.IntType) for kind in kinds) else []
    truths = ["true", "false"] if words and any(isinstance(kind, inspect.BoolType) for kind in kinds) else []
    return [*number, *truths, *words]


def check(intent: Intent, *, where: str = "intent") -> None:
    """Refuse values that no host could use: bad names, counts, addresses, sizes, duplicates.

    Counts have limits (`limits`), so that a few bytes cannot ask for days of work. No text may have a control
    character. Raises BadInput with the path.
    """
    names: set[str] = set()
    if (cores := intent.reserve.cores_per_node) is not None:
        if cores < 0:
            _refuse("cannot be negative", f"{where}: reserve.cores_per_node")
        check_count(cores, "cores kept of a node", f"{where}: reserve.cores_per_node")
    check_count(len(intent.guests), "guests", f"{where}: guests")
    check_count(len(intent.settings or ()), "settings", f"{where}: settings")
    if intent.reserve.memory_per_node not in (None, 0, "0"):
        _check_memory(intent.reserve.memory_per_node or 0, f"{where}: reserve.memory_per_node")
    check_fabric(intent.fabric, f"{where}: fabric")
    for i, guest in enumerate(intent.guests):
        at = f"{where}: guests[{i}]"
        if not is_guest_name(guest.name):
            hint = "use at most 64 letters, digits, '.', '_' and '-', and begin with a letter or digit"
            _refuse(f"{guest.name!r} is not a guest name", f"{at}.name", hint)
        if guest.name in names:
            _refuse(f"a second guest named {guest.name!r}", f"{at}.name", "give each guest a name of its own")
        names.add(guest.name)
        if guest.state == "present":
            _check_guest(guest, at)
    refuse_unwritable(to_builtins(intent), where)


def _check_guest(guest: GuestIntent, at: str) -> None:
    _check_devices(guest, at)
    _check_sizes(guest, at)
    _check_lengths(guest, at)
    _check_disks(guest, at)
    _check_image(guest, at)
    check_login(guest.user, guest.ssh_keys or (), at)
    if guest.secure_boot and guest.firmware != "efi":
        _refuse("Secure Boot without UEFI", f"{at}.secure_boot", "take firmware: bios out")
    if guest.secure_boot and guest.boot is not None:
        _refuse("Secure Boot of a kernel that QEMU loads", f"{at}.secure_boot", "boot from a disk, or take it out")
    check_count(len(guest.networks or ()), "networks", f"{at}.networks")
    check_count(len(guest.sysctl or ()), "sysctls", f"{at}.sysctl")
    for n, network in enumerate(guest.networks or ()):
        _check_network(network, f"{at}.networks[{n}]")
    for name, value in (guest.sysctl or {}).items():
        if not is_sysctl(name, value):
            hint = "use names such as vm.nr_hugepages, and one line"
            _refuse(f"{name} = {value!r} is not a sysctl", f"{at}.sysctl", hint)
    if not guest.mig and guest.gpus in (None, 0, ()) and not isinstance(guest.numa, tuple):
        for key in ("vcpus", "memory"):
            if getattr(guest, key) == "auto":
                _refuse("auto without a GPU", f"{at}.{key}", "a guest without a GPU must say its vcpus and memory")


_MAC = "[0-9a-fA-F][02468aceACE](:[0-9a-fA-F]{2}){5}"  # the odd ones are of groups
_GUID = "[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){7}"
_LAST_VLAN = 4094


def _check_network(network: Network, at: str) -> None:
    given = [key for key in network.__struct_fields__ if getattr(network, key) is not None]
    if len({"network", "bridge", "vf_of"}.intersection(given)) != 1:
        _refuse("not exactly one of network, bridge and vf_of", at, "give one of the three")
    if network.vf_of is None:
        if network.network == "":
            _refuse("an empty text", f"{at}.network", "write the name of a libvirt network (virsh net-list --all)")
        bridge = network.bridge
        if bridge is not None and bridge.isprintable() and not INTERFACE.fullmatch(bridge):
            hint = "write a name as ip link shows it: at most 15 bytes, no space, '/' or ':'"
            _refuse(f"{bridge!r} is not the name of a bridge", f"{at}.bridge", hint)
        if len(given) > 1:
            _refuse(f"{given[1]} without vf_of", at, f"{given[1]} is a virtual function's: give vf_of, or take it out")
        return
    parse_address(network.vf_of, where=f"{at}.vf_of")
    if network.mac is not None and not re.fullmatch(_MAC, network.mac):
        _refuse(f"{network.mac!r} is not the MAC of one NIC", f"{at}.mac", "write it like 52:54:00:12:34:56")
    if network.guid is not None and (network.mac is not None or not re.fullmatch(_GUID, network.guid)):
        hint = "write it like 00:11:22:33:44:55:66:77, and no mac with it"
        _refuse(f"{network.guid!r} is not the GUID of an InfiniBand function", f"{at}.guid", hint)
    if network.vlan is not None and not 1 <= network.vlan <= _LAST_VLAN:
        _refuse(f"{network.vlan} is not a VLAN", f"{at}.vlan", f"1 to {_LAST_VLAN}; leave it out for none")
    if network.max_rate_mbps is not None and not 1 <= network.max_rate_mbps < 1 << 31:
        _refuse(f"{network.max_rate_mbps} is not a rate", f"{at}.max_rate_mbps", "in Mbit/s; leave it out for no limit")


def _check_devices(guest: GuestIntent, at: str) -> None:
    for key in ("gpus", "nics", "nvme"):
        wanted = getattr(guest, key)
        count = (
            wanted.count if isinstance(wanted, GpuRequest | NicRequest) else wanted if isinstance(wanted, int) else 0
        )
        if count < 0:
            _refuse(f"{count} is negative", f"{at}.{key}", "ask for 0 or more")
        check_count(len(wanted) if isinstance(wanted, tuple) else count, key, f"{at}.{key}")
        if isinstance(wanted, tuple):
            seen: set[str] = set()
            for n, address in enumerate(wanted):
                canonical = parse_address(address, where=f"{at}.{key}[{n}]")
                if canonical in seen:
                    _refuse(f"{address} is named twice", f"{at}.{key}[{n}]", "name each device once")
                seen.add(canonical)


def _check_sizes(guest: GuestIntent, at: str) -> None:
    if isinstance(guest.vcpus, int) and guest.vcpus < 1:
        _refuse(f"{guest.vcpus} vCPUs", f"{at}.vcpus", "ask for 1 or more, or auto")
    check_count(guest.vcpus if isinstance(guest.vcpus, int) else 0, "vcpus", f"{at}.vcpus")
    if guest.memory != "auto":
        _check_memory(guest.memory, f"{at}.memory")
    if isinstance(guest.numa, int) and guest.numa < 1:
        _refuse(f"{guest.numa} cells", f"{at}.numa", "ask for 1 or more, or auto")
    check_count(guest.numa if isinstance(guest.numa, int) else 0, "cells", f"{at}.numa")
    if isinstance(guest.numa, tuple):
        _check_cells(guest, guest.numa, at)
    if guest.mig and guest.mig.count < 1:
        _refuse(f"{guest.mig.count} instances", f"{at}.mig.count", "ask for 1 or more")
    check_count(guest.mig.count if guest.mig else 0, "MIG instances", f"{at}.mig.count")


def _check_memory(size: int | str, at: str) -> None:
    size_bytes = parse_size(size, where=at)
    if size_bytes < LEAST_MEMORY:
        _refuse(f"{size_bytes} bytes of memory: less than 1 MiB", at, too_few_bytes_hint(size))


_IN_FULL = "write it in full, as /images/NAME.qcow2"


def _check_disks(guest: GuestIntent, at: str) -> None:
    if guest.disk is not None and guest.disks is not None:
        _refuse("disk and disks", f"{at}.disks", "write the path of disk as the first of disks, and take disk out")
    check_count(len(guest.disks or ()), "disks", f"{at}.disks")
    seen: set[str] = set()
    for key, path in guest.disk_paths.items():
        if not path.startswith("/") or path.endswith("/") or ".." in path.split("/"):
            _refuse(f"{path!r} is not the path of a disk", f"{at}.{key}", _IN_FULL)
        if os.path.normpath(path) in seen:
            _refuse(f"{path} is named twice", f"{at}.{key}", "name each disk once")
        seen.add(os.path.normpath(path))


def _check_image(guest: GuestIntent, at: str) -> None:
    if guest.image is None:
        return
    if not guest.disk_paths:
        _refuse("an image without a disk to copy it to", f"{at}.image", "give the path of the new disk: disk")
    key, disk = next(iter(guest.disk_paths.items()))
    for name, path in (("image", guest.image), (key, disk)):
        if not is_file_path(path):
            _refuse(f"{path!r} is not the path of a file", f"{at}.{name}", _IN_FULL)
    if guest.image in guest.disk_paths.values():
        _refuse("the image is the disk itself", f"{at}.image", "give the disk another path, or take image out")


def _check_lengths(guest: GuestIntent, at: str) -> None:
    """Refuse names of things on the host or in the guest that are longer than the kernel accepts."""
    texts = [*((key, path, "path") for key, path in guest.disk_paths.items()), ("image", guest.image, "path")]
    if guest.boot is not None:
        texts += [("boot.kernel", guest.boot.kernel, "path"), ("boot.initrd", guest.boot.initrd, "path")]
        texts += [("boot.cmdline", guest.boot.cmdline, "kernel command line")]
    texts += [(f"networks[{n}]", network.text, "name") for n, network in enumerate(guest.networks or ())]
    texts += [("mig.profile", guest.mig.profile, "name")] if guest.mig else []
    texts += [("gpus.model", guest.gpus.model, "name")] if isinstance(guest.gpus, GpuRequest) else []
    for key, text, name in texts:
        if text == "":
            _refuse("an empty text", f"{at}.{key}", "write the value, or leave the key out")
        if text is not None and len(text.encode("utf-8", "replace")) > limit(name):
            _refuse(f"a {name} of more than {limit(name):,} bytes", f"{at}.{key}", "shorten it")


def _check_cells(guest: GuestIntent, cells: tuple[CellRequest, ...], at: str) -> None:
    if not cells:
        _refuse("no cells", f"{at}.numa", "list at least one, or write auto")
    check_count(len(cells), "cells", f"{at}.numa")
    for n, cell in enumerate(cells):
        if cell.vcpus < 1:
            _refuse(f"{cell.vcpus} vCPUs", f"{at}.numa[{n}].vcpus", "ask for 1 or more")
        check_count(cell.vcpus, "vcpus", f"{at}.numa[{n}].vcpus")
        _check_memory(cell.memory, f"{at}.numa[{n}].memory")
    vcpus = sum(cell.vcpus for cell in cells)
    check_count(vcpus, "vcpus", f"{at}.numa")
    if isinstance(guest.vcpus, int) and guest.vcpus != vcpus:
        _refuse(
            f"{guest.vcpus} vCPUs, but its cells add up to {vcpus}",
            f"{at}.vcpus",
            "leave vcpus out, or make them agree",
        )
    memory = sum(parse_size(cell.memory, where=at) for cell in cells)
    if guest.memory != "auto" and parse_size(guest.memory, where=at) != memory:
        _refuse(
            f"{guest.memory}, but its cells add up to {memory} bytes",
            f"{at}.memory",
            "leave memory out, or make them agree",
        )


_SYSCTL_NAME = "[A-Za-z0-9_-]+(?:[./][A-Za-z0-9_-]+){1,8}"
_SYSCTL_VALUE = "[A-Za-z0-9_.,:+-]+(?: [A-Za-z0-9_.,:+-]+){0,15}"


def is_sysctl(name: object, value: object) -> bool:
    """Whether a name and a value can be a sysctl: parts joined by dots or slashes; words with single spaces between."""
    return (
        isinstance(name, str)
        and re.fullmatch(_SYSCTL_NAME, name) is not None
        and isinstance(value, int | str)
        and not isinstance(value, bool)
        and re.fullmatch(_SYSCTL_VALUE, str(value)) is not None
    )


def is_guest_name(name: str) -> bool:
    """Whether a guest may have this name. Such a name is safe as a single part of a path."""
    return 0 < len(name) <= 64 and name[0].isalnum() and all(c.isascii() and (c.isalnum() or c in "._-") for c in name)


def _refuse(what: str, where: str, hint: str = "correct the value") -> None:
    raise BadInput(what, where=where, hint=hint)
