"""Roots with one boot loader or another, for tests: `scratch` ones, and `live` ones that are taken for a machine."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from hosttune.machine.scratch import Scratch
from hosttune.settings.bootloader import CONFIG
from hosttune.settings.kernelargs import KernelArguments

PAGES = "hugepagesz=1G hugepages=0:8,1:8"
MKCONFIG = 'for x in ${sysconfdir}/default/grub.d/*.cfg ; do . "${x}" ; done\n'
GRUB_FILES = {"usr/sbin/grub-mkconfig": MKCONFIG, "usr/sbin/update-grub": "#!/bin/sh\n"}
CMDLINE = "BOOT_IMAGE=/vmlinuz-6.1 root=/dev/vda1 ro quiet iommu=off initrd=\\x.img"


def scratch(tmp_path: Path, files: Mapping[str, str], kind: type[Scratch] = Scratch) -> Scratch:
    for name, text in {".hosttune/scratch": "", "proc/cmdline": CMDLINE + "\n", **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return kind(str(tmp_path))


def both(*names: str) -> KernelArguments:
    made = KernelArguments.merged([KernelArguments.of(name) for name in names])
    assert isinstance(made, KernelArguments)
    return made


def loaders() -> dict[str, dict[str, str]]:
    entry = "title x\nversion 6.1\noptions root=/dev/vda1 ro quiet iommu=off\n"
    return {
        "grub": GRUB_FILES,
        "grubby": {
            "usr/sbin/grubby": "",
            ".hosttune/commands/grubby-info-all": 'index=0\nargs="ro quiet iommu=off"\nroot="/dev/vda1"\n',
        },
        "kernel-install": {
            "usr/bin/kernel-install": "",
            "boot/loader/entries/a.conf": entry,
            "usr/lib/modules/6.1/vmlinuz": "",
        },
    }


def sourced(first: str, second: str, text: str, folder: Path) -> tuple[str, str]:
    """The two variables after the drop-in, as a shell under `set -e` leaves them."""
    script = (
        f"set -e\nGRUB_CMDLINE_LINUX={shlex.quote(first)}\nGRUB_CMDLINE_LINUX_DEFAULT={shlex.quote(second)}\n{text}"
        'printf "%s\\0%s" "$GRUB_CMDLINE_LINUX" "$GRUB_CMDLINE_LINUX_DEFAULT"\nset | grep ^hosttune_ >&2 || :\n'
    )
    found = subprocess.run(["sh", "-c", script], cwd=folder, capture_output=True, text=True, check=True)
    assert found.stderr == ""  # nothing of ours is left behind
    before, _, after = found.stdout.partition("\0")
    return before, after


class Live(Scratch):
    """A scratch root that is taken for a machine: its generator is `generate`, called for each command."""

    captured = False
    generate: Callable[[Live, tuple[str, ...]], None] = staticmethod(lambda system, argv: None)

    def change(self, argv: tuple[str, ...], *, timeout: float = 60.0, stdin: str | None = None) -> str:
        type(self).generate(self, argv)
        return super().change(argv, timeout=timeout, stdin=stdin)


def live(tmp_path: Path, generate: Callable[[Live, tuple[str, ...]], None], files: Mapping[str, str]) -> Live:
    kind = type("Generating", (Live,), {"generate": staticmethod(generate)})
    return scratch(tmp_path, {CONFIG[1:]: "\tlinux /v root=/dev/vda1 ro iommu=off\n", **files}, kind)  # type: ignore[return-value]


def info(*lines: str) -> dict[str, str]:
    text = "".join(f'index={i}\nargs="{line}"\n' for i, line in enumerate(lines))
    return {"usr/sbin/grubby": "", ".hosttune/commands/grubby-info-all": text}


def entries(system: Scratch) -> list[str]:
    return re.findall(r'args="(.*)"', system.read("/.hosttune/commands/grubby-info-all") or "")
