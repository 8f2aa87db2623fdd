"""The collection as a stranger has it: built, installed by ansible-galaxy, its role in a company's play."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleethosts import BIN, INTENT, ROOT, Fleet, Played, simulated

PLAY = """- hosts: all
  gather_facts: false
  roles: [hosttune.host.gpu_host]
"""


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which ansible-galaxy has installed the tarball."""
    folder = tmp_path_factory.mktemp("collection")
    key, sums = folder / "key", folder / "SHA256SUMS"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    build = [sys.executable, "packaging/build.py", "--only", "collection", "--out", str(folder), "--key", str(key)]
    subprocess.run(build, check=True, cwd=ROOT)
    (folder / "signers").write_text(f"release {key.with_suffix('.pub').read_text()}")
    verify = ["ssh-keygen", "-Y", "verify", "-n", "hosttune-packages", "-f", str(folder / "signers"), "-I", "release"]
    subprocess.run([*verify, "-s", f"{sums}.sig"], input=sums.read_bytes(), check=True)
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", sums], check=True, cwd=folder)
    (tarball,) = folder.glob("hosttune-host-*.tar.gz")
    galaxy = [str(BIN / "ansible-galaxy"), "collection", "install", "--offline", "-p", str(folder), str(tarball)]
    subprocess.run(galaxy, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    return folder


@pytest.fixture
def company(pristine: Path, tmp_path: Path, collections: Path) -> Iterator[Fleet]:
    """A web server and two GPU hosts in one inventory; hosttune is there only as the collection."""
    config = tmp_path / "ansible.cfg"
    config.write_text(f"[defaults]\ncollections_path = {collections}\n")
    (tmp_path / "site.yml").write_text(PLAY)
    with simulated(pristine, tmp_path, ("web1", "h1", "h2")) as hosts:
        yield dataclasses.replace(hosts, gpu_hosts=("h1", "h2"), config=config)


def play(company: Fleet, *words: str, code: int = 0) -> Played:
    """The company's play without the installation, or what `words` name."""
    words = (
        words if words and "." in words[0] else (str(company.folder / "site.yml"), "--skip-tags", "bootstrap", *words)
    )
    return company.ansible("ansible-playbook", *words, code=code)


def test_a_role_in_a_play_of_a_company(company: Fleet) -> None:
    """Planned, applied and validated on the GPU hosts alone, with hooks, a report and a page; then again by one tag."""
    before = company.root("web1").tree()
    drained = company.folder / "drain.yml"
    drained.write_text(f"- ansible.builtin.shell: echo {{{{ inventory_hostname }}}} >> {company.folder}/drained\n")
    company.variables["hosttune_drain"] = str(drained)
    company.hosts["h2"]["hosttune_intent"] = {"version": 1, "guests": [{"name": "big", "gpus": 9}]}
    out = play(company, "--tags", "plan,apply,report", "--diff", code=2).out
    assert company.executions() == {"web1": 0, "h1": 5, "h2": 1, "others": 1}  # the hook among them
    assert (company.folder / "drained").read_text() == "h1\n"
    assert company.root("web1").tree() == before
    assert company.root("h1").driver("0000:41:00.0") == "vfio-pci"
    assert '"plan: 2 hosts: 1 ok, 1 no"' in out
    assert '"worst: h2: no: guest big is not placed' in out
    page = company.results / "apply.html"
    assert f'"page: {page}"' in out
    assert "</html>" in page.read_text()

    company.hosts["h2"]["hosttune_intent"] = INTENT
    out = play(company, "--tags", "validate").out
    assert company.executions() == {"web1": 0, "h1": 1, "h2": 1}
    assert '"validate: 2 hosts: 2 ok (' in out
    assert '"worst: h' in out


def test_a_wheelhouse_without_its_signature_is_refused_behind_a_web_server_too(company: Fleet) -> None:
    (company.folder / "index.json").write_text('{"version": "1", "archives": {}}')
    named = {"wheelhouse": company.folder, "wheelhouse_signers": company.folder / "none", "wheelhouse_identity": "x"}
    company.variables.update({f"hosttune_{name}": str(value) for name, value in named.items()})
    out = company.ansible("ansible-playbook", str(company.folder / "site.yml"), "--tags", "bootstrap", code=2).out
    assert out.count("index.json is not signed by x") >= 2
    assert company.executions()["web1"] == 0


def test_playbooks_by_name(company: Fleet) -> None:
    play(company, "hosttune.host.validate", "--limit", "web1,h1")
    assert company.executions() == {"web1": 0, "h1": 1, "h2": 0}
    company.variables["hosttune_hosts"] = "h2"
    play(company, "hosttune.host.discover")
    assert company.executions() == {"web1": 0, "h1": 0, "h2": 1}
    out = play(company, "hosttune.host.validate", "-e", "hosttune_hosts=rack9", code=2).out
    assert "hosttune_hosts matches no host of the inventory: rack9" in out


def test_nothing_is_chosen_for_who_writes(company: Fleet) -> None:
    """Neither the group nor the variable: nothing is changed, and both ways are named; who only reads visits all."""
    inventory = company.inventory()
    inventory.write_text(inventory.read_text().replace('"gpu_hosts"', '"others"'))
    environment = company.environment()
    for words in (
        [str(company.folder / "site.yml")],
        ["hosttune.host.apply"],
        ["hosttune.host.apply", "--limit", "h1"],
    ):
        done = subprocess.run(
            [str(BIN / "ansible-playbook"), "-i", str(inventory), *words],
            capture_output=True, text=True, check=False, cwd=company.folder, env=environment,
        )  # fmt: skip
        assert done.returncode == 2, done.stdout
        assert "a group gpu_hosts, or name hosts or groups: -e hosttune_hosts=PATTERN" in " ".join(done.stdout.split())
    assert set(company.executions().values()) == {0}
