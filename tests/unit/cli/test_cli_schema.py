"""The JSON Schemas that an editor uses: every key is described, and they take what hosttune takes, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from planhosts import intent_of

import hosttune
from hosttune.cli.schema import DOCUMENTS, schema_of
from hosttune.knobs.registry import all_knobs

ROOT = Path(__file__).resolve().parents[3]
SHIPPED = ROOT / "examples/intent.schema.json"
INTENT = jsonschema.Draft202012Validator(schema_of("intent"))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_it_is_a_schema_with_a_name_of_its_own(name: str) -> None:
    schema = json.loads(json.dumps(schema_of(name)))
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"].endswith(f"/{name}/v1")


@pytest.mark.parametrize("name", ["intent", "plan"])
def test_every_property_is_described(name: str) -> None:
    parts = schema_of(name)["$defs"]
    bare = [f"{part}.{key}" for part in parts for key, value in parts[part].get("properties", {}).items()
            if not value.get("description")]  # fmt: skip
    assert bare == []


def test_the_schema_beside_the_examples_is_the_one_that_is_printed(request: pytest.FixtureRequest) -> None:
    text = json.dumps(schema_of("intent"), indent=1) + "\n"
    if request.config.getoption("--regenerate"):
        SHIPPED.write_text(text)
    assert SHIPPED.read_text() == text


@pytest.mark.parametrize("path", ["examples/three-guests.yaml", "inventories/intents/h100-train.yml"])
def test_it_takes_the_intents_of_this_repository(path: str) -> None:
    text = (ROOT / path).read_text()
    hosttune.Intent.from_yaml(text)
    assert [error.message for error in INTENT.iter_errors(yaml.safe_load(text))] == []


@pytest.mark.parametrize("wrong", [{"profle": "host"}, {"guests": [{"nam": "a"}]}, {"settings": {"governer": True}},
                                   {"settings": {"governor": "fast"}}, {"guests": {"a": {}}}])  # fmt: skip
def test_it_refuses_what_hosttune_refuses(wrong: dict[str, Any]) -> None:
    assert not INTENT.is_valid({"version": 1, **wrong})


@pytest.mark.parametrize("knob", all_knobs().values(), ids=lambda knob: knob.name)
def test_a_setting_takes_the_values_that_the_knob_takes(knob: Any) -> None:
    edges = [knob.numbers[0], knob.numbers[-1], knob.numbers[-1] + 1] if knob.numbers else []
    for value in (*knob.values, *knob.names, True, False, "keep", *edges, -1, None, [], "no such word", "2-7"):
        # A bare false is refused later, with what it may mean; that a text is a CPU list no schema can say.
        allowed = knob.accepts(value) and not (value is False and knob.false_means is not None)
        loose = isinstance(value, str) and bool(knob.cpus or knob.names)
        valid = INTENT.is_valid({"version": 1, "settings": {knob.name: value}})
        assert valid == allowed or (loose and valid), value


def test_documents_of_ours_are_valid() -> None:
    host = hosttune.discover(str(ROOT / "examples/hgx-h200-8.tar.xz"))
    intent = hosttune.Intent.from_json(json.dumps(intent_of(gpus=["0000:41:00.0"], vcpus=2, memory="1GiB")))
    for name, document in (("host", host), ("intent", intent), ("plan", hosttune.plan(host, intent))):
        errors = jsonschema.Draft202012Validator(schema_of(name)).iter_errors(json.loads(document.to_json()))
        assert [error.message for error in errors] == []
