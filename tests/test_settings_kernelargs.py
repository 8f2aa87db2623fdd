"""Kernel arguments of the next boot: the GRUB drop-in run by a real shell, grubby, kernel-install, and every refusal.

The generators themselves are run on the emulated host; here `Live` plays their part by what their sources say.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planhosts import Card, build_host, intent_of

from hosttune.errors import BadInput, CommandFailed, Unreadable, WriteFailed
from hosttune.model.commandline import changed, read_boot_pages, split, text_of, without
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.values import to_json
from hosttune.planning import plan
from hosttune.scratch import Scratch
from hosttune.settings import setting_of
from hosttune.settings.bootloader import LOADER_INFO, STATE, boot_loader, lacking
from hosttune.settings.grub import CONFIG, DROP_IN, config_lines, snippet
from hosttune.settings.kernelargs import NAMES, NOT_STAGED, KernelArguments
from hosttune.transaction.steps import steps_of

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


# --- the drop-in, by a shell ---------------------------------------------------------------------------------

WORDS = st.sampled_from(
    (
        "quiet", "ro", "iommu=pt", "iommu=off", "iommu", "intel_iommu=on", "isolcpus=2-3",
        "hugepages=4", "hugepages=0:1", "hugepagesz=1G", "hugepagesz=1g", "hugepagesz=2M", "hugepagesz=1024M",
        "default_hugepagesz=1G",
        "default_hugepagesz=2M", "iommu.passthrough=1", 'dyndbg="file a.c iommu=pt +p"', 'iommu="a b"', "$(touch x)",
        "`touch x`", "*", "a;touch x", "x=$HOME", "\\vt", "console=ttyS0,115200n8", '"', "'",
    )
)  # fmt: skip
LINES = st.lists(st.tuples(WORDS, st.sampled_from((" ", "  ", "\t"))), max_size=8).map(
    lambda rows: "".join(word + gap for word, gap in rows)
)
WANTED = st.fixed_dictionaries(
    {},
    optional={
        "iommu": st.sampled_from((None, "iommu=pt")),
        "intel_iommu": st.sampled_from((None, "intel_iommu=on,sm_on")),
        "isolcpus": st.sampled_from((None, "isolcpus=domain,2-3")),
        "hugepages": st.sampled_from((None, PAGES)),
    },
)


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


@settings(max_examples=120, deadline=None)
@given(LINES, LINES, WANTED)
def test_the_drop_in_does_in_a_shell_what_python_says(
    tmp_path_factory: pytest.TempPathFactory, first: str, second: str, wanted: dict[str, str | None]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    before, after = sourced(first, second, snippet(wanted), folder)
    line = f"{first} {second}"
    if line.count('"') % 2 == 0:  # what follows an open quote is one word to the kernel: no line that boots has one
        assert split(f"{before} {after}") == changed(split(line), wanted)
    assert not (folder / "x").exists()


def test_words_that_stay_keep_their_white_space(tmp_path: Path) -> None:
    first = '  ro\tdyndbg="file a  b +p"  quiet '
    before, after = sourced(first, "iommu=off splash", snippet({"iommu": "iommu=pt"}), tmp_path)
    assert (before, after) == (first, "splash iommu=pt")


def test_the_drop_in_stands_unset_variables(tmp_path: Path) -> None:
    text = "unset GRUB_CMDLINE_LINUX GRUB_CMDLINE_LINUX_DEFAULT\n" + snippet({"iommu": "iommu=pt"})
    assert sourced("", "", text, tmp_path) == ("", "iommu=pt")


def test_pages_of_other_sizes_stay(tmp_path: Path) -> None:
    line = "default_hugepagesz=1G hugepages=16 hugepagesz=2M hugepages=512 hugepagesz=1G hugepages=4"
    _, after = sourced("", line, snippet({"hugepages": PAGES}), tmp_path)
    assert after.split() == ["default_hugepagesz=1G", "hugepagesz=2M", "hugepages=512", *PAGES.split()]


@pytest.mark.parametrize("text", ["iommu=$(reboot)", "iommu='", 'iommu="a"', "iommu=`x`", "iommu=a;b", "iommu=a\\"])
def test_what_a_shell_could_take_for_more_is_never_written(text: str) -> None:
    with pytest.raises(WriteFailed, match="has characters that are not safe there") as error:
        snippet({"iommu": text})
    assert error.value.where == "the kernel's command line"


@settings(max_examples=200, deadline=None)
@given(LINES)
def test_the_text_of_pages_is_what_planning_reads_and_all_of_it_goes(line: str) -> None:
    words = split(line)
    assert (text_of(words, "hugepages") or "").split() == list(read_boot_pages(words).arguments)
    assert text_of(without(words, ("hugepages",)), "hugepages") is None
    rest = changed(words, {"hugepages": PAGES})
    assert text_of(rest, "hugepages") == PAGES


# --- the setting on a scratch root ---------------------------------------------------------------------------


def test_forth_and_back_leaves_the_root_as_it_was(tmp_path: Path) -> None:
    system = scratch(tmp_path, GRUB_FILES)
    one, other = both("iommu", "hugepages"), both("isolcpus")
    assert one.read(system) == {"hugepages": NOT_STAGED, "iommu": NOT_STAGED}
    assert one.effective(system) == {"hugepages": None, "iommu": "iommu=off"}
    one.write(system, {"iommu": "iommu=pt", "hugepages": PAGES})
    assert one.read(system) == {"iommu": "iommu=pt", "hugepages": PAGES}
    other.write(system, {"isolcpus": "isolcpus=domain,2-3"})
    assert one.read(system) == {"iommu": "iommu=pt", "hugepages": PAGES}  # applies add up
    one.write(system, {"iommu": None, "hugepages": PAGES})
    assert one.read(system)["iommu"] is None
    one.write(system, {"iommu": NOT_STAGED, "hugepages": NOT_STAGED})
    assert other.read(system) == {"isolcpus": "isolcpus=domain,2-3"}
    other.write(system, {"isolcpus": NOT_STAGED})
    assert not system.exists(DROP_IN)
    assert system.ran() == [("/usr/sbin/update-grub",)] * 5


def test_the_journals_name_of_a_merged_setting_gives_it_again() -> None:
    made = both("iommu", "hugepages")
    assert made.target == "hugepages,iommu"
    assert KernelArguments.restored(made.target) == made


@pytest.mark.parametrize(
    "target", ["init", "", "iommu ", "iommu,hugepages", "hugepagesz", "../x", "nvidia.x", "iommu=pt"]
)
def test_only_known_arguments_are_targets(target: str) -> None:
    with pytest.raises(BadInput, match="not an argument that hosttune sets"):
        setting_of("kernel-argument", target)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("iommu", "iommu=pt init=/bin/sh"), ("iommu", "pt"), ("iommu", ""), ("iommu", "iommu=pt  iommu=on"),
        ("iommu", NOT_STAGED), ("iommu", "iommu=a'b"), ("iommu", 1), ("iommu", True), ("iommu", "iommu=" + "a" * 3000),
        ("hugepages", "hugepages=4"), ("hugepages", "hugepagesz=2M hugepages=4"), ("hugepages", PAGES + " x"),
        ("isolcpus", "isolcpus=1\nreboot"), ("nohz_full", "isolcpus=1"), ("iommu", {"x": 1}),
    ],
)  # fmt: skip
def test_only_arguments_of_that_name_are_wanted(name: str, text: Any) -> None:
    with pytest.raises(BadInput, match="is no value of it") as error:
        both(name).check({name: text})
    assert error.value.where == f"action kernel-argument:{name}"


def test_a_value_for_each_argument_is_wanted() -> None:
    with pytest.raises(BadInput, match="not a value for each argument"):
        both("iommu", "isolcpus").check({"iommu": "iommu=pt"})


def test_what_a_capture_without_boot_files_would_get_is_grubs(tmp_path: Path) -> None:
    system = scratch(tmp_path, {})
    assert "stands for one" in (both("iommu").write(system, {"iommu": "iommu=pt"}) or "")
    assert system.exists(DROP_IN)


def test_no_boot_loader_says_what_to_do_by_hand(tmp_path: Path) -> None:
    system = scratch(tmp_path, {"boot/vmlinuz-6.1": ""})
    setting = both("iommu", "isolcpus")
    assert set(setting.read(system).values()) == {NOT_STAGED}
    with pytest.raises(WriteFailed, match=r"add iommu=pt and remove isolcpus by hand"):
        setting.write(system, {"iommu": "iommu=pt", "isolcpus": None})


def test_somebody_elses_drop_in_is_not_read_over(tmp_path: Path) -> None:
    system = scratch(tmp_path, {**GRUB_FILES, DROP_IN[1:]: "GRUB_CMDLINE_LINUX=x\n"})
    for call in (lambda: both("iommu").read(system), lambda: both("iommu").write(system, {"iommu": "iommu=pt"})):
        with pytest.raises(Unreadable, match="not as hosttune writes it"):
            call()
    assert (tmp_path / DROP_IN[1:]).read_text() == "GRUB_CMDLINE_LINUX=x\n"


@pytest.mark.parametrize(
    ("mounts", "fstab", "said"),
    [
        ("/dev/a / ext4 rw 0 0\n/dev/b /boot ext4 ro,noatime 0 0\n", "", "/boot: is mounted read-only"),
        ("/dev/a / ext4 ro 0 0\n", "", "/: is mounted read-only"),
        ("/dev/a / ext4 rw 0 0\n", "/dev/b /boot ext4 defaults 0 2\n", "/boot: is a file system of its own"),
    ],
)
def test_a_boot_partition_that_cannot_be_written_is_named(tmp_path: Path, mounts: str, fstab: str, said: str) -> None:
    system = scratch(tmp_path, {**GRUB_FILES, "proc/mounts": mounts, "etc/fstab": fstab})
    with pytest.raises(WriteFailed, match=said):
        both("iommu").write(system, {"iommu": "iommu=pt"})
    assert not system.exists(DROP_IN)


# --- killed and failing --------------------------------------------------------------------------------------


class Ended(Exception):
    """The process is gone."""


class Mortal(Scratch):
    """A scratch root whose process ends at its nth change, before or after it is made."""

    ends_at = 0
    after = False
    made = 0

    def _count(self, act: Callable[[], Any]) -> Any:
        self.made += 1
        if self.made == self.ends_at and not self.after:
            raise Ended
        result = act()
        if self.made == self.ends_at:
            raise Ended
        return result

    def replace(self, path: str, data: bytes, mode: int = 0o644) -> None:
        if path.startswith("/var/lib/hosttune/scratch"):
            super().replace(path, data, mode)
        else:
            self._count(lambda: super(Mortal, self).replace(path, data, mode))

    def remove(self, path: str) -> None:
        self._count(lambda: super(Mortal, self).remove(path))

    def change(self, argv: tuple[str, ...], *, timeout: float = 60.0, stdin: str | None = None) -> str:
        return str(self._count(lambda: super(Mortal, self).change(argv, timeout=timeout, stdin=stdin)))


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


@pytest.mark.parametrize("loader", ["grub", "grubby", "kernel-install"])
@pytest.mark.parametrize("old", [NOT_STAGED, "iommu=force"])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("back", [False, True])
def test_killed_at_every_change_it_is_old_new_or_told_unfinished(
    tmp_path: Path, loader: str, old: str, after: bool, back: bool
) -> None:
    new = "iommu=pt"
    setting = both("iommu")
    for ends_at in range(1, 12):
        folder = tmp_path / str(ends_at)
        system = scratch(folder, loaders()[loader], Mortal)
        assert isinstance(system, Mortal)
        if old != NOT_STAGED:
            setting.write(system, {"iommu": old})
        if back:
            setting.write(system, {"iommu": new})
        system.made, system.ends_at, system.after = 0, ends_at, after
        try:
            setting.write(system, {"iommu": old if back else new})
        except Ended:
            pass
        else:
            assert ends_at > 3
            break
        ran = len(system.ran())
        reborn = Scratch(str(folder))
        seen = setting.read(reborn)["iommu"]
        assert seen in (old, new) or str(seen).startswith("unfinished: ")
        if seen == (old if back else new):  # it has arrived: then the generator has run with it
            assert ran > (old != NOT_STAGED) + back
        setting.write(reborn, {"iommu": old})
        assert setting.read(reborn) == {"iommu": old}
        assert reborn.exists(DROP_IN if loader == "grub" else STATE) == (old != NOT_STAGED)
    else:
        pytest.fail("it never came to its end")


class Live(Scratch):
    """A scratch root that is taken for a machine: its generator is `generate`, called for each command."""

    captured = False
    generate: Callable[[Live, tuple[str, ...]], None] = staticmethod(lambda system, argv: None)

    def change(self, argv: tuple[str, ...], *, timeout: float = 60.0, stdin: str | None = None) -> str:
        type(self).generate(self, argv)
        return super().change(argv, timeout=timeout, stdin=stdin)


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


def live(tmp_path: Path, generate: Callable[[Live, tuple[str, ...]], None], files: Mapping[str, str]) -> Live:
    kind = type("Generating", (Live,), {"generate": staticmethod(generate)})
    return scratch(tmp_path, {CONFIG[1:]: "\tlinux /v root=/dev/vda1 ro iommu=off\n", **files}, kind)  # type: ignore[return-value]


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


def info(*lines: str) -> dict[str, str]:
    text = "".join(f'index={i}\nargs="{line}"\n' for i, line in enumerate(lines))
    return {"usr/sbin/grubby": "", ".hosttune/commands/grubby-info-all": text}


def entries(system: Scratch) -> list[str]:
    return re.findall(r'args="(.*)"', system.read("/.hosttune/commands/grubby-info-all") or "")


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
    with pytest.raises(WriteFailed, match="is not ours: add iommu=pt, then run kernel-install"):
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


PLANNED: dict[str, Any] = {
    "profile": "host",
    "hugepages": "1GiB",
    "settings": {"isolcpus": True, "nohz_full": True, "mitigations": "auto,nosmt"},
}


@pytest.mark.parametrize(
    ("line", "vendor"),
    [
        ("ro quiet", "GenuineIntel"),
        ("intel_iommu=sm_on intel_iommu=tboot_noforce", "GenuineIntel"),
        ("iommu=off intel_iommu=off isolcpus=domain,1 isolcpus=1", "GenuineIntel"),
        ("amd_iommu=off iommu=off iommu=soft hugepagesz=1G hugepages=1 hugepagesz=2M hugepages=9", "AuthenticAMD"),
    ],
)
def test_a_plans_arguments_are_known_and_now_what_the_machine_shows(tmp_path: Path, line: str, vendor: str) -> None:
    host = build_host(cards=(Card("0000:41:00.0", 0),))
    host["kernel_args"], host["cpu_model"] = line.split(), {**(host.get("cpu_model") or {}), "vendor": vendor}
    intent = Intent.from_json(to_json(intent_of(gpus=["0000:41:00.0"], vcpus=4, memory="4GiB", **PLANNED)))
    actions = [one for one in plan(Host.from_json(to_json(host)), intent).actions if one.kind == "kernel-argument"]
    assert {"hugepages", "iommu", "isolcpus", "nohz_full", "mitigations"} <= {one.target for one in actions} <= NAMES
    system = scratch(tmp_path, {"proc/cmdline": line + "\n"})
    (step,) = steps_of(actions)
    assert step.setting.effective(system) == {one.target: one.current for one in actions}
    assert step.setting.target == ",".join(sorted(one.target for one in actions))


def test_our_memory_is_plain_json(tmp_path: Path) -> None:
    system = scratch(tmp_path, info("ro iommu=off"))
    both("iommu").write(system, {"iommu": "iommu=pt"})
    assert json.loads(system.read(STATE) or "") == {
        "arguments": {"iommu": "iommu=pt"},
        "before": {"iommu": "iommu=off"},
        "unfinished": [],
    }
