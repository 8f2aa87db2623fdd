"""What a message suggests for input that is almost right: known names, devices of the host, sizes with a unit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from applyroots import EXAMPLE
from hypothesis import given, settings
from hypothesis import strategies as st
from sweeps import examples

from hosttune.cli import run
from hosttune.model.hints import did_you_mean, size_hint
from hosttune.model.values import parse_size

PLAN = ("plan", "--root", str(EXAMPLE))


def message(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    """The error block of a call that is refused as bad input."""
    assert run(list(words)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return {key.strip(): text for key, text in (line.split(": ", 1) for line in err.splitlines())}


@pytest.mark.parametrize(
    ("words", "where", "meant"),
    [
        (("plna",), "command line", "plan"),
        (("fleet", "valdate"), "command line", "validate"),
        (("schema", "hots"), "NAME", "host"),
        (("plan", "--gups", "2"), "command line", "--gpus, --gpu or --vcpus"),
        ((*PLAN, "--gpus", "1", "--profile", "gest"), "--profile", "guest"),
        ((*PLAN, "--gpus", "1", "--memory", "200"), "--memory", "200GiB"),
        ((*PLAN, "--gpus", "1", "--memory", "65536"), "--memory", "65536MiB"),
        ((*PLAN, "--gpus", "1", "--memory", "200GB"), "--memory", "200GiB"),
        ((*PLAN, "--gpu", "0000:41:00.1"), "--gpu", "0000:41:00.0"),
        ((*PLAN, "--gpu", "14:00.0"), "--gpu", "0000:41:00.0, 0000:18:00.0 or 0000:04:00.0"),
        ((*PLAN, "--mig", "1g.18g"), "--mig", "1g.18gb, 1g.18gb+me or 4g.71gb"),
        (("discover", "--root", "@exmple"), "@exmple", "@example"),
        (("plan", "--root", "@Example", "--gpus", "1"), "@Example", "@example"),
    ],
)
def test_what_was_probably_meant(
    words: tuple[str, ...], where: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = message(capsys, *words)
    assert (found["where"], found["do"].partition("? ")[0]) == (where, f"did you mean {meant}")


@pytest.mark.parametrize(
    ("text", "where", "do"),
    [
        ("profile: fast", "profile", "write guest, host or none"),
        ("profil: host", "profil", "did you mean profile? known here: version"),
        ("settings: {ksn: 1}", "settings.ksn", "did you mean ksm? known: governor"),
        ("settings: {governor: performnce}", "settings.governor", "did you mean performance? allowed: performance"),
        ("guests: [{name: a, gpus: 1, vcpsu: 2}]", "guests[0].vcpsu", "did you mean vcpus? known here: name"),
        ("guests: [{name: a, gpus: 1, smt: core}]", "guests[0].smt", "did you mean cores? write cores or threads"),
        ('guests: [{name: a, gpus: "2"}]', "guests[0].gpus", "write a number without quotation marks, or a list of"),
        ('guests: [{name: a, gpus: 1, vcpus: "2"}]', "guests[0].vcpus", "write a number without quotation marks"),
        ("guests: [{name: a, gpus: 1, memory: 64}]", "guests[0].memory", "did you mean 64GiB? a number without a unit"),
        ("guests: [{name: a, gpus: 1, memory: 4KiB}]", "guests[0].memory", "give 1MiB or more"),
        ("guests: {train: {gpus: 1}}", "guests", "write a list of guests, each beginning with `- name: NAME`"),
        ("guests: train", "guests", "write a list of guests, each beginning with `- name: NAME`"),
        ("reserve: {memory_per_node: 8}", "reserve.memory_per_node", "did you mean 8GiB?"),
    ],
)
def test_what_an_intent_probably_means(
    text: str, where: str, do: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "intent.yaml"
    path.write_text(f"version: 1\n{text}\n")
    found = message(capsys, *PLAN, "-f", str(path))
    assert found["where"] == f"{path}: {where}"
    assert found["do"].startswith(do)


@given(st.text(), st.sets(st.text()), st.text())
@settings(max_examples=examples(100, full=2000))
def test_only_known_names_are_suggested_and_the_hint_stays(word: str, names: set[str], hint: str) -> None:
    found = did_you_mean(word, names, hint)
    assert found.endswith(hint)
    assert found == hint or any(f"did you mean {name}" in found for name in names)


@given(st.text() | st.from_regex(r" ?[0-9]{1,4}(\.[0-9])? ?[kKmMgGtTx]i?[bB]?", fullmatch=True))
@settings(max_examples=examples(100, full=2000))
def test_a_suggested_size_is_one(text: str) -> None:
    meant = re.fullmatch(r"did you mean (.*)\? hint", size_hint(text, "hint"), re.DOTALL)
    if meant and re.fullmatch(r"[1-9][0-9]*[KMGT]iB", meant[1]):  # else zero, or parts of a byte
        assert parse_size(meant[1], where="test") > 0
    elif meant:
        assert re.fullmatch(r"[0-9]+(\.[0-9]+)?[KMGT]iB", meant[1])


def test_a_model_that_no_gpu_has_is_answered_with_those_that_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "intent.yaml"
    path.write_text("version: 1\nguests: [{name: a, gpus: {count: 1, model: H20O}}]\n")
    assert run([*PLAN, "-f", str(path)]) == 1
    out = capsys.readouterr().out
    assert "1 GPU wanted of model H20O, 0 on this host, 0 free" in out
    assert "this host has NVIDIA H200" in out
