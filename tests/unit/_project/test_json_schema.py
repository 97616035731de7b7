import json
from pathlib import Path

from penstock._project.json_schema import schema_text
from penstock._project.spec_file import PipelineSpec, keys_of

ROOT = Path(__file__).resolve().parents[3]


def test_published_schema_is_up_to_date():
    published = (ROOT / "docs" / "pipeline.schema.json").read_text(encoding="utf-8")
    assert published == schema_text(), "outdated: regenerate it with penstock._project.json_schema"


def test_schema_has_every_key_with_a_description():
    schema = json.loads(schema_text())
    assert set(schema["properties"]) == set(keys_of(PipelineSpec))
    assert all("description" in part for part in schema["properties"].values())
    assert schema["additionalProperties"] is False
    values = schema["properties"]["configuration"]["additionalProperties"]["anyOf"]
    assert {part["type"] for part in values} == {"string", "boolean", "integer", "number"}
    table = schema["properties"]["tables"]["additionalProperties"]["anyOf"]
    assert {"type": "string"} in table
