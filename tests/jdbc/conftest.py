from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import PASSWORD, CuttingProxy, PostgresServer


def pytest_collection_modifyitems(items: "list[pytest.Item]") -> None:
    here = Path(__file__).parent
    for item in items:
        if here in Path(item.path).parents:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for all tests of a run; every test makes its own tables."""
    if not PostgresServer.supported():
        pytest.skip("the server's binaries are for Linux on x86-64")
    server = PostgresServer()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def tables(spark, postgres_server: PostgresServer):
    from postgres_tables import Tables

    return Tables(spark, postgres_server)


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[CuttingProxy]:
    made = CuttingProxy(postgres_server.port)
    yield made
    made.close()


@pytest.fixture
def project(tmp_path: Path, spark, postgres_server: PostgresServer, monkeypatch):
    from update_project import Project

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_SECRET_DB_PASSWORD", PASSWORD)
    return Project(tmp_path, spark)
