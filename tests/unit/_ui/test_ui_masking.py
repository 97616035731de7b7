"""No response contains a secret that is in an event log."""

import json

from planted_secrets import planted
from starlette.testclient import TestClient

from penstock._ui.server import build_app


def _planted(logs):
    """Write secrets into all fields of events that pages show. Returns the secrets."""
    texts, secrets = planted()
    path = sorted((logs / "shop").glob("*.jsonl"))[-1]
    events = [json.loads(line) for line in path.read_text().splitlines()]
    pieces = iter(texts * 6)
    for event in events:
        event["message"] += " " + next(pieces)
        for exception in (event["error"] or {}).get("exceptions", ()):
            exception["message"] += "\n" + "\n".join(texts) + "\n    hint: " + next(pieces)
        body = event["details"][event["event_type"]]
        match event["event_type"]:
            case "create_update":
                body["storage"] = " ".join(texts)
                body["secret_option"] = texts[0]
            case "flow_definition":
                body["external_inputs"] = [next(pieces), next(pieces)]
                body["comment"] = next(pieces)
            case "dataset_definition":
                body["expectations"] = [{"name": "r", "condition": next(pieces), "action": "drop"}]
            case "stream_progress":
                for source in body["progress_json"]["sources"]:
                    source["description"] = next(pieces)
    warning = dict(
        events[1], level="WARN", message="\n".join(texts), event_type="hook_progress", details={}
    )
    path.write_text("\n".join(json.dumps(event) for event in [*events, warning]) + "\n")
    return secrets


def test_no_secret_of_an_event_log_is_in_a_response(logs, shop):
    secrets = _planted(logs)
    assert len(secrets) >= 50
    client = TestClient(
        build_app([shop], host="127.0.0.1", token=None), base_url="http://127.0.0.1:7070"
    )
    update = client.get("/api/pipelines/shop/update")
    assert update.status_code == 200
    answers = [update.text, client.get("/api/pipelines").text]
    answers.append(client.get("/api/pipelines/shop/updates").text)
    for card in update.json()["cards"]:
        answer = client.get("/api/pipelines/shop/dataset", params={"name": card["id"]})
        assert answer.status_code == 200
        answers.append(answer.text)
    shown = {secret for secret in secrets for text in answers if secret in text}
    assert shown == set()
    assert update.json()["update"]["state"] == "FAILED"
