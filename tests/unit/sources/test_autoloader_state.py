from pathlib import Path
from unittest.mock import MagicMock

import pytest
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock._formats.columnar_rows import misfit
from penstock._formats.merging import (
    add_fields,
    add_paths,
    one_spelling,
    visible,
    widest,
)
from penstock._formats.options import file_options
from penstock._model.flow import Flow
from penstock._model.origin import SourceLocation
from penstock._tables.files import StorageFiles
from penstock.sources.files.batch_log import batch_files
from penstock.sources.files.listing import file_name, file_name_of_uri, readable
from penstock.sources.files.opening import OpenedFiles, source_key
from penstock.sources.files.recovery import recover
from penstock.sources.files.source import AutoLoaderStream
from penstock.sources.memory import FolderMemory, PassingMemory


def struct(**types) -> StructType:
    return StructType([StructField(name, kind, True) for name, kind in types.items()])


ONE = struct(id=LongType(), o=struct(p=LongType()), l=ArrayType(struct(k=StringType())))


@pytest.fixture
def folder(tmp_path: Path) -> FolderMemory:
    return FolderMemory(StorageFiles(None), str(tmp_path))


def test_saved_versions_and_notes_are_read_back(folder, tmp_path):
    assert folder.load() == []
    assert folder.note("x") is None
    folder.save(ONE)
    folder.save(struct(id=LongType()))
    folder.save_note("x", ["a", 1])
    again = FolderMemory(StorageFiles(None), str(tmp_path))
    assert again.load() == [ONE, struct(id=LongType())]
    assert again.note("x") == ["a", 1]
    assert (tmp_path / "_schemas" / "1").exists()


def test_torn_version_counts_as_absent(folder, tmp_path):
    folder.save(ONE)
    (tmp_path / "_schemas" / "1").write_text('{"version": 1, "sch')
    assert folder.load() == [ONE]
    folder.save(struct(id=LongType()))
    assert len(folder.load()) == 2


def test_memory_store_writes_nothing_and_reads_the_stored_state(folder, tmp_path):
    folder.save(ONE)
    folder.save_note("x", 1)
    before = sorted(tmp_path.rglob("*"))
    memory = PassingMemory(folder)
    assert memory.load() == [ONE]
    assert memory.note("x") == 1
    memory.save(struct(id=StringType()))
    memory.save_note("x", 2)
    assert memory.load() == [ONE, struct(id=StringType())]
    assert memory.note("x") == 2
    assert sorted(tmp_path.rglob("*")) == before


def test_first_start_uses_the_schema_of_the_analysis(tmp_path):
    learned = PassingMemory()
    learned.save_note("partition_columns", ["day"])
    learned.save(ONE)
    store = FolderMemory(StorageFiles(None), str(tmp_path), seed=learned)
    assert store.load() == [ONE]
    assert FolderMemory(StorageFiles(None), str(tmp_path)).load() == [ONE]
    assert store.note("partition_columns") == ["day"]


def test_new_fields_are_added_at_the_end_of_a_schema():
    seen = struct(
        ID=StringType(),
        new=DoubleType(),
        o=struct(q=LongType(), P=StringType()),
        l=ArrayType(struct(k=LongType(), z=LongType())),
    )
    grown, added = add_fields(ONE, seen)
    assert grown.simpleString() == (
        "struct<id:bigint,o:struct<p:bigint,q:bigint>,l:array<struct<k:string,z:bigint>>,new:double>"
    )
    assert sorted(added) == ["l.z", "new", "o.q"]
    assert add_fields(grown, seen)[1] == []


def test_new_fields_are_added_to_values_of_maps():
    known = struct(m=MapType(StringType(), struct(a=LongType())))
    # The schema inferred from JSON has a field for each key of the map.
    keys = struct(m=struct(x=struct(a=LongType(), b=DoubleType()), y=struct(c=StringType())))
    grown, added = add_fields(known, keys)
    assert grown.simpleString() == "struct<m:map<string,struct<a:bigint,b:double,c:string>>>"
    assert sorted(added) == ["m.b", "m.c"]
    assert add_fields(known, grown) == (grown, added)
    assert add_fields(known, grown, rescued=True) == (known, [])
    assert add_fields(known, struct(m=struct(x=LongType(), y=struct(b=LongType()))))[1] == []
    assert add_paths(known, ["m.a", "m.b"])[1] == ["m.b"]


def test_paths_without_a_known_type_become_strings():
    grown, added = add_paths(ONE, ["o.q", "l.z", "`a.b`", "id", "id.x", "none.x"])
    assert added == ["o.q", "l.z", "`a.b`"]
    assert grown["a.b"].dataType == StringType()
    assert "q:string" in grown.simpleString()


def test_marked_fields_are_hidden_in_a_schema():
    marked, added = add_fields(
        ONE, struct(x=LongType(), o=struct(p=LongType(), q=LongType())), rescued=True
    )
    assert sorted(added) == ["o.q", "x"]
    assert visible(marked) == ONE
    assert add_fields(ONE, marked)[0] == marked
    assert StructType.fromJson(marked.jsonValue()) == marked


