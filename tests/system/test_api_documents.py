"""The package's functions take a document itself, its plain values, or the path of its file, and mean the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import hosttune
from hosttune.errors import BadInput

ROOT = Path(__file__).resolve().parents[2]
CAPTURE = ROOT / "examples/hgx-h200-8.tar.xz"
INTENT = {"version": 1, "guests": [{"name": "train", "gpus": ["0000:41:00.0"], "disk": "/images/a.qcow2"}]}


@pytest.fixture(scope="module")
def host() -> hosttune.Host:
    return hosttune.discover(CAPTURE)


def test_each_way_to_give_a_host_and_an_intent_is_the_same_plan(host: hosttune.Host, tmp_path: Path) -> None:
    (tmp_path / "intent.yaml").write_text(hosttune.Intent.from_json(json.dumps(INTENT)).to_yaml())
    (tmp_path / "host.json").write_text(host.to_json())
    plan = hosttune.plan(host, hosttune.Intent.from_json(json.dumps(INTENT)))
    assert hosttune.plan(CAPTURE, INTENT) == plan
    assert hosttune.plan(json.loads(host.to_json()), tmp_path / "intent.yaml") == plan
    assert hosttune.plan(str(tmp_path / "host.json"), str(tmp_path / "intent.yaml")) == plan
    (tmp_path / "plan.json").write_text(plan.to_json())
    assert hosttune.domain_xml(tmp_path / "plan.json", "train") == hosttune.domain_xml(plan, "train")
    assert hosttune.predict(host, json.loads(plan.to_json())) == hosttune.predict(host, plan)
    assert hosttune.validate(host, expect=tmp_path / "plan.json") == hosttune.validate(host, expect=plan)


@pytest.mark.parametrize(
    ("call", "what", "where"),
    [
        (lambda host: hosttune.plan(host, cast(Any, 7)), "int is not a document", "intent"),
        (lambda host: hosttune.plan(host, {"version": 1, "guest": []}), "unknown key 'guest'", "intent: guest"),
        (lambda host: hosttune.plan(host, host), "Host", "intent"),
        (lambda host: hosttune.plan(INTENT, INTENT), "another kind: Intent", "host"),
        (lambda host: hosttune.plan(host, {"version": 1, "guests": object()}), "not plain values", "intent"),
        (lambda host: hosttune.plan(host, "/no/such.yaml"), "cannot read", "/no/such.yaml"),
        (lambda host: hosttune.domain_xml({"schema": "hosttune.plan/v9"}, "train"), "hosttune.plan/v9", "plan"),
        (lambda host: hosttune.lint(["/no/such.xml"], host), "cannot read", "/no/such.xml"),
        (lambda host: hosttune.diagnose(), "nothing to diagnose", "diagnose"),
        (lambda host: hosttune.validate(host, against={"schema": "x"}), "its schema is 'x'", "validation"),
    ],
)
def test_what_cannot_be_used_is_one_clear_error(
    host: hosttune.Host, call: Callable[[Any], object], what: str, where: str
) -> None:
    with pytest.raises(BadInput) as caught:
        call(host)
    assert what in caught.value.what
    assert caught.value.where == where
    assert caught.value.hint
