from collections.abc import Iterator
from pathlib import Path

import pytest
from database_server import PASSWORD, CuttingProxy, DatabaseServer
from mariadb_server import MariaDbServer
from postgres_server import PostgresServer


def pytest_collection_modifyitems(items: "list[pytest.Item]") -> None:
    here = Path(__file__).parent
    for item in items:
        if here in Path(item.path).parents:
            item.add_marker(pytest.mark.spark)


def started(kind: type[DatabaseServer]) -> Iterator[DatabaseServer]:
    reason = kind.why_not()
    if reason is not None:
        pytest.skip(reason)
    server = kind()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[DatabaseServer]:
    """One server for all tests of a run; every test creates its own tables."""
    yield from started(PostgresServer)


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[DatabaseServer]:
    """One server for all tests of a run; every test creates its own tables."""
    yield from started(MariaDbServer)


@pytest.fixture
def server(postgres_server: DatabaseServer) -> DatabaseServer:
    """The server of a test; files for another database override it."""
    return postgres_server


@pytest.fixture
def tables(spark, server: DatabaseServer):
    from database_tables import Tables

    return Tables(spark, server)


@pytest.fixture
def proxy(server: DatabaseServer) -> Iterator[CuttingProxy]:
    made = CuttingProxy(server)
    yield made
    made.close()


@pytest.fixture
def project(tmp_path: Path, spark, monkeypatch):
    from update_project import Project

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_SECRET_DB_PASSWORD", PASSWORD)
    return Project(tmp_path, spark)
