"""What libvirt's AppArmor profiles let QEMU read of nodes, and hosttune's rule in the local part."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planhosts import Card, build_host, intent_of

from hosttune.linux.apparmor import (
    LOCAL,
    PROFILE,
    RULE,
    allows_node_cpus,
    includes_local,
    is_ours,
    with_rule,
    without_rule,
)
from hosttune.machine.scratch import Scratch
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.values import to_json
from hosttune.planning import plan
from hosttune.settings.apparmor import AppArmorRule

# As abstractions/libvirt-qemu has it in libvirt 9.0 of Debian 12, and in 12.8 (upstream: libvirt-qemu.in).
DEBIAN_12 = """\
  @{PROC}/sys/vm/overcommit_memory r,
  /sys/devices/system/node/ r,
  /sys/devices/system/node/node[0-9]*/meminfo r,
  # Site-specific additions and overrides. See local/README for details.
  #include <local/abstractions/libvirt-qemu>
"""
UPSTREAM = """\
   # Access to libnuma
   /sys/devices/system/node/*/cpumap r,
"""


@pytest.mark.parametrize(
    ("profile", "allowed"),
    [
        (DEBIAN_12, False),
        (UPSTREAM, True),
        (f"  {RULE}\n", True),
        ("  @{sys}/devices/system/node/** r,\n", True),
        ("  @{sys}/devices/system/node/node*/* rw,\n", True),
        ("  /sys/devices/** r,\n", True),
        ("  # /sys/devices/system/node/*/cpumap r,\n", False),
        ("  /sys/devices/system/node/*/cpumap w,\n", False),
        ("  /sys/devices/system/node/*/meminfo r,\n", False),
        ("  /sys/devices/system/cpu/** r,\n", False),
        ("", False),
    ],
)
def test_which_profiles_allow_it(profile: str, allowed: bool) -> None:
    assert allows_node_cpus(profile) == allowed
    assert allows_node_cpus(None, profile) == allowed


def test_which_profiles_take_their_local_part_in() -> None:
    assert includes_local(DEBIAN_12)
    assert includes_local("  include if exists <local/abstractions/libvirt-qemu>\n")
    assert not includes_local("  include if exists <abstractions/libvirt-qemu.d>\n")
    assert not includes_local(UPSTREAM)


@given(st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")))
def test_the_local_part_gets_the_rule_and_loses_it_again(text: str | None) -> None:
    added = with_rule(text)
    assert is_ours(added)
    assert allows_node_cpus(added)
    back = without_rule(added)
    assert back == text or (text and back == f"{text}\n")


def test_a_profile_that_ignores_its_local_part_is_left_to_a_person(tmp_path: Path) -> None:
    for path, text in ((PROFILE, "  include if exists <abstractions/libvirt-qemu.d>\n"), (LOCAL, "")):
        file = tmp_path / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    why = AppArmorRule.of(LOCAL).waits_for(Scratch(str(tmp_path)))
    assert why == f"{PROFILE} does not include {LOCAL}: put the rule {RULE!r} into the profile by hand"
    (tmp_path / PROFILE.lstrip("/")).write_text(DEBIAN_12)
    assert AppArmorRule.of(LOCAL).waits_for(Scratch(str(tmp_path))) is None


@pytest.mark.parametrize("pages", ["none", "2MiB", "1GiB"])
@pytest.mark.parametrize(
    ("libvirt", "reads", "wanted"),
    [
        ("9.0.0", False, True),
        (None, False, True),
        ("8.10.0", False, False),
        ("9.0.0", True, False),
        ("9.0.0", None, False),
    ],
)
def test_the_rule_is_planned_for_guests_with_any_pages(
    pages: str, libvirt: str | None, reads: bool | None, wanted: bool
) -> None:
    """Every planned guest's memory is allocated at its start. Without huge pages QEMU ended in the same way (seen on
    Debian 12: libvirt 9.0, QEMU 7.2, memory on node 1)."""
    document = build_host(cards=[Card("0000:41:00.0", 0, group=1)])
    document["virtualization"] = {"libvirt_version": libvirt, "reads_node_cpus": reads}
    host = Host.from_json(to_json(document))
    intent = intent_of(gpus=["0000:41:00.0"], vcpus=2, memory="4GiB", hugepages=pages)
    made = plan(host, Intent.from_json(to_json(intent)))
    assert made.guests
    assert [one.want for one in made.actions if one.kind == "apparmor-rule"] == [RULE] * wanted
    bare = plan(host, Intent.from_json(to_json({**intent, "guests": []})))
    assert not [one for one in bare.actions if one.kind == "apparmor-rule"]
