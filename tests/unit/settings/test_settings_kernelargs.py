"""Kernel arguments of the next boot: the drop-in of GRUB run by a real shell, the setting, its refusals and kills."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bootroots import GRUB_FILES, PAGES, both, loaders, scratch, sourced
from hypothesis import given, settings
from hypothesis import strategies as st
from planhosts import Card, build_host, intent_of

from hosttune.errors import BadInput, Unreadable, WriteFailed
from hosttune.machine.scratch import Scratch
from hosttune.model.commandline import changed, read_boot_pages, split, text_of, without
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.values import to_json
from hosttune.planning import plan
from hosttune.settings.bootloader import DROP_IN, STATE, snippet
from hosttune.settings.kernelargs import NAMES, NOT_STAGED, KernelArguments
from hosttune.transaction.kinds import setting_of
from hosttune.transaction.steps import steps_of

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
    with pytest.raises(BadInput, match="invalid value") as error:
        both(name).check({name: text})
    assert error.value.where == f"action kernel-argument:{name}"


def test_a_value_for_each_argument_is_wanted() -> None:
    with pytest.raises(BadInput, match="not a value for each argument"):
        both("iommu", "isolcpus").check({"iommu": "iommu=pt"})


def test_what_a_capture_without_boot_files_would_get_is_grubs(tmp_path: Path) -> None:
    system = scratch(tmp_path, {})
    assert "one is assumed" in (both("iommu").write(system, {"iommu": "iommu=pt"}) or "")
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
