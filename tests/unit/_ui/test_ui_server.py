import asyncio
import json
import threading
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from penstock._observe.loopback import is_loopback
from penstock._ui import hub as hub_module
from penstock._ui.hub import Hub
from penstock._ui.recording import Recording, WatchedLog
from penstock._ui.server import build_app, load_assets
from penstock._ui.serving import address_of, listen, recordings_of
from penstock.errors import SetupError

HERE = "http://127.0.0.1:7070"
TOKEN = "a-long-enough-token"


@pytest.fixture
def client(demo, shop):
    return TestClient(build_app([demo, shop], host="127.0.0.1", token=None), base_url=HERE)


@pytest.fixture
def locked(demo):
    app = build_app([demo], host="0.0.0.0", token=TOKEN)
    return TestClient(app, base_url="http://box.example:7070", follow_redirects=False)


def test_all_pipelines_are_listed_when_there_are_several(client):
    pipelines = client.get("/api/pipelines").json()["pipelines"]
    assert [pipeline["name"] for pipeline in pipelines] == ["orders-demo", "shop"]
    assert [update["state"] for update in pipelines[1]["updates"]] == ["FAILED", "COMPLETED"]


def test_recorded_updates_and_datasets_are_served(client):
    update = client.get("/api/pipelines/shop/update").json()
    assert update["newest"] is True
    assert update["update"]["state"] == "FAILED"
    older = client.get("/api/pipelines/shop/updates").json()["updates"][1]["update_id"]
    update = client.get("/api/pipelines/shop/update", params={"update": older}).json()
    assert (update["newest"], update["update"]["state"]) == (False, "COMPLETED")
    name = "spark_catalog.default.silver"
    dataset = client.get("/api/pipelines/shop/dataset", params={"name": name}).json()
    assert dataset["card"]["state"] == "FAILED"
    page = client.get("/api/pipelines/shop/updates", params={"limit": 1}).json()
    assert (page["total"], page["next"], len(page["updates"])) == (2, 1, 1)


@pytest.mark.parametrize(
    "path",
    [
        "/api/pipelines/nobody/update",
        "/api/pipelines/shop/update?update=nothing",
        "/api/pipelines/shop/dataset?name=nothing",
        "/api/pipelines/nobody/stream",
        "/nothing.js",
        "/docs",
        "/openapi.json",
    ],
)
def test_unknown_paths_are_not_found(client, path):
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("query", ["limit=0", "limit=100000", "before=-1", "before=x"])
def test_invalid_number_is_refused(client, query):
    assert client.get(f"/api/pipelines/shop/updates?{query}").status_code == 422


@pytest.mark.parametrize(
    "path",
    [
        "/../server.py",
        "/..%2fserver.py",
        "/%2e%2e/server.py",
        "/..%5cserver.py",
        "/static/../../model.py",
        "/%2fetc%2fpasswd",
        "//etc/passwd",
        "/index.html%00.js",
        "/api/pipelines/..%2f..%2fdemo/update",
        "/api/pipelines/shop/update?update=../../../etc/passwd",
        "/api/pipelines/shop/update?update=..%2fdemo",
    ],
)
def test_path_outside_the_static_folder_is_not_found(client, path):
    answer = client.get(path)
    assert answer.status_code == 404
    assert "root:" not in answer.text and "import" not in answer.text


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:7070", "127.0.0.1.evil.example", "127.evil.example", ""]
)
def test_request_for_another_host_is_refused(client, host):
    answer = client.get("/api/pipelines", headers={"host": host})
    assert answer.status_code == 421
    assert "orders-demo" not in answer.text


@pytest.mark.parametrize("host", ["localhost:7070", "127.0.0.1:1", "[::1]:7070", "LOCALHOST"])
def test_request_for_this_machine_is_served(client, host):
    assert client.get("/api/pipelines", headers={"host": host}).status_code == 200


