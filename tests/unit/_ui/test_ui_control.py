"""Requests to the dashboard that change something, and the permissions that they need."""

import pytest
from planted_secrets import planted
from starlette.testclient import TestClient

from penstock._tables.read.row_selection import RowSelection, row_id
from penstock._ui.guard import CONTROL_HEADER
from penstock._ui.recording import Recording
from penstock._ui.server import build_app
from penstock.errors import SetupError

HERE = "http://127.0.0.1:7070"
TOKEN = "a-long-enough-token"
NAME = "spark_catalog.default.silver"
ACTIONS = {"start": {}, "stop": {}, "replay": {"name": NAME}}
MOST = {"start": 4096, "stop": 4096, "replay": 65536}
ROW = row_id("part-00000-0a1b.c000.snappy.parquet", 12)
RIGHT = {"authorization": f"Bearer {TOKEN}", CONTROL_HEADER: "1", "origin": HERE}


class Acted:
    """A control that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict]] = []
        self.refusal = ""

    def state(self) -> dict:
        return {"runs": None, "is_stopping": False, "jobs": []}

    def start(self, **body) -> None:
        self._note("start", body)

    def stop(self, **body) -> None:
        self._note("stop", body)

    def replay(self, dataset, *, rules, rows) -> None:
        self._note("replay", {"dataset": dataset, "rules": list(rules), "rows": list(rows)})

    def _note(self, what, body) -> None:
        if self.refusal:
            raise SetupError("CONTROL_REFUSED", self.refusal)
        self.calls.append((what, body))


@pytest.fixture
def control():
    return Acted()


def _client(logs, control, *, acts=True, port=7070):
    shop = Recording(key="shop", label="shop", directory=logs / "shop", control=control)
    copied = Recording(key="copied", label="copied", directory=logs / "shop")
    app = build_app([shop, copied], host="127.0.0.1", token=TOKEN if acts else None, acts=acts)
    return TestClient(app, base_url=f"http://127.0.0.1:{port}", follow_redirects=False)


@pytest.fixture
def client(logs, control):
    return _client(logs, control)


def _post(client, action, headers=RIGHT, key="shop", **body):
    return client.post(f"/api/pipelines/{key}/{action}", headers=headers, json=body)


def test_request_with_the_right_token_is_executed(client, control):
    assert client.get("/api/pipelines/shop/control", headers=RIGHT).json()["enabled"] is True
    assert _post(client, "start").status_code == 202
    answer = _post(client, "start", refresh=[NAME], full_refresh=[NAME], continuous=False)
    assert answer.status_code == 202 and answer.json()["jobs"] == []
    assert _post(client, "stop", now=True).status_code == 202
    assert _post(client, "replay", name=NAME).status_code == 202
    everything = {"refresh": [], "full_refresh": [], "continuous": None}
    assert control.calls == [
        ("start", everything),
        ("start", {"refresh": [NAME], "full_refresh": [NAME], "continuous": False}),
        ("stop", {"now": True}),
        ("replay", {"dataset": NAME, "rules": [], "rows": []}),
    ]
    control.refusal = "it runs; password=hunter2-q"
    answer = _post(client, "start")
    assert answer.status_code == 409
    assert answer.json() == {"refused": "it runs; password=[redacted]"}


@pytest.mark.parametrize("action", ACTIONS)
def test_request_without_permission_is_refused(client, control, action):
    body = ACTIONS[action]
    for change, status in (
        ({"authorization": None}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": None, "cookie": "penstock_token_7070=wrong"}, 401),
        ({"authorization": None, "cookie": f"penstock_token={TOKEN}"}, 401),
        ({"authorization": None, "cookie": f"penstock_token_9999={TOKEN}"}, 401),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({CONTROL_HEADER: None}, 403),
        ({"content-type": "text/plain"}, 403),
        ({"content-type": "application/x-www-form-urlencoded"}, 403),
        (
            {
                "authorization": None,
                "origin": None,
                "cookie": f"penstock_token_7070={TOKEN}",
            },
            403,
        ),
        ({"host": "evil.example"}, 421),
        ({"content-length": str(MOST[action] + 1)}, 413),
        ({"content-length": "9" * 5000}, 413),
        ({"content-length": "-1"}, 413),
        ({"transfer-encoding": "chunked"}, 413),
    ):
        headers = {k: v for k, v in (RIGHT | change).items() if v is not None}
        answer = _post(client, action, headers, **body)
        assert answer.status_code == status, change
        assert "access-control-allow-origin" not in answer.headers
    place = f"/api/pipelines/shop/{action}?token={TOKEN}"
    headers = {k: v for k, v in RIGHT.items() if k != "authorization"}
    assert client.post(place, headers=headers, json=body).status_code == 403
    big = {**body, "more": "x" * MOST[action]}
    assert _post(client, action, **big).status_code == 413
    assert control.calls == []


@pytest.mark.parametrize(
    ("action", "body"),
    [
        ("start", {"refresh": "all"}),
        ("start", {"refresh": [1]}),
        ("start", {"refresh": [NAME] * 51}),
        ("start", {"continuous": "yes"}),
        ("start", {"command": "rm"}),
        ("stop", {"now": 1}),
        ("stop", {"pid": 1}),
        ("replay", {}),
        ("replay", {"name": None}),
        ("replay", {"name": NAME, "project": "/"}),
        ("replay", {"name": NAME, "where": "true"}),
        # An empty selection must not select all rows.
        ("replay", {"name": NAME, "rows": []}),
        ("replay", {"name": NAME, "rules": []}),
        ("replay", {"name": NAME, "rows": ROW}),
        ("replay", {"name": NAME, "rows": [1]}),
        ("replay", {"name": NAME, "rows": [ROW] * 1001}),
        ("replay", {"name": NAME, "rules": ["r"] * 21}),
        ("replay", {"name": NAME, "rules": ["r" * 301]}),
        *(("replay", {"name": NAME, "rules": [bad]}) for bad in ("", "a\nb", "a\0", "\x1b[31m", 1)),
        *(
            ("replay", {"name": NAME, "rows": [ROW, bad]})
            for bad in (
                "",
                ROW[1:],
                f"{ROW},{ROW}",
                f"{ROW}\n",
                ROW.upper(),
                "--conf=x",
                f"{ROW}" + "0" * 12,
            )
        ),
        *(("replay", {"name": NAME, "rows": [bad]}) for bad in ("0" * 16 + "-", "0" * 16 + "-01")),
    ],
)
def test_invalid_request_body_is_refused(client, control, action, body):
    assert _post(client, action, **body).status_code == 422
    assert control.calls == []


def test_selected_rows_are_replayed(client, control):
    rules = ["positive, or --not", "größer als $(x) 'y'"]
    most = [row_id(f"part-{n}", 10**12 - 1) for n in range(1000)]
    for body in ({"rows": [ROW]}, {"rules": rules}, {"rows": most, "rules": ["r" * 300] * 20}):
        assert _post(client, "replay", name=NAME, **body).status_code == 202
        assert control.calls.pop() == (
            "replay",
            {"dataset": NAME, "rows": [], "rules": [], **body},
        )
    # The command accepts as many rows as a page may send.
    assert len(RowSelection(rows=(ROW, *most)).positions()) == 1001


@pytest.mark.parametrize("name", ["--conf=x", "../../etc", "nothing", "", NAME + ",x", "silver"])
def test_unknown_names_are_refused(client, control, name):
    assert _post(client, "replay", name=name).status_code == 404
    assert _post(client, "start", refresh=[name]).status_code == 404
    assert _post(client, "start", full_refresh=[NAME, name]).status_code == 404
    assert control.calls == []


def test_read_only_dashboard_executes_no_request(logs, control):
    client = _client(logs, control, acts=False)
    for action, body in ACTIONS.items():
        assert _post(client, action, **body).status_code == 405
    assert client.get("/api/pipelines/shop/control").json() == {"enabled": False}
    assert control.calls == []
    with pytest.raises(ValueError, match="token"):
        build_app([], host="127.0.0.1", token=None, acts=True)


def test_only_action_paths_accept_a_post(client, control):
    for path in ("/", "/app.js", "/api", "/api/pipelines", "/api/pipelines/shop/update"):
        assert client.post(path, headers=RIGHT, json={}).status_code in (404, 405), path
    for method in ("PUT", "PATCH", "DELETE", "OPTIONS"):
        path = "/api/pipelines/shop/start"
        assert client.request(method, path, headers=RIGHT, json={}).status_code == 405
    for key in ("nobody", "copied", "..%2fshop", "shop%2f..%2fshop"):
        assert _post(client, "stop", key=key).status_code in (404, 405), key
    assert client.get("/api/pipelines/copied/control", headers=RIGHT).json() == {"enabled": False}
    assert client.get("/api/pipelines/shop/start", headers=RIGHT).status_code == 405
    assert control.calls == []


def test_dashboards_of_one_host_use_different_cookies(logs, control):
    first, second = _client(logs, control), _client(logs, control, port=7071)
    jar = {}
    for client in (first, second):
        answer = client.get("/", params={"token": TOKEN})
        name, _, value = answer.headers["set-cookie"].partition(";")[0].partition("=")
        jar[name] = value
    assert sorted(jar) == ["penstock_token_7070", "penstock_token_7071"]
    cookie = "; ".join(f"{name}={value}" for name, value in jar.items())
    page = {"cookie": cookie, CONTROL_HEADER: "1", "sec-fetch-site": "same-origin"}
    assert _post(first, "stop", {**page, "origin": HERE}).status_code == 202
    assert _post(second, "stop", {**page, "origin": HERE}).status_code == 403
    assert _post(second, "stop", {**page, "origin": "http://127.0.0.1:7071"}).status_code == 202


def test_no_secret_of_a_refusal_is_shown(client, control):
    texts, secrets = planted()
    said = ""
    for text in texts:
        control.refusal = text
        said += _post(client, "start").text
    assert said.count("refused") == len(texts)
    assert {secret for secret in secrets if secret in said} == set()
