"""A YARN cluster on this machine: Hadoop's own resource manager and two node managers."""

import subprocess
import threading
import time
from pathlib import Path

import pyspark

from penstock._local.jars import class_path, sync
from penstock._local.lock import parse_lock

FILES = Path(__file__).with_name("yarn")
_START_SECONDS = 120.0


class YarnCluster:
    """The cluster; `configuration` is its `HADOOP_CONF_DIR`."""

    def __init__(self, folder: Path) -> None:
        lock = parse_lock((FILES / "jars.toml").read_text(encoding="utf-8"), "4.2")
        sync(lock=lock)
        self.folder = folder
        self.configuration = folder / "conf"
        self.configuration.mkdir(parents=True)
        log = folder / "yarn.log"
        jars = [*map(str, class_path(lock.sets, lock=lock))]
        jars.append(str(Path(pyspark.__file__).parent / "jars" / "*"))
        source = str(FILES / "YarnCluster.java")
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                ["java", "-Xmx768m", "-cp", ":".join(jars), source, str(self.configuration)],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=folder,
            )
        deadline, pause = time.monotonic() + _START_SECONDS, threading.Event()
        while not (self.configuration / "yarn-site.xml").exists():
            assert time.monotonic() < deadline, log.read_text()
            assert self._process.poll() is None, log.read_text()
            pause.wait(0.1)

    def executors(self) -> list[int]:
        """Processes of Spark's executors in the containers."""
        pids = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue  # the process has ended
            is_executor = any("YarnCoarseGrainedExecutorBackend" in word for word in words)
            is_own = any(str(self.folder) in word for word in words)
            if Path(words[0]).name == "java" and is_executor and is_own:
                pids.append(int(process.name))
        return sorted(pids)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)
