"""The JSON schema of the spec file, for editors that complete and check keys.

`docs/pipeline.schema.json` holds this text. After a change of the keys, generate it again:

    python -c "from penstock._project import json_schema as it; print(it.schema_text(), end='')"
"""

import json

from penstock._project.spec_file import PipelineSpec


def schema_text() -> str:
    """Return the schema as a string with a trailing newline."""
    generated = PipelineSpec.model_json_schema()
    generated.pop("description", None)  # the docstring is for programmers
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **generated,
        "title": "Penstock pipeline settings",
        "description": "pipeline.yaml, or penstock.yaml next to a bundle or Lakeflow settings.",
    }
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"
