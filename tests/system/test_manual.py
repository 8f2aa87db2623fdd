"""Manual pages, made from the commands (`--regenerate` writes them anew), and completion; both are in the wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import click
import manpages
import pytest
from hatchling.builders.wheel import WheelBuilder

from hosttune.cli import commands, run
from hosttune.cli.complete import gpus

ROOT = Path(__file__).resolve().parents[2]
CALL = f'{sys.executable} -c "from hosttune.cli import main; main()" "$@"'


def test_the_pages_are_those_of_the_commands(request: pytest.FixtureRequest) -> None:
    made = manpages.pages()
    if request.config.getoption("--regenerate"):
        for path in manpages.FOLDER.glob("*.1"):
            path.unlink()
        for name, text in made.items():
            (manpages.FOLDER / name).write_text(text)
        return
    assert {path.name: path.read_text() for path in manpages.FOLDER.iterdir()} == made
    assert {f"hosttune-{name}.1" for name in commands.COMMANDS} < set(made)


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff")
def test_groff_has_nothing_to_criticise() -> None:
    paths = sorted(map(str, manpages.FOLDER.iterdir()))
    done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", *paths], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_wheel_installs_them_where_distributions_look(tmp_path: Path) -> None:
    (path,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(path) as wheel:
        shared = {name.split(".data/data/")[1] for name in wheel.namelist() if ".data/data/" in name}
        assert "hosttune/_assets/monitoring/rules/hosttune.yml" in wheel.namelist()
    assert {f"share/man/man1/{name}" for name in manpages.pages()} < shared
    assert shared > {
        "share/bash-completion/completions/hosttune",
        "share/zsh/site-functions/_hosttune",
        "share/fish/vendor_completions.d/hosttune.fish",
    }


@pytest.fixture
def command(tmp_path: Path) -> Path:
    """A folder with a command `hosttune`, for PATH."""
    path = tmp_path / "hosttune"
    path.write_text(f"#!/bin/sh\nexport PYTHONPATH={ROOT}\nexec {CALL}\n")
    path.chmod(0o755)
    return tmp_path


def in_bash(command: Path, *words: str) -> list[str]:
    """What bash offers for the last word, with the file that the package installs."""
    listed = " ".join(f"'{word}'" for word in words)
    script = (
        f". {ROOT}/share/bash-completion/completions/hosttune\n"
        f'compopt() {{ echo "(compopt $*)"; }}\nCOMP_WORDS=({listed}) COMP_CWORD={len(words) - 1}\n'
        '$(complete -p hosttune | sed "s/.* -F \\([^ ]*\\) .*/\\1/") hosttune\nprintf "%s\\n" "${COMPREPLY[@]}"'
    )
    path = f"{command}:{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, env={"PATH": path})
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands_options_and_values(command: Path) -> None:
    assert in_bash(command, "hosttune", "re") == ["recover", "revert"]
    assert in_bash(command, "hosttune", "fleet", "apply", "--reb") == ["--reboot", "--reboot-guests"]
    assert in_bash(command, "hosttune", "plan", "--root", "", "--smt", "") == ["cores", "threads"]
    assert in_bash(command, "hosttune", "plan", "-f", "") == ["(compopt", "-o", "default)"]
    assert in_bash(command, "hosttune", "nosuch", "--x") == []


def test_the_boot_display_is_not_offered(tmp_path: Path) -> None:
    for address, boot in (("0000:03:00.0", "1"), ("0000:41:00.0", "0"), ("0000:42:00.0", None)):
        folder = tmp_path / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "class").write_text("0x030000\n")
        if boot is not None:
            (folder / "boot_vga").write_text(f"{boot}\n")
    offered = gpus_of(tmp_path)
    assert offered == ["0000:41:00.0", "0000:42:00.0"]


def gpus_of(root: Path) -> list[str]:
    """The addresses that `plan --gpu` offers on a root."""
    command = commands.command("plan")
    context = click.Context(command)
    context.params["root"] = str(root)
    (option,) = [one for one in command.params if one.name == "addresses"]
    return [one.value for one in gpus(context, option, "")]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_asks_the_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    assert f"_HOSTTUNE_COMPLETE={shell}_complete" in capsys.readouterr().out
