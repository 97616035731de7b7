import fcntl
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from penstock._local import broker_files
from penstock._local.broker import broker_status, start_broker, stop_broker
from penstock._local.broker_files import BrokerState, new_state, read_state, write_state
from penstock.errors import SetupError


def _formatted(directory: Path, cluster_id: str) -> None:
    (directory / "data").mkdir()
    text = f"#comment\nversion=1\ncluster.id={cluster_id}\nnode.id=1\n"
    (directory / "data" / "meta.properties").write_text(text)


def test_written_state_is_read_back(tmp_path: Path) -> None:
    state = BrokerState(cluster_id="abc", port=1, controller_port=2, pid=3, started="x")
    write_state(tmp_path, state)
    assert read_state(tmp_path) == state


@pytest.mark.parametrize("text", ["", "{", "[]", '{"port": 1}', '{"unknown": 1}'])
def test_state_is_none_when_the_record_is_damaged(tmp_path: Path, text: str) -> None:
    (tmp_path / "broker.json").write_text(text)
    assert read_state(tmp_path) is None
    assert broker_status(tmp_path) is None
    assert stop_broker(tmp_path) is False


def test_ports_are_kept_when_they_are_free(tmp_path: Path) -> None:
    first = new_state(tmp_path, None, keep_ports=True)
    assert first.port != first.controller_port
    again = new_state(tmp_path, replace(first, pid=9, started="x"), keep_ports=True)
    assert again == first


def test_ports_change_when_one_is_in_use_or_they_are_not_kept(tmp_path: Path) -> None:
    first = new_state(tmp_path, None, keep_ports=True)
    assert new_state(tmp_path, first, keep_ports=False).port != first.port
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first.controller_port))
        taken.listen()
        other = new_state(tmp_path, first, keep_ports=True)
    assert other.controller_port != first.controller_port
    assert other.cluster_id == first.cluster_id


def test_cluster_id_is_read_from_the_data_when_the_record_is_missing(tmp_path: Path) -> None:
    _formatted(tmp_path, "MkU3OEVBNTcwNTJENDM2Qk")
    assert new_state(tmp_path, None, keep_ports=True).cluster_id == "MkU3OEVBNTcwNTJENDM2Qk"
    assert broker_files.formatted_cluster_id(tmp_path)


def test_caller_properties_override_the_defaults(tmp_path: Path) -> None:
    state = BrokerState(cluster_id="c", port=11, controller_port=12)
    settings = {**broker_files.configuration(state), "num.partitions": "7"}
    broker_files.write_configuration(tmp_path, settings)
    lines = (tmp_path / "server.properties").read_text().splitlines()
    assert "num.partitions=7" in lines
    assert "num.partitions=1" not in lines
    assert "controller.quorum.voters=1@127.0.0.1:12" in lines
    assert "advertised.listeners=PLAIN://127.0.0.1:11" in lines


def test_large_log_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert broker_files.trim_log(tmp_path) == 0
    log = tmp_path / broker_files.LOG_FILE
    log.write_text("12345678")
    assert broker_files.trim_log(tmp_path) == 8
    monkeypatch.setattr(broker_files, "_LOG_LIMIT_BYTES", 5)
    assert broker_files.trim_log(tmp_path) == 0
    assert not log.exists()
    assert (tmp_path / "broker.log.1").read_text() == "12345678"


def test_start_fails_when_another_process_takes_too_long_to_start_it(tmp_path: Path) -> None:
    with (tmp_path / "start.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SetupError, match="took too long to be started by another process"):
            start_broker(tmp_path, timeout_seconds=0)