def test_request_from_another_site_is_refused(client):
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        answer = client.get("/api/pipelines", headers=headers)
        assert answer.status_code == 403, headers
        assert "access-control-allow-origin" not in answer.headers
    assert client.get("/api/pipelines", headers={"origin": HERE}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_request_that_would_change_something_is_refused(client, method):
    assert client.request(method, "/api/pipelines").status_code == 405


def test_a_request_is_refused_when_it_is_too_large(client):
    assert client.request("GET", "/api/pipelines", content=b"x").status_code == 413
    assert client.get("/api/pipelines?" + "x" * 5000).status_code == 414


def test_every_response_has_security_headers(client):
    for path in ("/", "/app.js", "/api/pipelines", "/nothing", "/api/pipelines/shop/update"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] in ("no-store", "no-cache")
        assert "access-control-allow-origin" not in headers


def test_request_with_a_missing_or_wrong_token_gets_no_data(locked):
    for path in ("/", "/app.js", "/api/pipelines", "/api/pipelines/orders-demo/stream"):
        assert locked.get(path).status_code == 401
        assert locked.get(path, headers={"authorization": "Bearer wrong"}).status_code == 401
        assert locked.get(path, params={"token": TOKEN[:-1]}).status_code == 401
        assert locked.get(path, headers={b"cookie": b"penstock_token=\xe9"}).status_code == 401


def test_token_in_the_url_signs_the_user_in(locked):
    answer = locked.get("/", params={"token": TOKEN})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert locked.get("/api/pipelines").status_code == 200
    locked.cookies.clear()
    assert locked.get("/api/pipelines").status_code == 401
    bearer = {"authorization": f"Bearer {TOKEN}"}
    assert locked.get("/api/pipelines", headers=bearer).status_code == 200


def test_redirect_does_not_leave_this_host(locked):
    answer = locked.get("http://box.example:7070//evil.example/", params={"token": TOKEN})
    assert answer.headers["location"] == "/evil.example/"


@pytest.mark.parametrize(
    "path", ["/\\/evil.example", "/\u00e9/evil.example", "/\t/evil.example", "/\r\n/evil.example"]
)
def test_redirect_does_not_leave_this_host_in_any_browser(locked, path):
    address = f"http://box.example:7070{quote(path)}"
    place = locked.get(address, params={"token": TOKEN}).headers["location"]
    assert place == quote(path)
    read = place.replace("\\", "/")
    assert not any(mark in place for mark in "\t\r\n") and not read.startswith("//")


def test_user_stays_signed_in_beside_other_cookies_of_the_host(locked):
    locked.get("/", params={"token": TOKEN})
    ((name, value),) = locked.cookies.items()
    locked.cookies.clear()
    cookie = f'theme={{"dark": "very much"}}; bad name=x; {name}={value}; =; last'
    assert locked.get("/api/pipelines", headers={"cookie": cookie}).status_code == 200


def test_token_with_special_characters_signs_the_user_in(demo):
    token = 'a;b c,d"e&f#g+h%20/='
    app = build_app([demo], host="0.0.0.0", token=token)
    client_ = TestClient(app, base_url="http://box.example:7070", follow_redirects=False)
    with listen("127.0.0.1", 0) as listening:
        address = address_of(listening, "box.example", token)
    answer = client_.get(f"/?{address.partition('?')[2]}")
    assert answer.status_code == 303
    name, _, rest = answer.headers["set-cookie"].partition("=")
    cookie = f"{name}={rest.partition(';')[0]}"
    assert client_.get("/api/pipelines", headers={"cookie": cookie}).status_code == 200


def test_public_address_without_a_token_is_refused(demo):
    with pytest.raises(ValueError, match="token"):
        build_app([demo], host="0.0.0.0", token=None)
    assert not is_loopback("127.evil.example")
    assert is_loopback("127.0.0.2") and is_loopback("::1") and is_loopback("localhost")


def test_pages_are_small_and_cached(client):
    assets = load_assets()
    assert sum(len(asset.zipped) for asset in assets.values()) < 300_000
    answer = client.get("/app.js", headers={"accept-encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    again = client.get("/app.js", headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_pages_load_nothing_from_other_hosts():
    for name, asset in load_assets().items():
        text = asset.body.decode()
        for scheme in ("http://", "https://", "//cdn"):
            for part in text.split(scheme)[1:]:
                assert part.startswith("www.w3.org/"), f"{name}: {scheme}{part[:40]}"


def test_only_changes_are_sent_during_an_update(logs, demo):
    path = next((logs / "demo").glob("*.jsonl"))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:25]))

    async def watch():
        hub = Hub()
        first, second = hub.watch(demo), hub.watch(demo)
        seen = []
        async with asyncio.timeout(30):
            for stream in (first, second):
                assert (await anext(stream)).startswith(b"retry:")
                seen.append(_message(await anext(stream)))
            assert hub.watchers == 2
            with path.open("ab") as file:
                file.write(b"".join(lines[25:]))
            while True:
                name, body = _message(await anext(first))
                seen.append((name, body))
                if body["update"]["has_ended"]:
                    break
        await first.aclose()
        await second.aclose()
        assert hub.watchers == 0
        return seen

    seen = asyncio.run(watch())
    assert [name for name, _ in seen[:2]] == ["update", "update"]
    assert len(seen[0][1]["cards"]) == 5
    assert [name for name, _ in seen[2:]] == ["changes"] * len(seen[2:])
    changed = {card["name"] for _, body in seen[2:] for card in body["cards"]}
    assert "revenue_5m" in changed and "kafka orders" not in changed


