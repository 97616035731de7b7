import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from demo_process import DemoProcess

from penstock._local.broker import stop_broker
from penstock._local.demo.folders import DemoFolders

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture
def demo_directory(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "demo"
    yield directory
    stop_broker(DemoFolders(directory).broker)


@pytest.fixture
def start_demo(demo_directory: Path, tmp_path: Path) -> Iterator[Callable[..., DemoProcess]]:
    """Starts demos in one folder; all their processes are ended afterwards."""
    started: list[DemoProcess] = []

    def start(*arguments: str, **environment: str) -> DemoProcess:
        log = tmp_path / f"demo-{len(started)}.log"
        started.append(DemoProcess(demo_directory, log, *arguments, environment=environment))
        return started[-1]

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            process.kill_group()


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    path = os.environ.get("PENSTOCK_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), "")
    if not path:
        pytest.skip(f"needs a browser: none of {', '.join(BROWSERS)} is on PATH")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def problems() -> list[str]:
    return []


@pytest.fixture
def open_page(browser, problems: list[str]):
    """Opens pages; records their errors, and requests to other machines."""
    contexts = []

    def open_(address: str, *, width: int = 1280, dark: bool = False):
        context = browser.new_context(
            viewport={"width": width, "height": 800},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "console",
            lambda said: said.type == "error" and problems.append(f"console: {said.text}"),
        )
        page.on(
            "request",
            lambda route: (
                route.url.startswith((re.split("[?#]", address)[0], "data:"))
                or problems.append(f"request to {route.url}")
            ),
        )
        page.goto(address)
        return page

    yield open_
    for context in contexts:
        context.close()
