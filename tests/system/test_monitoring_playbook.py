"""playbooks/monitoring.yml: check mode writes nothing, a run writes what it should, a second changes nothing."""

from __future__ import annotations

import configparser
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bootstraps import picture
from exposed import PATH, needs_promtool, promtool
from modulepython import module_python
from sweeps import FULL

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = """
rule_files:
  - rules/hosttune.yml
scrape_configs:
  - job_name: hosttune
    file_sd_configs:
      - files: [hosttune-targets.json]
"""


whole_sweep = pytest.mark.skipif(not FULL, reason="of the whole sweep: a run takes five seconds of a CPU")


class Place:
    """Two hosts of one inventory, both this machine with folders of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("etc/prometheus", "etc/default", "units", "home"):
            (root / name).mkdir(parents=True)
        (root / "etc/prometheus/prometheus.yml").write_text(PROMETHEUS)
        (root / "etc/default/prometheus-node-exporter").write_text('# by hand\nARGS="--web.listen-address=:9100"\n')

    def play(self, *options: str, first: Path | None = None, **variables: Any) -> tuple[str, dict[str, dict[str, int]]]:
        """Run the playbook. `first`: a folder of programs that are found before those of the machine."""
        local = {
            "ansible_connection": "local",
            "ansible_python_interpreter": module_python(self.root / "home" / "python"),
        }
        found = {
            **{"hosttune_textfiles": str(self.root / "textfiles"), "hosttune_command": "/opt/x/bin/hosttune"},
            **{"hosttune_monitoring_packages": [], "hosttune_monitoring_start": False, "hosttune_hosts": "all"},
            **{"hosttune_unit_folder": str(self.root / "units")},
            **{"hosttune_node_exporter": str(self.root / "etc/default/prometheus-node-exporter")},
            **{"hosttune_prometheus_folder": str(self.root / "etc/prometheus")},
            **{"hosttune_dashboards": str(self.root / "dashboards"), **local, **variables},
        }
        groups: dict[str, Any] = {"hosttune_monitoring": {"hosts": {"prom": {}}}}
        hosts = {"gpu1": {"ansible_host": "192.0.2.1"}, "gpu2": {"ansible_host": ""}}
        inventory = self.root / "inventory.json"
        inventory.write_text(json.dumps({"all": {"hosts": hosts, "children": groups, "vars": found}}))
        tool = Path(sys.executable).with_name("ansible-playbook")
        environment = {
            **{
                "PATH": f"{first or tool.parent}:{tool.parent}:{PATH}",
                "LC_ALL": "C.UTF-8",
                "HOME": str(self.root / "home"),
            },
            **{"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
        }
        done = subprocess.run(
            [str(tool), "-i", str(inventory), str(ROOT / "playbooks" / "monitoring.yml"), *options],
            capture_output=True, text=True, check=False, env=environment, cwd=ROOT, timeout=300,
        )  # fmt: skip
        text = done.stdout + done.stderr
        lines = re.findall(r"^(\w+)\s+: (ok=.*)$", text, re.M)
        assert lines, text
        return text, {name: {k: int(n) for k, n in re.findall(r"(\w+)=(\d+)", rest)} for name, rest in lines}


def test_the_units_are_what_systemd_reads() -> None:
    for name, section in (
        ("hosttune-metrics.service", "Service"),
        ("hosttune-metrics.timer", "Timer"),
        ("hosttune-watch.service", "Service"),
    ):
        unit = configparser.ConfigParser(interpolation=None, strict=False)
        unit.read(ROOT / "playbooks" / "files" / name)
        assert {"Unit", section} <= set(unit.sections())


@needs_promtool
def test_check_mode_then_a_run_then_a_second_one(tmp_path: Path) -> None:
    place = Place(tmp_path)
    options = ("--diff", "--limit", "gpu1,prom")
    before = picture(tmp_path)
    text, counts = place.play("--check", *options, "-e", "hosttune_agent=false")
    assert all(one["failed"] == 0 for one in counts.values()), text
    assert counts["gpu1"]["changed"] == 3
    assert "+ExecStart=/opt/x/bin/hosttune metrics" in text
    new = {path for path in picture(tmp_path) if path not in before and not path.startswith(f"{tmp_path}/home")}
    assert new == {f"{tmp_path}/inventory.json"}
    text, counts = place.play(*options, hosttune_runbooks="https://example.com/runbooks")
    assert all(one["failed"] == 0 for one in counts.values()), text
    assert {name: one["changed"] for name, one in counts.items() if name != "localhost"} == {"gpu1": 3, "prom": 5}
    of_a_host(tmp_path)
    of_prometheus(tmp_path)
    before = picture(tmp_path)
    text, counts = place.play(*options, hosttune_runbooks="https://example.com/runbooks")
    assert {one["changed"] for one in counts.values()} == {0}, text
    after = picture(tmp_path)
    written = {path for path in after if before.get(path) != after[path]}
    assert all(path.startswith((f"{tmp_path}/inventory.json", f"{tmp_path}/home")) for path in written)


def of_a_host(tmp_path: Path) -> None:
    folder = tmp_path / "textfiles"
    service = configparser.ConfigParser(interpolation=None, strict=False)
    service.optionxform = str  # type: ignore[method-assign,assignment]
    service.read(tmp_path / "units" / "hosttune-watch.service")
    assert service["Service"]["ReadWritePaths"] == f"-{folder}"
    assert service["Service"]["ExecStart"] == f"/opt/x/bin/hosttune watch --textfile {folder}/hosttune.prom"
    options = (tmp_path / "etc/default/prometheus-node-exporter").read_text()
    assert options == f'# by hand\nARGS="--collector.textfile.directory={folder} --web.listen-address=:9100"\n'


def of_prometheus(tmp_path: Path) -> None:
    targets = json.loads((tmp_path / "etc/prometheus/hosttune-targets.json").read_text())
    assert [(one["labels"]["instance"], *one["targets"]) for one in targets] == [
        ("gpu1", "192.0.2.1:9100"),
        ("gpu2", "gpu2:9100"),
    ]
    rules = (tmp_path / "etc/prometheus/rules/hosttune.yml").read_text()
    assert "runbook_url: https://example.com/runbooks/HosttuneStale.md" in rules
    assert promtool("check", "config", str(tmp_path / "etc/prometheus/prometheus.yml"))[0] == 0
    assert {path.name for path in (tmp_path / "dashboards").iterdir()} == {"host.json", "fleet.json"}


@needs_promtool
@whole_sweep
@pytest.mark.parametrize(
    ("variables", "config", "says"),
    [
        ({"hosttune_command": ["hosttune", "-v"]}, PROMETHEUS, "hosttune_command must be the absolute path"),
        ({"hosttune_command": "/x %n"}, PROMETHEUS, "hosttune_command must be the absolute path"),
        ({}, "scrape_configs: []\n", "lacks a job with the name hosttune"),
        ({"hosttune_prometheus_folder": "/nowhere/x"}, PROMETHEUS, "/nowhere"),
    ],
)
def test_what_cannot_work_is_said(tmp_path: Path, variables: dict[str, Any], config: str, says: str) -> None:
    place = Place(tmp_path)
    (tmp_path / "etc/prometheus/prometheus.yml").write_text(config)
    text, counts = place.play("--check", "--limit", "gpu1,prom", **variables)
    assert sum(one["failed"] for one in counts.values()) == 1, text
    assert says in text
    assert os.path.exists("/nowhere") is False


@whole_sweep
@pytest.mark.parametrize(
    "options",
    [
        "ARGS='--web.listen-address=:9100'",
        'ARGS="--collector.textfile.directory=/x"',
        '# ARGS="--collector.textfile.directory={folder}"\nARGS="--collector.textfile.directory=/x"',
        'ARGS="--collector.textfile.directory={folder}-of-others"',
    ],
)
def test_a_node_exporter_that_would_not_read_the_folder_is_said(tmp_path: Path, options: str) -> None:
    place = Place(tmp_path)
    (tmp_path / "etc/default/prometheus-node-exporter").write_text(options.format(folder=tmp_path / "textfiles") + "\n")
    text, counts = place.play("--limit", "gpu1")
    assert counts["gpu1"]["failed"] == 1, text
    assert f"does not name {tmp_path}/textfiles" in " ".join(text.split())
    assert not list((tmp_path / "units").iterdir())


@whole_sweep
@pytest.mark.parametrize(
    "options", ["ARGS='--collector.textfile.directory={folder}'", "ARGS=--collector.textfile.directory={folder}/"]
)
def test_a_node_exporter_that_reads_the_folder_by_another_form_is_left_as_it_is(tmp_path: Path, options: str) -> None:
    place = Place(tmp_path)
    path = tmp_path / "etc/default/prometheus-node-exporter"
    path.write_text(text := options.format(folder=tmp_path / "textfiles"))
    said, counts = place.play("--limit", "gpu1")
    assert (counts["gpu1"]["failed"], path.read_text()) == (0, text), said


# Says that each unit runs and is enabled until it was stopped and disabled, and keeps what it was asked.
SYSTEMCTL = """#!/bin/sh
echo "$@" >>{log}
case "$*" in
*show*) echo LoadState=loaded; echo UnitFileState=enabled
  if grep -q "^stop $(echo "$*" | grep -o 'hosttune-[a-z.]*')" {log}; then echo ActiveState=inactive
  else echo ActiveState=active; fi ;;
*is-enabled*) ! grep -q "^disable $(echo "$*" | grep -o 'hosttune-[a-z.]*')" {log} && echo enabled ;;
esac
"""


@whole_sweep
def test_the_timer_is_ended_where_the_agent_is_installed(tmp_path: Path) -> None:
    place, log = Place(tmp_path), tmp_path / "asked"
    (tmp_path / "units" / "hosttune-metrics.timer").touch()
    tool = tmp_path / "bin" / "systemctl"
    tool.parent.mkdir()
    tool.write_text(SYSTEMCTL.format(log=log))
    tool.chmod(0o755)
    text, counts = place.play("--limit", "gpu1", first=tool.parent, hosttune_monitoring_start=True)
    assert counts["gpu1"]["failed"] == 0, text
    asked = log.read_text().splitlines()
    assert {"stop hosttune-metrics.timer", "disable hosttune-metrics.timer"} <= set(asked)
    assert "restart hosttune-watch.service" in asked
