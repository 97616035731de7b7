"""Secrets that someone planted in an event log leave it in no response."""

import json

import pytest
from starlette.testclient import TestClient

from penstock._ui.masking import masked
from penstock._ui.server import build_app

# Spelled in pieces where a scanner of repositories would take them for real ones.
PLANTED = {
    "password=hunter2-{n}": "hunter2-{n}",
    "password: 'pa ss {n}'": "pa ss {n}",
    '"password": "json-{n}"': "json-{n}",
    "kafka.ssl.keystore.password=store-{n}": "store-{n}",
    "ssl.truststore.password = trust-{n}": "trust-{n}",
    "sasl.jaas.config=o.a.k.PlainLoginModule required user='u' password='jaas-{n}';": "jaas-{n}",
    'kafka.sasl.jaas.config="x required password=\\"deep-{n}\\";"': "deep-{n}",
    "jdbc:postgresql://me:dbpw-{n}@db/shop": "dbpw-{n}",
    "jdbc:sqlserver://db;user=sa;password=sql-{n};encrypt=true": "sql-{n}",
    "https://user:http-{n}@example.org/path": "http-{n}",
    "s3a://key{n}:s3secret-{n}@bucket/x": "s3secret-{n}",
    "fs.s3a.secret.key=s3key-{n}": "s3key-{n}",
    "fs.s3a.access.key=s3id-{n}": "s3id-{n}",
    "fs.azure.account.key.shop.dfs.core=azkey-{n}==": "azkey-{n}",
    "AWS_SECRET_ACCESS_KEY=awssecret-{n}": "awssecret-{n}",
    "SharedAccessKey=shared-{n}=": "shared-{n}",
    "https://x.blob/a?sv=1&sig=sas-{n}%3D&se=2": "sas-{n}",
    "Authorization: Bearer bearer-{n}-abcdefgh": "bearer-{n}",
    "authorization=Basic basic-{n}-abcdefgh": "basic-{n}",
    "--token tok": None,
    "token=tok-{n}": "tok-{n}",
    "DATABRICKS_TOKEN=dapi" + "0123456789abcdef" * 2: "dapi" + "0123456789abcdef" * 2,
    "the key AKIA" + "ABCDEFGHIJKLMNOP was used": "AKIA" + "ABCDEFGHIJKLMNOP",
    "jwt eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl": "c2lnbmF0dXJl",
    "api_key=api-{n}": "api-{n}",
    "client.secret=client-{n}": "client-{n}",
    "-----BEGIN PRIVATE KEY-----\nMIIE{n}\n-----END PRIVATE KEY-----": "MIIE{n}",
}


def _planted(logs):
    """Fifty and more of them, in every field of an event that reaches a page."""
    secrets, texts = [], []
    for n in (1, 2):
        for text, secret in PLANTED.items():
            texts.append(text.replace("{n}", f"{n}zq"))
            if secret is not None:
                secrets.append(secret.replace("{n}", f"{n}zq"))
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


def test_no_secret_is_in_any_response_when_a_log_holds_some(logs, shop):
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
    found = {secret for secret in secrets for text in answers if secret in text}
    assert found == set()
    assert update.json()["update"]["state"] == "FAILED"


@pytest.mark.parametrize("text", PLANTED)
def test_a_line_stays_json_when_something_is_masked(text):
    line = json.dumps({"message": text, "deep": json.dumps({"again": text}), "last": 1}).encode()
    body = json.loads(masked(line))
    assert body["last"] == 1
    secret = PLANTED[text]
    if secret is not None:
        assert secret not in json.dumps(body)


@pytest.mark.parametrize(
    "text",
    [
        "order_id IS NOT NULL AND _corrupt_record IS NULL",
        "DeltaSource[file:/srv/demo/tables/orders]",
        "file:///srv/demo",
        "a row broke expect_or_fail positive_amount in batch 0",
        "customer_key > 3",
        "tokens were counted",
        "kafka orders",
    ],
)
def test_a_text_stays_as_it_is_when_it_holds_no_secret(text):
    line = json.dumps({"message": text}).encode()
    assert masked(line) == line
