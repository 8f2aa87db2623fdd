"""What goes to a pipe is drawn without rich, and is what rich draws there."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console
from unit.report.test_report import odd_host

from hosttune.report.branch import Pipe, page_text
from hosttune.report.text import print_host


def test_a_pipe_is_drawn_as_by_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    out = io.StringIO()
    print_host(odd_host(), Console(file=out, width=110, color_system=None))
    assert page_text(None, lambda page: print_host(odd_host(), page)) == out.getvalue()
    pages: list[Any] = []
    monkeypatch.setenv("FORCE_COLOR", "1")
    page_text(None, pages.append)
    assert not isinstance(pages[0], Pipe)


def test_a_command_in_a_pipe_imports_no_rich() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "hosttune", "discover", "--root", "@example"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "hosttune.report.branch" in done.stderr
    assert " rich" not in done.stderr
