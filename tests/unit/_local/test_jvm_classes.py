import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from penstock._local.jvm import JAR, SOURCES

BUILD = Path(__file__).parents[3] / ".ci" / "build-jvm-classes"


def javac_version() -> int:
    javac = shutil.which("javac")
    if javac is None:
        return 0
    done = subprocess.run([javac, "-version"], capture_output=True, text=True, check=True)
    match = re.search(r"javac (\d+)", done.stdout + done.stderr)
    return int(match[1]) if match else 0


def test_jar_manifest_has_the_checksum_of_its_sources() -> None:
    with zipfile.ZipFile(JAR) as jar:
        manifest = jar.read("META-INF/MANIFEST.MF").decode().replace("\n ", "")
        names = jar.namelist()
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in SOURCES)).hexdigest()
    assert f"Source-Sha256: {digest}" in manifest
    assert names[0] == "META-INF/MANIFEST.MF"
    assert {name.partition("$")[0].removesuffix(".class") for name in names[1:]} == {
        "penstock/delta/AffectedKeys",
        "penstock/delta/BatchFiles",
        "penstock/delta/BatchKeys",
        "penstock/delta/ChangedRows",
        "penstock/delta/Checkpoints",
        "penstock/delta/EquiKeys",
        "penstock/delta/FileRows",
        "penstock/delta/KeptStatistics",
        "penstock/delta/KeyColumns",
        "penstock/delta/KeySearch",
        "penstock/delta/KeyedRows",
        "penstock/delta/LinearChanges",
        "penstock/delta/LinkLogStore",
        "penstock/delta/LiveFiles",
        "penstock/delta/NormalPlan",
        "penstock/delta/PackedRdd",
        "penstock/delta/PackedRows",
        "penstock/delta/ParquetParts",
        "penstock/delta/PartialAggregates",
        "penstock/delta/PlanParts",
        "penstock/delta/PlanText",
        "penstock/delta/QueryChanges",
        "penstock/delta/Restore",
        "penstock/delta/RowOrder",
        "penstock/delta/SharedRows",
        "penstock/delta/SmallBatch",
        "penstock/delta/SplitTransaction",
        "penstock/delta/TableChanges",
        "penstock/delta/WriteTransaction",
        "penstock/formats/CsvRecords",
        "penstock/formats/Interpreted",
        "penstock/formats/JsonRecords",
        "penstock/formats/RowFunction",
        "penstock/spark/BatchAdmission",
        "penstock/storage/AzureLogStore",
        "penstock/storage/GcsLogStore",
        "penstock/storage/HdfsLogStore",
        "penstock/storage/ObjectCheckpointFiles",
        "penstock/storage/ObjectLogStore",
        "penstock/storage/StorageLease",
    }


@pytest.mark.spark  # needs the jars of Delta
@pytest.mark.skipif(javac_version() != 17, reason="only the compiler of JDK 17 gives equal bytes")
def test_jar_equals_the_compiled_sources(tmp_path: Path) -> None:
    built = tmp_path / "built.jar"
    subprocess.run([sys.executable, BUILD, built], check=True)
    assert built.read_bytes() == JAR.read_bytes()


def test_records_that_are_sent_to_executors_can_be_serialized_by_kryo() -> None:
    # `spark.serializer` of a cluster is often Kryo, which cannot serialize records by itself.
    records = [
        match
        for source in SOURCES
        for match in re.findall(
            r"(.*)\n *(?:private )?record \w+\([^)]*\)\s+implements Serializable",
            source.read_text(encoding="utf-8"),
        )
    ]
    assert len(records) == 4
    assert {line.strip() for line in records} == {"@DefaultSerializer(JavaSerializer.class)"}