def test_inferred_types_hold_the_values_of_all_files():
    schema = widest([struct(a=LongType(), b=LongType()), struct(A=DoubleType(), b=StringType())])
    assert schema.simpleString() == "struct<a:double,b:string>"
    # In columnar files, neither type can be read as a string.
    schema = widest([struct(a=ByteType(), b=IntegerType()), struct(a=ShortType(), b=ShortType())])
    assert schema == struct(a=ShortType(), b=IntegerType())
    assert one_spelling(struct(a=LongType(), A=StringType())) == struct(a=LongType())


def test_type_that_would_lose_values_is_named():
    assert misfit(ONE, struct(id=LongType(), other=StringType()), file_format="orc") is None
    assert "'id' is STRING" in (misfit(ONE, struct(id=StringType()), file_format="orc") or "")
    assert "'o.p'" in (misfit(ONE, struct(o=struct(p=DoubleType())), file_format="orc") or "")


@pytest.mark.parametrize(
    ("known", "seen", "fits"),
    [
        (IntegerType(), DecimalType(9, 2), False),
        (LongType(), TimestampType(), False),
        (ArrayType(LongType()), ArrayType(DecimalType(9, 2)), False),
        (DateType(), TimestampType(), False),
        (DateType(), DateType(), True),
        (DateType(), IntegerType(), True),  # days since 1970 without Parquet's annotation
        (LongType(), DecimalType(18, 0), True),
        (LongType(), IntegerType(), True),
        (ShortType(), IntegerType(), True),
        (TimestampType(), TimestampNTZType(), True),
        (IntegerType(), StringType(), True),  # refused by the reader itself
    ],
)
@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_type_that_the_reader_would_misread_is_named(file_format, known, seen, fits):
    assert (misfit(struct(a=known), struct(a=seen), file_format=file_format) is None) is fits


@pytest.mark.parametrize(
    ("cause", "is_content"),
    [
        ('Cannot invoke "org.apache.avro.io.Decoder.readLong()" because "in" is null', True),
        ('Cannot invoke "com.acme.Codec.read()" because "codec" is null', False),
    ],
)
def test_null_pointer_exception_means_a_corrupt_file_only_in_the_avro_reader(cause, is_content):
    source = MagicMock()
    source.roots.list.return_value = []
    text = (
        "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///in/a.avro. \n"
        f"Caused by: java.lang.NullPointerException: {cause}\n"
    )
    flow = Flow(name="f", target="t", function=lambda: None, origin=SourceLocation("a.py", 1))
    assert recover(text, source, flow) is None
    # A file that may be corrupt is read again.
    assert source.roots.list.called is is_content


def test_names_that_differ_only_in_spelling_are_equal():
    assert file_name("file:///a/b") == file_name("file:/a/b") == "/a/b"
    assert file_name_of_uri("file:/a%20b/c%2541+ü") == "/a b/c%41+ü"
    assert file_name("s3a://bucket/x") == "s3a://bucket/x"
    assert readable("/a[1]*{b}") == "/a\\[1\\]\\*\\{b\\}"


def test_a_source_keeps_its_key_when_other_options_change():
    key = source_key(["/in"], {"cloudFiles.format": "json"})
    assert key == source_key(("/in",), {"format": "JSON", "header": "true"})
    assert key != source_key(["/in2"], {"cloudFiles.format": "json"})
    patterns = ("/in/a*.json", "/in/b*.json")
    assert len({source_key([path], {"format": "json"}) for path in patterns}) == 2
    assert key != source_key(["/in"], {"cloudFiles.format": "csv"})


def test_files_of_a_batch_are_those_between_its_offsets(tmp_path):
    def write(name: str, *lines: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines))

    entry = '{"path":"file:/in/%s","timestamp":1,"batchId":%d}'
    write("offsets/0", "v1", "{}", '{"logOffset":0}', "-")
    write("offsets/1", "v1", "{}", '{"logOffset":2}', '{"other":1}')
    write("sources/0/0", "v1", entry % ("a", 0))
    write("sources/0/1", "v1", entry % ("b", 1))
    write("sources/0/2.compact", "v1", entry % ("a", 0), entry % ("b", 1), entry % ("c", 2))
    files = StorageFiles(None)
    assert list(batch_files(files, str(tmp_path), 0)) == ["file:/in/a"]
    assert list(batch_files(files, str(tmp_path), 1)) == ["file:/in/b", "file:/in/c"]
    assert list(batch_files(files, str(tmp_path), 2)) == []


def test_committed_batch_decides_about_existing_files(folder, tmp_path):
    options = file_options({"cloudFiles.format": "json"}, has_schema=True, streaming=True)
    opened = OpenedFiles(MagicMock(), "k", options, None, ONE, struct(), (), folder)
    stream = AutoLoaderStream(None, opened, paths=["/in"], flow="f")
    checkpoint = tmp_path / "checkpoint"
    for name in ("offsets", "commits"):
        assert stream.prepare_start(str(checkpoint), [stream]) is None
        assert folder.note("existing_files") is None
        (checkpoint / name).mkdir(parents=True)
        (checkpoint / name / "0").write_text('v1\n{}\n{"logOffset":0}')
    stream.prepare_start(str(checkpoint), [stream])
    assert folder.note("existing_files") == []
