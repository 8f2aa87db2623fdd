"""Limits of input sizes, in one table: documents, captures, and what an intent can ask for.

With these limits, any input file is processed or refused within 10 s of CPU time and 500 MiB (`make bench` measures
it). Each limit is several times what a real machine or document reaches; the table gives that figure. docs/limits.md
lists the limits for users.
"""

from __future__ import annotations

from collections.abc import Mapping

from hosttune.errors import BadInput

KIB, MIB = 1 << 10, 1 << 20


class Limit:
    """A limit: at most `most` of something.

    `unit` is "bytes", or "" for a count. `why` says what real inputs reach, with its source.
    """

    def __init__(self, most: int, unit: str, why: str) -> None:
        self.most, self.unit, self.why = most, unit, why

    @property
    def text(self) -> str:
        """The limit as text for people."""
        if self.unit != "bytes":
            return f"{self.most:,}"
        return f"{self.most // MIB} MiB" if self.most >= MIB else f"{self.most // KIB} KiB"


LIMITS: Mapping[str, Limit] = {
    # documents
    "intent": Limit(256 * KIB, "bytes", "an intent with 256 guests, written out in full, is some 100 KiB"),
    "values of an intent": Limit(50_000, "", "256 guests with 40 keys each are 20,000 keys and values"),
    "document": Limit(16 * MIB, "bytes", "a host with 768 CPUs and 517 PCI functions is 0.8 MiB"),
    "environment": Limit(1 * MIB, "bytes", "the longest script of a training framework is some 100 KiB"),
    "lines of an environment": Limit(20_000, "", "the longest script of a training framework has some 2,000"),
    "variables of an environment": Limit(20_000, "", "guides set some 40"),
    "log": Limit(64 * MIB, "bytes", "NCCL_DEBUG=INFO of 64 ranks is some 1 MiB"),
    "lines of a log": Limit(1_000_000, "", "NCCL_DEBUG=INFO of 64 ranks has some 10,000"),
    "figures of a diagnosis": Limit(2_000, "", "a validation of 8 GPUs has some 300 figures"),
    "values of a document": Limit(1_000_000, "", "a host with 768 CPUs and 517 PCI functions has some 40,000"),
    "domain XML": Limit(4 * MIB, "bytes", "libvirt's own bound of a text (REMOTE_STRING_MAX, remote_protocol.x)"),
    "elements of a domain XML": Limit(50_000, "", "a guest of 4,096 vCPUs with 256 devices has some 10,000"),
    "CPUs named in a domain XML": Limit(1 << 20, "", "512 vCPUs that may each run on 2,048 CPUs"),
    "journal": Limit(64 * MIB, "bytes", "the definitions of all guests, old and new, are 32 MiB at most"),
    "record of a fleet": Limit(64 * MIB, "bytes", "some lines for each host of each run"),
    "metrics of a fleet": Limit(64 * MIB, "bytes", "1,000 hosts of 300 series are 33 MiB"),
    "samples of a fleet": Limit(200_000, "", "1,000 hosts with verdict, time and 30 results each are 36,000"),
    "statement": Limit(4 * MIB, "bytes", "16 devices with their evidence, and 2,000 applied settings, are 400 KiB"),
    "signature": Limit(64 * KIB, "bytes", "one with an RSA key of 16,384 bits is 6 KiB"),
    "list of SSH keys": Limit(1 * MIB, "bytes", "10,000 keys as text; as many hashes in a KRL are 400 KiB"),
    "answer of a test guest": Limit(4 * MIB, "bytes", "a validation of 8 GPUs with its samples is some 300 KiB"),
    "starts": Limit(16 * MIB, "bytes", "one line of 80 bytes for each device of each start of a guest"),
    "record of a start": Limit(
        4 * MIB, "bytes", "a NIC's firmware configuration is 12 KiB, the settings of 256 virtual functions are 100 KiB"
    ),
    "configuration": Limit(64 * KIB, "bytes", "every key with its value is 1 KiB"),
    "fleet's floors": Limit(256 * KIB, "bytes", "the shipped tables are 20 KiB"),
    # hosts, discovered or in a document
    "CPUs": Limit(8192, "", "the most that an x86 kernel can be built for (NR_CPUS, arch/x86/Kconfig)"),
    "NUMA nodes": Limit(256, "", "8 sockets in 4 parts each are 32; POWER9 numbers its GPUs' nodes up to 255"),
    "CPUs named in all lists": Limit(2_000_000, "", "each list counted once, 768 CPUs name some 10,000"),
    "PCI functions": Limit(8192, "", "a host with 16 NICs of 256 virtual functions each has some 5,000"),
    "GPUs of a host": Limit(1024, "", "8 GPUs of 32 virtual functions each are 264"),
    "GPUs that NVIDIA's driver reports": Limit(
        248, "", "a driver numbers its GPUs from 0 to 247 (NV_MINOR_DEVICE_NUMBER_REGULAR_MAX, nv-linux.h)"
    ),
    "guests of a host": Limit(1024, "", "a MIG host has at most 7 on each of 16 GPUs"),
    # captures
    "capture, unpacked": Limit(64 * MIB, "bytes", "a host with 128 CPUs and 517 PCI functions is 4 MiB"),
    "members of a capture": Limit(150_000, "", "a host with 192 CPUs and 8 GPUs has 16,000, one with 768 CPUs 65,000"),
    "names in a folder": Limit(65_536, "", "the largest folders of sysfs hold some 5,000"),
    "accesses to a capture": Limit(2_000_000, "", "names and files of a folder; a host with 768 CPUs takes 200,000"),
    "file of sysfs": Limit(256 * KIB, "bytes", "an attribute is a page of 4 KiB; vital product data are 32 KiB"),
    "kernel arguments": Limit(64 * KIB, "bytes", "the longest command line of any kernel is 4 KiB (COMMAND_LINE_SIZE)"),
    "/proc/interrupts": Limit(32 * MIB, "bytes", "768 CPUs and 3,000 interrupts are 25 MiB"),
    "/proc/cpuinfo": Limit(16 * MIB, "bytes", "768 CPUs are 1.3 MiB"),
    "definitions of all guests": Limit(16 * MIB, "bytes", "112 guests of a MIG host are 2 MiB"),
    "manifest of a capture": Limit(16 * MIB, "bytes", "a host with 192 CPUs and 8 GPUs has 0.6 MiB, 768 CPUs 2.5 MiB"),
    "pci.ids": Limit(8 * MIB, "bytes", "the file of 2026 is 1.6 MiB"),
    "other file of a capture": Limit(4 * MIB, "bytes", "nvidia-smi -q -x prints some 30 KB a GPU"),
    # what an intent can ask for
    "guests": Limit(256, "", "a host of 16 GPUs with 7 MIG instances each has 112"),
    "vcpus": Limit(4096, "", "the most that QEMU's q35 takes (max_cpus since QEMU 9.0)"),
    "cells": Limit(128, "", "the most that QEMU takes (MAX_NODES, include/sysemu/numa.h)"),
    "gpus": Limit(64, "", "the largest hosts have 16 GPUs, with PCIe boxes 32"),
    "nics": Limit(256, "", "a guest has 256 PCI buses, and each device one of its own"),
    "nvme": Limit(256, "", "a guest has 256 PCI buses, and each device one of its own"),
    "MIG instances": Limit(448, "", "7 on each of 64 GPUs"),
    "disks": Limit(26, "", "vda to vdz"),
    "networks": Limit(64, "", "a guest has 256 PCI buses, and each device one of its own"),
    "SSH keys": Limit(64, "", "a team that shares a guest has some 20"),
    "sysctls": Limit(256, "", "a kernel has some 1,000; a tuning guide names 30"),
    "settings": Limit(256, "", "there are fewer than 50 names"),
    "cores kept of a node": Limit(8192, "", "a host has no more CPUs"),
    "path": Limit(4095, "", "bytes; PATH_MAX without its end (limits.h)"),
    "kernel command line": Limit(2047, "", "bytes; COMMAND_LINE_SIZE of x86 without its end (asm/setup.h)"),
    "name": Limit(255, "", "bytes; NAME_MAX (limits.h)"),
}


def limit(name: str) -> int:
    """Return the limit with this name."""
    return LIMITS[name].most


def check_count(count: int, name: str, where: str) -> None:
    """Raise BadInput if a count is above its limit."""
    bound = LIMITS[name]
    if count > bound.most:
        what = f"{count:,} {name}, more than {bound.text}"
        raise BadInput(what, where=where, hint=f"at most {bound.text}: {bound.why}")


def file_limit(path: str) -> str:
    """Return the name of the limit for a file of a captured machine."""
    if path.startswith("/sys/"):
        return "file of sysfs"
    if path in ("/proc/interrupts", "/proc/cpuinfo"):
        return path
    if path == "/proc/cmdline":
        return "kernel arguments"
    if path == "/.hosttune/capture":
        return "manifest of a capture"
    return "pci.ids" if path.endswith("/pci.ids") else "other file of a capture"


def check_size(size_bytes: int, name: str, where: str) -> None:
    """Raise BadInput if an input is larger than its limit."""
    bound = LIMITS[name]
    if size_bytes > bound.most:
        raise BadInput(f"larger than {bound.text}", where=where, hint=f"check that it is the right file: {bound.why}")
