"""Each boot loader's own way: GRUB, grubby, kernel-install, how they are told apart, and what is read back of them.

The generators themselves are run on the emulated host; here a `Live` root plays their part by what their sources say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from bootroots import GRUB_FILES, PAGES, Live, both, entries, info, live, loaders, scratch, sourced

from hosttune.errors import CommandFailed, Unreadable, WriteFailed
from hosttune.linux.systemdboot import LOADER_INFO
from hosttune.model.commandline import read_boot_pages, split, text_of, without
from hosttune.settings.bootloader import CONFIG, DROP_IN, STATE, config_lines, lacking
from hosttune.settings.kernelargs import NOT_STAGED, boot_loader

# --- GRUB ----------------------------------------------------------------------------------------------------


def grub_mkconfig(system: Live, argv: tuple[str, ...]) -> None:
    """10_linux: the image, root and ro, then both variables, on the `linux` line of each entry."""
    text = system.read(DROP_IN)
    first, second = sourced("iommu=off", "quiet", f"{text or ''}\n", Path("/"))
    line = f"\tlinux\t/vmlinuz root=/dev/vda1 ro {first} {second}\n\tlinux /vmlinuz root=/dev/vda1 ro single {first}\n"
    system.replace(CONFIG, f"menuentry 'x' {{\n{line}}}\n".encode())


def ignores_the_folder(system: Live, argv: tuple[str, ...]) -> None:
    system.replace(CONFIG, b"\tlinux /vmlinuz root=/dev/vda1 ro iommu=off quiet\n")


def fails_first(system: Live, argv: tuple[str, ...]) -> None:
    raise CommandFailed(argv, "exit status 1", "no space left")


def breaks_it(system: Live, argv: tuple[str, ...]) -> None:
    system.replace(CONFIG, b"")
    raise CommandFailed(argv, "exit status 1")


def test_on_a_machine_the_generated_configuration_is_read_back(tmp_path: Path) -> None:
    system = live(tmp_path, grub_mkconfig, GRUB_FILES)
    setting = both("iommu", "hugepages")
    setting.write(system, {"iommu": "iommu=pt", "hugepages": PAGES})
    assert config_lines(system.read(CONFIG) or "")[0][-3:] == ("hugepagesz=1G", "hugepages=0:8,1:8", "iommu=pt")
    setting.write(system, {"iommu": NOT_STAGED, "hugepages": NOT_STAGED})
    assert "iommu=off" in (system.read(CONFIG) or "")
    assert not system.exists(DROP_IN)


def test_a_generator_that_succeeds_without_effect_is_not_believed(tmp_path: Path) -> None:
    system = live(tmp_path, ignores_the_folder, GRUB_FILES)
    with pytest.raises(WriteFailed, match=r"no boot entry has iommu=pt") as error:
        both("iommu").write(system, {"iommu": "iommu=pt"})
    assert error.value.where == CONFIG
    assert both("iommu").read(system) == {"iommu": "unfinished: iommu=pt"}
    both("iommu").write(system, {"iommu": NOT_STAGED})
    assert both("iommu").read(system) == {"iommu": NOT_STAGED}


def test_a_generator_that_fails_and_changed_nothing_leaves_all_as_before(tmp_path: Path) -> None:
    system = live(tmp_path, fails_first, GRUB_FILES)
    with pytest.raises(CommandFailed, match="exit status 1"):
        both("iommu").write(system, {"iommu": "iommu=pt"})
    assert both("iommu").read(system) == {"iommu": NOT_STAGED}
    assert not system.exists(DROP_IN)


def test_a_generator_that_fails_half_way_is_seen(tmp_path: Path) -> None:
    system = live(tmp_path, breaks_it, GRUB_FILES)
    with pytest.raises(CommandFailed):
        both("iommu").write(system, {"iommu": "iommu=pt"})
    assert both("iommu").read(system) == {"iommu": "unfinished: iommu=pt"}


@pytest.mark.parametrize(
    ("lines", "wanted", "said"),
    [
        (["ro iommu=pt"], {"iommu": "iommu=pt"}, None),
        (["ro single", "ro iommu=pt quiet"], {"iommu": "iommu=pt"}, None),
        (["ro iommu=pt iommu=off"], {"iommu": "iommu=pt"}, "no boot entry has iommu=pt"),
        (["ro -- iommu=pt"], {"iommu": "iommu=pt"}, "no boot entry has iommu=pt"),
        (["ro iommu=off"], {"iommu": None}, "no boot entry has the removal of iommu"),
        ([], {"iommu": None}, "there is no boot entry"),
        (["iommu=pt x=" + "a" * 2040], {"iommu": "iommu=pt"}, "no boot entry has room"),
    ],
)
def test_what_a_configuration_lacks(lines: list[str], wanted: dict[str, str | None], said: str | None) -> None:
    found = lacking([split(line) for line in lines], wanted)
    assert found is None if said is None else (found or "").startswith(said)


# --- grubby and kernel-install -------------------------------------------------------------------------------


def grubby_bls(args: str, argv: tuple[str, ...]) -> str:
    """What grubby-bls (update_args) makes of the options of an entry."""
    given = dict(word.removeprefix("--").split("=", 1) for word in argv[1:])
    for name in [*given["remove-args"].split(), *(w.split("=")[0] for w in given.get("args", "").split())]:
        args = re.sub(rf"(^|\s){name}((\s|$)|=\S*)", " ", args)
    return " ".join([*args.split(), *given.get("args", "").split()])


def grubby(system: Live, argv: tuple[str, ...]) -> None:
    path = "/.hosttune/commands/grubby-info-all"
    args = re.findall(r'args="(.*)"', system.read(path) or "")
    system.replace(path, "".join(f'args="{grubby_bls(one, argv)}"\n' for one in args).encode())


@pytest.mark.parametrize(
    ("line", "staged"),
    [
        ("ro iommu=off quiet", "ro quiet hugepagesz=1G hugepages=0:8,1:8 iommu=pt"),
        (
            "hugepagesz=2M hugepages=512 hugepagesz=1G hugepages=2 ro",
            "ro hugepagesz=2M hugepages=512 hugepagesz=1G hugepages=0:8,1:8 iommu=pt",
        ),
        ("default_hugepagesz=1G hugepages=16 ro", "default_hugepagesz=1G ro hugepagesz=1G hugepages=0:8,1:8 iommu=pt"),
    ],
)
def test_grubby_forth_and_back(tmp_path: Path, line: str, staged: str) -> None:
    system = live(tmp_path, grubby, info(line, line))
    setting = both("iommu", "hugepages")
    setting.write(system, {"iommu": "iommu=pt", "hugepages": PAGES})
    assert entries(system) == [staged, staged]
    assert setting.read(system) == {"iommu": "iommu=pt", "hugepages": PAGES}
    setting.write(system, {"iommu": NOT_STAGED, "hugepages": NOT_STAGED})
    for name in ("iommu", "hugepages"):
        assert read_boot_pages(entries(system)[0].split()).anywhere == read_boot_pages(line.split()).anywhere
        assert text_of(without(split(entries(system)[0]), ("hugepages",)), name) == text_of(
            without(split(line), ("hugepages",)), name
        )
    assert not system.exists(STATE)


def test_grubby_refuses_entries_that_differ(tmp_path: Path) -> None:
    system = scratch(tmp_path, info("ro iommu=off", "ro"))
    with pytest.raises(WriteFailed, match="the boot entries differ in iommu"):
        both("iommu").write(system, {"iommu": "iommu=pt"})
    assert not system.exists(STATE)


def bls(tmp_path: Path, extra: Mapping[str, str]) -> Live:
    return live(tmp_path, kernel_install, {**loaders()["kernel-install"], **extra})


def kernel_install(system: Live, argv: tuple[str, ...]) -> None:
    line = system.read("/etc/kernel/cmdline") or "of /proc/cmdline"
    system.replace("/boot/loader/entries/a.conf", f"options {line}\n".encode())


def test_kernel_install_forth_and_back(tmp_path: Path) -> None:
    system = bls(tmp_path, {})
    setting = both("iommu")
    setting.write(system, {"iommu": "iommu=pt"})
    assert system.read("/etc/kernel/cmdline") == "root=/dev/vda1 ro quiet iommu=pt"
    assert system.ran() == [("/usr/bin/kernel-install", "add", "6.1", "/usr/lib/modules/6.1/vmlinuz")]
    # After a reboot /proc/cmdline holds ours; what was there before is remembered.
    (tmp_path / "proc/cmdline").write_text("root=/dev/vda1 ro quiet iommu=pt\n")
    setting.write(system, {"iommu": NOT_STAGED})
    assert system.read("/boot/loader/entries/a.conf") == "options root=/dev/vda1 ro quiet iommu=off"
    assert not system.exists("/etc/kernel/cmdline")
    assert not system.exists(STATE)


def test_somebody_elses_command_line_is_left_alone(tmp_path: Path) -> None:
    system = bls(tmp_path, {"etc/kernel/cmdline": "root=/dev/vda1 ro mine\n"})
    with pytest.raises(WriteFailed, match="is not hosttune's: add iommu=pt, then run kernel-install"):
        both("iommu").write(system, {"iommu": "iommu=pt"})
    assert (tmp_path / "etc/kernel/cmdline").read_text() == "root=/dev/vda1 ro mine\n"
    assert not system.exists(STATE)


def test_a_broken_memory_is_named(tmp_path: Path) -> None:
    system = scratch(tmp_path, {**info("ro"), STATE[1:]: "{"})
    with pytest.raises(Unreadable, match="not as hosttune writes it") as error:
        both("iommu").read(system)
    assert error.value.where == STATE


@pytest.mark.parametrize(
    ("files", "name"),
    [
        (GRUB_FILES, "GRUB"),
        ({**GRUB_FILES, "usr/sbin/grub-mkconfig": "no folder\n", "boot/x": ""}, None),
        ({**GRUB_FILES, "usr/sbin/grubby": ""}, "grubby"),
        (loaders()["kernel-install"], "kernel-install"),
        ({"usr/bin/kernel-install": "", "boot/x": ""}, None),
    ],
)
def test_boot_loaders_are_told_by_what_is_there(tmp_path: Path, files: dict[str, str], name: str | None) -> None:
    found = boot_loader(scratch(tmp_path, files))
    assert (found.name if found else None) == name


def test_systemd_boot_tells_that_it_runs(tmp_path: Path) -> None:
    system = scratch(tmp_path, {**GRUB_FILES, "usr/bin/kernel-install": ""})
    path = tmp_path / LOADER_INFO[1:]
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\6\0\0\0" + "systemd-boot 252".encode("utf-16-le"))
    found = boot_loader(system)
    assert found is not None
    assert found.name == "kernel-install"


def test_where_proxmox_writes_the_entries_a_person_adds_the_arguments(tmp_path: Path) -> None:
    system = scratch(
        tmp_path, {**GRUB_FILES, "usr/bin/kernel-install": "", "etc/kernel/proxmox-boot-uuids": "1234-ABCD"}
    )
    path = tmp_path / LOADER_INFO[1:]
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\6\0\0\0" + "systemd-boot 252".encode("utf-16-le"))
    assert boot_loader(system) is None
    assert "/etc/kernel/cmdline, then proxmox-boot-tool refresh" in (both("iommu").waits_for(system) or "")
    with pytest.raises(WriteFailed, match=r"proxmox-boot-tool refresh\): add iommu=pt by hand"):
        both("iommu").write(system, {"iommu": "iommu=pt"})


def test_our_memory_is_plain_json(tmp_path: Path) -> None:
    system = scratch(tmp_path, info("ro iommu=off"))
    both("iommu").write(system, {"iommu": "iommu=pt"})
    assert json.loads(system.read(STATE) or "") == {
        "arguments": {"iommu": "iommu=pt"},
        "before": {"iommu": "iommu=off"},
        "unfinished": [],
    }
