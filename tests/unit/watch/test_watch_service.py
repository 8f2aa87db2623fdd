"""`watch --install`: the shipped unit, on a scratch root and on what is taken for a machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from bootroots import Live, live, scratch

from hosttune.errors import BadInput, CommandFailed, Refused
from hosttune.watch.service import NAME, PACKAGED, PLACE, TEXTFILE, install, unit

COMMAND = "/usr/bin/hosttune"
SYSTEMD = {"run/systemd/system/x": ""}


def test_the_unit_is_the_shipped_one_for_this_command() -> None:
    text = unit(COMMAND, "/srv/prom/hosttune.prom", 30.0, keep=True)
    assert f"ExecStart={COMMAND} watch --keep --interval 30 --textfile /srv/prom/hosttune.prom\n" in text
    assert "ReadWritePaths=-/srv/prom\n" in text
    assert "ProtectKernelTunables=no\n" in text
    assert "ProtectKernelTunables=yes\n" in unit(COMMAND, TEXTFILE, None, keep=False)
    with pytest.raises(BadInput, match="cannot name this path"):
        unit(COMMAND, "/srv/%n.prom", None, keep=False)


def test_installed_read_back_and_the_same_again(tmp_path: Path) -> None:
    system, text = scratch(tmp_path, {}), unit(COMMAND, TEXTFILE, None, keep=False)
    told = install(system, text)
    assert system.read_bytes(PLACE) == text.encode()
    assert system.ran() == [
        ("systemctl", "daemon-reload"),
        ("systemctl", "enable", NAME),
        ("systemctl", "restart", NAME),
    ]
    assert told[-1] == f"undo: systemctl disable --now {NAME} && rm {PLACE} && systemctl daemon-reload"
    install(system, text)
    assert system.ran()[-1] == ("systemctl", "start", NAME)


def test_the_unit_of_a_package_is_used_and_another_ones_is_left(tmp_path: Path) -> None:
    text = unit(COMMAND, TEXTFILE, None, keep=False)
    system = scratch(tmp_path, {PACKAGED[1:]: text})
    assert install(system, text)[-1] == f"undo: systemctl disable --now {NAME}"
    assert system.read(PLACE) is None
    system.replace(PLACE, b"[Unit]\n")
    with pytest.raises(Refused, match="another unit is there"):
        install(system, text)


class Dead(Live):
    """A machine on which the unit does not stay up."""

    def run(self, argv: tuple[str, ...], *, timeout: float = 20.0) -> str:
        if argv[1] == "is-active":
            raise CommandFailed(argv, "exit code 3", "")
        return ""


def test_an_agent_that_does_not_run_is_no_success(tmp_path: Path) -> None:
    text = unit(COMMAND, TEXTFILE, None, keep=False)
    with pytest.raises(Refused, match="systemctl is-active says no"):
        install(scratch(tmp_path, SYSTEMD, Dead), text)
    with pytest.raises(Refused, match="systemd does not run here"):
        install(live(tmp_path / "b", lambda system, argv: None, {}), text)
