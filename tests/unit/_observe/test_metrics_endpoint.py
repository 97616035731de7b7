"""The Prometheus endpoint, over real sockets."""

import http.client
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as families

from penstock._cli import exit_codes
from penstock._cli.main import main
from penstock._observe import metrics_endpoint
from penstock._observe.codec import event_of_line
from penstock._observe.metrics import METRICS, metric_series
from penstock._observe.metrics_endpoint import MetricsEndpoint
from penstock._observe.state import ObservedUpdate
from penstock.errors import SetupError

LOGS = Path(__file__).parents[1] / "_ui" / "logs"


@pytest.fixture
def fold() -> ObservedUpdate:
    folded = ObservedUpdate()
    (path,) = (LOGS / "demo").glob("*.jsonl")
    for line in path.read_bytes().splitlines():
        event = event_of_line(line)
        assert event is not None
        folded(event)
    return folded


@pytest.fixture
def endpoint(fold: ObservedUpdate) -> Iterator[MetricsEndpoint]:
    served = MetricsEndpoint(fold, address="127.0.0.1", port=0)
    yield served
    served.close()


def fetch(
    endpoint: MetricsEndpoint, path: str = "/metrics", method: str = "GET", **headers: str
) -> tuple[int, str, str]:
    address = urlsplit(endpoint.url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        kind = answer.getheader("Content-Type") or ""
        return answer.status, kind, answer.read().decode()
    finally:
        connection.close()


def test_prometheus_output_matches_the_metric_catalogue(endpoint: MetricsEndpoint):
    status, kind, text = fetch(endpoint)
    assert status == 200
    assert kind.startswith("text/plain")
    by_name = {family.name: family for family in families(text)}
    assert len(by_name) > 10
    for name, family in by_name.items():
        known = METRICS.get(name) or METRICS[f"{name}_total"]
        assert family.type == known.kind.value
        assert family.documentation == known.help
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(known.labels)
    batches = by_name["penstock_flow_batch_duration_seconds"].samples
    assert [s.value for s in batches if s.labels.get("le") == "+Inf"] == [
        s.value for s in batches if s.name.endswith("_count")
    ]


def test_openmetrics_is_returned_when_requested(endpoint: MetricsEndpoint):
    status, kind, text = fetch(endpoint, Accept="application/openmetrics-text;version=1.0.0")
    assert status == 200
    assert kind.startswith("application/openmetrics-text")
    assert {family.name for family in openmetrics(text)} > {"penstock_flow_batches"}


@pytest.mark.parametrize(
    ("path", "method", "host", "status"),
    [
        ("/", "GET", "127.0.0.1", 404),
        ("/metrics/../etc/passwd", "GET", "127.0.0.1", 404),
        ("/metrics", "GET", "attacker.example", 421),
        ("/metrics", "POST", "127.0.0.1", 501),
        ("/metrics?x=1", "GET", "localhost:9464", 200),
    ],
)
def test_other_paths_hosts_and_methods_are_refused(endpoint, path, method, host, status):
    assert fetch(endpoint, path, method, Host=host)[0] == status


def test_silent_client_does_not_block_other_clients(endpoint: MetricsEndpoint):
    address = urlsplit(endpoint.url)
    silent = [
        socket.create_connection((str(address.hostname), address.port or 0)) for _ in range(3)
    ]
    try:
        assert fetch(endpoint)[0] == 200
    finally:
        for connection in silent:
            connection.close()


def test_metrics_are_computed_once_for_concurrent_requests(endpoint, fold, monkeypatch):
    calls = []
    monkeypatch.setattr(
        metrics_endpoint, "metric_series", lambda state: calls.append(1) or metric_series(state)
    )
    threads = [threading.Thread(target=fetch, args=(endpoint,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1


def test_error_names_the_port_when_it_is_in_use(endpoint: MetricsEndpoint, fold: ObservedUpdate):
    port = urlsplit(endpoint.url).port
    assert port is not None
    with pytest.raises(SetupError) as caught:
        MetricsEndpoint(fold, address="127.0.0.1", port=port)
    assert caught.value.condition == "CANNOT_LISTEN"
    assert str(port) in caught.value.message


def test_closed_endpoint_does_not_accept_connections(fold: ObservedUpdate):
    endpoint = MetricsEndpoint(fold, address="127.0.0.1", port=0)
    endpoint.close()
    with pytest.raises(OSError):
        fetch(endpoint)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pipeline.py").write_text("import penstock as dp\n")
    events = tmp_path / ".penstock" / "events"
    events.mkdir(parents=True)
    for path in (LOGS / "shop").glob("*.jsonl"):
        (events / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_metrics_command_prints_a_recorded_update(
    project: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["metrics", str(project)]) == exit_codes.OK
    by_name = {family.name: family for family in families(capsys.readouterr().out)}
    assert by_name["penstock_update_info"].samples[0].value == 1
    assert main(["metrics", str(project), "--update", "09a9", "--output", "json"]) == exit_codes.OK
    assert '"penstock_flow_batch_duration_seconds"' in capsys.readouterr().out
    assert main(["metrics", str(project), "--update", "zzz"]) == exit_codes.USAGE


def test_error_names_the_extra_when_its_package_is_missing(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert main(["metrics", str(project)]) == exit_codes.USAGE
    assert 'pip install "penstock[metrics]"' in capsys.readouterr().err
