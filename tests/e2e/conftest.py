import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from demo_process import DemoProcess

from penstock._local.broker import stop_broker
from penstock._local.demo.places import DemoPlaces


@pytest.fixture
def demo_directory(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "demo"
    yield directory
    stop_broker(DemoPlaces(directory).broker)


@pytest.fixture
def start_demo(demo_directory: Path, tmp_path: Path) -> Iterator[Callable[..., DemoProcess]]:
    """Starts demos in one folder; at the end nothing of them is left."""
    started: list[DemoProcess] = []

    def start(*arguments: str, **environment: str) -> DemoProcess:
        log = tmp_path / f"demo-{len(started)}.log"
        started.append(DemoProcess(demo_directory, log, *arguments, environment=environment))
        return started[-1]

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            process.kill_group()
