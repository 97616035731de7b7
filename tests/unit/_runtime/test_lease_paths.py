from pathlib import Path

import pytest

from penstock._model.paths import local_path
from penstock._runtime.lease_paths import (
    lease_directory,
    pipeline_lease_path,
    table_lease_path,
)


@pytest.mark.parametrize("form", ["{0}", "file:{0}", "file://{0}", "FILE://{0}", "{0}/"])
def test_local_root_keeps_its_leases_when_written_in_any_form(tmp_path, form):
    root = form.format(tmp_path)
    assert lease_directory(root) == tmp_path.resolve() / "state"
    assert pipeline_lease_path(root) == tmp_path.resolve() / "state" / "pipeline.lock"


def test_percent_sign_is_kept_in_a_local_uri():
    assert local_path("file:///a%20b") == Path("/a%20b")


def test_table_has_the_same_lease_through_a_symbolic_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    direct = table_lease_path(f"file://{tmp_path}/real/orders")
    assert direct == table_lease_path(str(tmp_path / "link" / "orders" / ""))
    assert direct == tmp_path.resolve() / "real" / ".orders.lock"


def test_remote_root_has_its_leases_in_the_state_folder_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = lease_directory("s3a://bucket/shop")
    assert folder.parent == tmp_path / "penstock"
    for same in ("s3a://bucket/shop/", "s3://bucket//shop", "S3N://bucket/shop"):
        assert lease_directory(same) == folder
    for other in ("s3a://bucket/shop2", "gs://bucket/shop", "s3a://bucket/Shop"):
        assert lease_directory(other) != folder
    assert table_lease_path("s3a://bucket/shop/t") == table_lease_path("s3://bucket/shop/t/")


def test_state_folder_is_below_home_when_the_variable_is_missing_or_relative(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative/folder"):
        monkeypatch.setenv("XDG_STATE_HOME", value)
        assert lease_directory("hdfs://n/x").is_relative_to(tmp_path / ".local/state/penstock")
