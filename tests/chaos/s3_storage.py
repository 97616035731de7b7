"""A storage on S3 for a sitting: a server on loopback behind a proxy that fails."""

import itertools
import os
from pathlib import Path

from pyarrow.fs import FileSelector, FileType, S3FileSystem, copy_files
from s3_double import BUCKET, CREDENTIALS, FaultyProxy, S3Double, settings_of

_PATH = f"{BUCKET}/demo"


class S3Storage:
    """2 % of all requests fail with 503, and 2 % of the uploads succeed without a response."""

    def __init__(self, root: Path) -> None:
        self.environment = {**CREDENTIALS, "PENSTOCK_STORAGE": f"s3a://{_PATH}"}
        self._double = S3Double(root / "s3.log")
        uploads = itertools.count(1)

        def fault(number: int, method: str, path: str) -> str:
            if method == "PUT" and next(uploads) % 50 == 0:
                return "lost"
            return "" if number % 50 else "busy"

        self.proxy = FaultyProxy(self._double.port, fault)
        settings = settings_of(self.proxy.port)
        self.arguments = [f"--conf={key}={value}" for key, value in settings.items()]
        os.environ |= CREDENTIALS
        self._files = S3FileSystem(
            endpoint_override=f"http://127.0.0.1:{self._double.port}", region="us-east-1"
        )

    def commits(self) -> int:
        """The number of commits of all tables."""
        files = FileSelector(f"{_PATH}/tables", allow_not_found=True, recursive=True)
        return sum(
            info.path.endswith(".json") and "/_delta_log/" in info.path
            for info in self._files.get_file_info(files)
            if info.type is FileType.File
        )

    def copy_to(self, folder: Path) -> None:
        """Copy the tables, checkpoints and states to a local folder."""
        for name in ("tables", "checkpoints", "state"):
            (folder / name).mkdir(exist_ok=True)
            copy_files(f"{_PATH}/{name}", str(folder / name), source_filesystem=self._files)

    def stop(self) -> None:
        self.proxy.stop()
        self._double.stop()