def test_no_change_is_lost_while_a_message_is_built(logs, demo, monkeypatch):
    path = next((logs / "demo").glob("*.jsonl"))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:25]))
    look, encode = hub_module._Topic.look, hub_module.encode
    armed, looks, may_look, has_looked = (threading.Event() for _ in range(4))

    def held_look(topic):
        if not armed.is_set():
            return look(topic)
        looks.set()
        may_look.wait(30)
        result = look(topic)
        has_looked.set()
        return result

    def slow_encode(body):
        if looks.is_set():
            # Meanwhile, another thread reads the whole log.
            armed.clear()
            may_look.set()
            has_looked.wait(30)
        return encode(body)

    monkeypatch.setattr(hub_module._Topic, "look", held_look)
    monkeypatch.setattr(hub_module, "encode", slow_encode)

    async def watch():
        hub = Hub()
        first = hub.watch(demo)
        async with asyncio.timeout(30):
            await anext(first)
            await anext(first)
            with path.open("ab") as file:
                file.write(b"".join(lines[25:30]))
            await anext(first)
            armed.set()
            with path.open("ab") as file:
                file.write(b"".join(lines[30:]))
            await asyncio.to_thread(looks.wait, 30)
            second = hub.watch(demo)
            await anext(second)
            ends = []
            for stream in (second, first):
                while True:
                    _, body = _message(await anext(stream))
                    if body["update"]["has_ended"]:
                        break
                ends.append(body["update"]["state"])
        await first.aclose()
        await second.aclose()
        return ends

    assert asyncio.run(watch()) == ["COMPLETED", "COMPLETED"]


def test_stream_of_an_unknown_update_reports_it_and_ends(demo, tmp_path):
    async def heard(recording, update):
        hub = Hub()
        async with asyncio.timeout(30):
            return [text async for text in hub.watch(recording, update)], hub.watchers

    assert asyncio.run(heard(demo, "removed-long-ago")) == ([b"event: missing\ndata: {}\n\n"], 0)
    assert Recording(key="new", label="new", directory=tmp_path / "nothing").has("latest")


def test_page_recovers_when_its_log_could_not_be_read(logs, demo, monkeypatch, caplog):
    path = next((logs / "demo").glob("*.jsonl"))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:25]))
    recorded, failures, has_failed = Recording.recorded, [], threading.Event()

    def failing(self, update):
        if len(failures) < 2:
            failures.append(update)
            raise PermissionError("the disk is away")
        has_failed.set()
        return recorded(self, update)

    async def watch():
        stream = Hub().watch(demo)
        async with asyncio.timeout(30):
            await anext(stream)
            await anext(stream)
            monkeypatch.setattr(Recording, "recorded", failing)
            await asyncio.to_thread(has_failed.wait, 30)
            with path.open("ab") as file:
                file.write(b"".join(lines[25:]))
            while True:
                _, body = _message(await anext(stream))
                if body["update"]["has_ended"]:
                    break
        await stream.aclose()

    asyncio.run(watch())
    assert len(failures) == 2
    levels = [record.levelname for record in caplog.records if record.name == hub_module.__name__]
    assert levels == ["WARNING"]


def test_all_streams_end_when_some_end_before_others(demo, shop):
    async def close():
        hub = Hub()
        streams = [hub.watch(each) for each in (demo, shop)]
        async with asyncio.timeout(30):
            for stream in streams:
                await anext(stream)
                await anext(stream)
            waits = [asyncio.ensure_future(anext(stream, None)) for stream in streams]
            await asyncio.sleep(0)
            held = hub._topics[("shop", "latest")].wake
            async with held:
                closing = asyncio.ensure_future(hub.close())
                # The stream and topic of the first pipeline end while the second topic is locked.
                await waits[0]
            await closing
            return [await each for each in waits], hub.watchers

    assert asyncio.run(close()) == ([None, None], 0)


def _message(text: bytes):
    name, data = text.decode().strip().split("\n", 1)
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def test_concurrent_requests_get_complete_responses(client, logs):
    problems = []

    def ask():
        for path in ("/api/pipelines/shop/update", "/api/pipelines/orders-demo/update"):
            answer = client.get(path)
            if answer.status_code != 200 or not answer.json()["cards"]:
                problems.append(answer.status_code)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert problems == []


def test_keys_differ_when_labels_are_the_same(tmp_path):
    logs = [WatchedLog(label=label, directory=tmp_path) for label in ("A b", "a/B", "…")]
    assert [each.key for each in recordings_of(logs)] == ["a-b", "a-b-2", "pipeline"]


def test_error_names_the_port_that_is_in_use():
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(SetupError, match=str(port)) as caught:
            listen("127.0.0.1", port)
        assert caught.value.condition == "CANNOT_LISTEN"
        with listen("127.0.0.1", port, or_any=True) as other:
            assert other.getsockname()[1] != port
