"""Whom to ask and with what: inventories as Ansible reads them, options that are handed on, Ansible's environment."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from hosttune.errors import BadInput
from hosttune.fleet.inventory import config_path, environment, groups_of, options_in_config, read_inventory
from hosttune.fleet.options import RESERVED, check_variable, checked, vault

GROUPS = """\
all:
  children:
    gpu:
      children:
        rack2: {hosts: {b2: {}, b1: {}}}
        rack1: {hosts: {a1: {secret: "{{ undefined_anywhere }}"}}}
    rest: {hosts: {z: {}}}
    empty: {hosts: {}}
"""


def inventory(folder: Path, text: str, name: str = "inventory.yml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


# --- inventories ---------------------------------------------------------------------------------------------


def test_hosts_come_in_the_inventorys_order_with_their_groups(tmp_path: Path) -> None:
    found = read_inventory([inventory(tmp_path, GROUPS)], "all")
    assert found.hosts == ("z", "b2", "b1", "a1")  # as Ansible would ask them: hosts of outer groups first
    assert found.groups == {
        "b2": ("gpu", "rack2"), "b1": ("gpu", "rack2"), "a1": ("gpu", "rack1"), "z": ("rest",),
    }  # fmt: skip


def test_a_limit_keeps_the_order(tmp_path: Path) -> None:
    assert read_inventory([inventory(tmp_path, GROUPS)], "gpu:!b2").hosts == ("b1", "a1")


COMPANY = """\
all:
  children:
    web: {hosts: {web1: {}, web2: {}}}
    %s: {hosts: {g1: {}, g2: {hosttune_level: 1}}}
"""


@pytest.mark.parametrize(
    ("group", "more", "hosts", "told"),
    [
        ("gpu_hosts", (), ("g1", "g2"), "not in the group gpu_hosts: web1, web2; --limit PATTERN"),
        ("other", ("one,two",), ("one", "two", "g2"), "not with hosttune_*: web1, web2, g1; --limit PATTERN"),
    ],
)
def test_other_machines_of_an_inventory_are_left_out(
    tmp_path: Path, group: str, more: tuple[str, ...], hosts: tuple[str, ...], told: str
) -> None:
    """A list of names is an inventory, too."""
    found = read_inventory([inventory(tmp_path, COMPANY % group), *more], None)
    assert found.hosts == hosts
    assert told in found.told_left_out()


def test_an_inventory_that_names_no_host_of_hosttunes(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        read_inventory([inventory(tmp_path, GROUPS)], None)
    assert "--limit PATTERN (all: every host)" in str(caught.value.hint)


@pytest.mark.sweep(most=4)
@pytest.mark.parametrize(
    ("limit", "what"),
    [
        ("nosuch", "Could not match supplied host pattern, ignoring: nosuch"),
        ("a1,nosuch", "Could not match supplied host pattern, ignoring: nosuch"),
        ("empty", "leaves us with no hosts to target"),
        ("a1:!gpu", "leaves us with no hosts to target"),
    ],
)
def test_a_limit_that_names_nobody_is_bad_input(tmp_path: Path, limit: str, what: str) -> None:
    with pytest.raises(BadInput, match=what) as refused:
        read_inventory([inventory(tmp_path, GROUPS)], limit)
    assert refused.value.where.endswith(f"inventory.yml, --limit {limit}")


@pytest.mark.sweep(most=4)
@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("all:\n  hosts:\n   a: {\n", r"While parsing a flow(?s:.*)at \S+/inventory.yml:[0-9]+:[0-9]+"),
        ("- a\n- b\n", "inventory"),
        ("all:\n  hosts:\n", "it has no host"),
        ("", "it has no host"),
    ],
)
def test_an_inventory_that_does_not_read_or_is_empty_is_named(tmp_path: Path, text: str, what: str) -> None:
    path = inventory(tmp_path, text)
    with pytest.raises(BadInput) as refused:
        read_inventory([path], None)
    assert re.search(what, str(refused.value))
    assert path in refused.value.where


@pytest.mark.sweep(most=4)
@pytest.mark.parametrize(
    ("name", "text", "cause"),
    [
        ("i.yml", "all: {hosts: {'[1]': {}}}", "host range must be begin:end"),
        ("i.ini", "[g\nweb1\n", "not enough values to unpack"),
        ("i", "web1 x\n", "Expected key=value host variable assignment, got: x"),
    ],
)
def test_the_cause_is_that_of_the_kind_of_inventory_that_was_meant(
    tmp_path: Path, name: str, text: str, cause: str
) -> None:
    with pytest.raises(BadInput, match=cause):
        read_inventory([inventory(tmp_path, text, name)], None)


def test_a_script_that_fails_is_told(tmp_path: Path) -> None:
    path = tmp_path / "dynamic"
    path.write_text("#!/bin/sh\nexit 3\n")
    path.chmod(0o755)
    with pytest.raises(BadInput, match="non-zero exit code 3"):
        read_inventory([str(path)], None)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_would_be_read_without_end_is_refused(tmp_path: Path, kind: str) -> None:
    """Ansible waits for a pipe that nobody writes to, and reads /dev/zero until memory ends."""
    source = "/dev/null"
    if kind == "pipe":
        source = str(tmp_path / "pipe")
        os.mkfifo(source)
    with pytest.raises(BadInput, match="neither a file nor a directory"):
        read_inventory([source], None)


def test_a_file_that_is_not_there_is_told_without_asking_ansible(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such inventory") as refused:
        read_inventory([str(tmp_path / "none.yml")], None)
    assert refused.value.where == "-i"


@pytest.mark.sweep(most=4)
@pytest.mark.parametrize("name", ["a\\nb", "!a", "&a", "@a", " a", "a "])
def test_a_name_that_a_limit_cannot_carry_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match=r"name cannot be used|cannot be called|inventory"):
        read_inventory([inventory(tmp_path, f'all: {{hosts: {{"{name}": {{}}, b: {{}}}}}}')], None)


def test_a_hostile_name_is_a_name(tmp_path: Path) -> None:
    names = ["a b", "web*", "~re", "a:b", "größe", "'\"`$(id)", "{{ x }}", "../up"]
    found = read_inventory([inventory(tmp_path, json.dumps({"all": {"hosts": {name: {} for name in names}}}))], "all")
    assert found.hosts == tuple(names)


def test_groups_without_a_document_are_none() -> None:
    assert groups_of("no JSON", ("a",)) == {}
    assert groups_of('{"g": {"children": ["g"], "hosts": ["a", "b"]}, "_meta": {"hostvars": {}}}', ("a",)) == {
        "a": ("g",)
    }


# --- options behind -- ---------------------------------------------------------------------------------------


def test_known_options_are_handed_on_as_they_are() -> None:
    words = ("--become", "-u", "root", "--private-key=key", "-vv", "-e", "x=1", "--vault-password-file", "v")
    assert checked(words) == words
    assert vault(words) == ("--vault-password-file", "v")
    assert vault(("--vault-id=a@b", "-u", "x")) == ("--vault-id=a@b",)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["-i", "x"], "option of hosttune fleet itself"),
        (["--limit=x"], "option of hosttune fleet itself"),
        (["-f", "5"], "option of hosttune fleet itself"),
        (["--check"], "option of hosttune fleet itself"),
        (["-K"], "would ask for a password"),
        (["--ask-vault-pass"], "would ask for a password"),
        (["--vault-id", "a@prompt"], "cannot be asked for"),
        (["--list-hosts"], "not handed on"),
        (["--step"], "not handed on"),
        (["-u"], "needs a value"),
        (["-v", "other.yml"], "unexpected argument 'other.yml'"),
        (["--become", "--", "x"], "not handed on"),
        (["-e", "hosttune_run=x"], "cannot be given as a variable"),
    ],
)
def test_options_that_change_whom_it_asks_are_refused(words: list[str], what: str) -> None:
    with pytest.raises(BadInput, match=what):
        checked(words)


@pytest.mark.parametrize("name", RESERVED)
def test_variables_of_the_command_itself_are_refused(name: str) -> None:
    with pytest.raises(BadInput, match=name):
        check_variable(f"{name}=x")
    check_variable(f"my_{name}=x")


# --- the environment -----------------------------------------------------------------------------------------


def test_safe_defaults_stand_where_nobody_says_otherwise() -> None:
    added = environment({"PATH": "/bin"}, frozenset())
    assert added["ANSIBLE_HOST_KEY_CHECKING"] == "True"  # ansible-runner would turn it off
    assert added["ANSIBLE_FORKS"] == "50"
    assert added["ANSIBLE_PIPELINING"] == "True"
    assert "ServerAliveInterval" in added["ANSIBLE_SSH_ARGS"]
    assert added["ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED"] == "True"
    assert added["PATH"] == f"{os.path.dirname(sys.executable)}:/bin"


def test_the_users_variables_and_configuration_keep_their_say(tmp_path: Path) -> None:
    config = tmp_path / "ansible.cfg"
    config.write_text("[defaults]\nforks = 7 ; few\nhost_key_checking = False\n[ssh_connection]\nssh_args = -o A=b\n")
    own = {"ANSIBLE_CONFIG": str(tmp_path), "ANSIBLE_PIPELINING": "False", "NCCL_NVLS_ENABLE": "0", "HTTP_PROXY": "p"}
    assert config_path(own) == str(config)
    added = environment(own, options_in_config(own))
    assert not {"ANSIBLE_FORKS", "ANSIBLE_PIPELINING", "ANSIBLE_SSH_ARGS"} & set(added)
    assert added["ANSIBLE_HOST_KEY_CHECKING"] == "False"
    assert not {name for name in added if name.startswith(("NCCL", "TORCH", "NVSHMEM", "HTTP"))}


def test_a_configuration_that_does_not_parse_is_ansibles_to_tell(tmp_path: Path) -> None:
    (tmp_path / "ansible.cfg").write_text("forks = 7\n")
    assert options_in_config({"ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg")}) == frozenset()
