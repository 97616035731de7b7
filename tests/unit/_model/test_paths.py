import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._model.paths import PathMap, canonical_path
from penstock.errors import SpecError

PATHS = PathMap(
    {
        "/Volumes/main/raw": "/local/raw",
        "/Volumes/main/raw/orders": "/local/orders",
        "dbfs:/": "/local/dbfs",
        "s3://bucket": "/local/bucket",
        "s3://bucket/hot": "s3a://elsewhere/hot",
        "abfss://c@acct.dfs.core.windows.net/in/": "/local/azure",
        "/data": "file:///local/data",
    }
)

MAPPED = [
    ("/Volumes/main/raw", "/local/raw"),
    ("/Volumes/main/raw/", "/local/raw"),
    ("/Volumes/main/raw/a.json", "/local/raw/a.json"),
    ("/Volumes/main/raw/a/", "/local/raw/a/"),
    ("/Volumes//main///raw//a", "/local/raw/a"),
    ("dbfs:/Volumes/main/raw/a", "/local/raw/a"),
    ("dbfs:///Volumes/main/raw/a", "/local/raw/a"),
    ("/dbfs/Volumes/main/raw/a", "/local/raw/a"),
    ("file:/Volumes/main/raw/a", "/local/raw/a"),
    ("file:/dbfs/Volumes/main/raw/a", "/local/raw/a"),
    ("DBFS:/Volumes/main/raw/a", "/local/raw/a"),
    ("/Volumes/main/raw/orders/1", "/local/orders/1"),
    ("/Volumes/main/raw/orders2/1", "/local/raw/orders2/1"),
    ("/Volumes/main/raw2/a", "/local/dbfs/Volumes/main/raw2/a"),
    ("/Volumes/main/raw*/a", "/local/dbfs/Volumes/main/raw*/a"),
    ("/Volumes/main/raw/*/{a,b}.json", "/local/raw/*/{a,b}.json"),
    ("/Volumes/main/raw/x[0-9]?/..a/b..", "/local/raw/x[0-9]?/..a/b.."),
    ("/mnt/x", "/local/dbfs/mnt/x"),
    ("dbfs:/mnt/x", "/local/dbfs/mnt/x"),
    ("/FileStore/x", "/local/dbfs/FileStore/x"),
    ("/databricks-datasets/x", "/local/dbfs/databricks-datasets/x"),
    ("dbfs:/", "/local/dbfs"),
    ("dbfs:/tmp", "/local/dbfs/tmp"),
    ("/dbfs/tmp", "/local/dbfs/tmp"),
    ("/dbfs", "/local/dbfs"),
    ("s3://bucket/a", "/local/bucket/a"),
    ("s3a://bucket/a", "/local/bucket/a"),
    ("s3n://bucket", "/local/bucket"),
    ("S3://bucket/a", "/local/bucket/a"),
    ("s3://bucket/hot/a", "s3a://elsewhere/hot/a"),
    ("s3://bucket/hotel", "/local/bucket/hotel"),
    ("abfss://c@acct.dfs.core.windows.net/in/a", "/local/azure/a"),
    ("/data/x", "file:///local/data/x"),
    ("file:///data/x", "file:///local/data/x"),
    ("file://localhost/data/x", "file:///local/data/x"),
    ("/data/a/../b", "file:///local/data/a/../b"),
    ("/data/with space/ä", "file:///local/data/with space/ä"),
]


@pytest.mark.parametrize(("path", "expected"), MAPPED)
def test_path_is_mapped_by_its_longest_prefix(path, expected):
    assert PATHS.map(path) == expected


UNCHANGED = [
    "",
    " ",
    "relative/Volumes/main/raw",
    "data",
    "./data/x",
    "/database/x",
    "/tmp/x",
    "/",
    "s3://bucket2/a",
    "s3://Bucket/a",
    "gs://bucket/a",
    "wasbs://c@acct.dfs.core.windows.net/in/a",
    "abfss://c@acct.dfs.core.windows.net/inn",
    "abfss://other@acct.dfs.core.windows.net/in/a",
    "file:relative",
    "main.raw.orders",
    "C:\\data",
]


@pytest.mark.parametrize("path", UNCHANGED)
def test_path_is_unchanged_when_no_prefix_matches(path):
    assert PATHS.map(path) == path


@pytest.mark.parametrize("path", [*UNCHANGED, *(path for path, _ in MAPPED)])
def test_path_is_unchanged_when_nothing_is_mapped(path):
    assert PathMap({}).map(path) == path


@pytest.mark.parametrize(
    "path",
    [
        "/data/..",
        "/data/../etc/passwd",
        "/data/a/../../b",
        "/data/./../b",
        "/data//../b",
        "/data/\\.\\./b",
        "/data/{a,..}/b",
        "/data/{a,../b}",
        "dbfs:/mnt/../../etc",
        "s3://bucket/../other",
    ],
)
def test_path_is_refused_when_it_leaves_the_mapped_prefix(path):
    with pytest.raises(SpecError, match="PATH_OUTSIDE_MAPPING"):
        PATHS.map(path)


@pytest.mark.parametrize(
    "paths",
    [
        {"": "/x"},
        {"  ": "/x"},
        {"../data": "/x"},
        {"data": "/1", "./data/": "/2"},
        {"file:data": "/x"},
        {"/a/../b": "/x"},
        {"/mnt/x": "/1", "dbfs:/mnt/x/": "/2"},
        {"s3://b": "/1", "s3a://b": "/2"},
        {"/x": "/1", "file:/x": "/2"},
    ],
)
def test_prefix_is_refused_when_it_is_invalid_or_a_duplicate(paths):
    with pytest.raises(SpecError, match="PATHS_INVALID"):
        PathMap(paths)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("data/raw/a.json", "/x/a.json"),
        ("./data/raw", "/x"),
        ("data//raw/b/", "/x/b/"),
        ("data/raw2", "data/raw2"),
        ("/data/raw", "/data/raw"),
        ("../data/raw", "../data/raw"),
        ("kafka://prod:9092,b:9092", "kafka://localhost:1"),
        ("kafka://prod:90921", "kafka://prod:90921"),
    ],
)
def test_relative_prefixes_and_brokers_are_mapped(path, expected):
    paths = {"./data/raw": "/x", "kafka://prod:9092,b:9092": "kafka://localhost:1"}
    assert PathMap(paths).map(path) == expected


def test_path_is_mapped_once_when_a_target_is_a_prefix_too():
    paths = PathMap({"/a": "/b", "/b": "/c"})
    assert paths.map("/a/x") == "/b/x"
    assert paths.map("/b/x") == "/c/x"


def test_mapped_path_is_not_mapped_again_below_its_target():
    paths = PathMap({"/": "/sandbox", "/mnt": "/mnt/data"})
    assert paths.map("/etc/x") == "/sandbox/etc/x"
    assert paths.map("/sandbox/etc/x") == "/sandbox/etc/x"
    assert paths.map("/mnt/data/x") == "/mnt/data/x"


def test_root_can_be_a_target():
    assert PathMap({"dbfs:/": "/"}).map("dbfs:/tmp/x") == "/tmp/x"
    assert PathMap({"dbfs:/": "/"}).map("dbfs:/") == "/"


_PART = st.text(alphabet="abc.*-_ é{}", min_size=1, max_size=4).filter(
    lambda part: ".." not in part and part != "." and part == part.strip()
)
_REST = st.lists(_PART, max_size=4).map("/".join)
_PREFIX = st.sampled_from(
    ["/Volumes/m/r", "/mnt", "/mnt/raw", "dbfs:/", "s3://b", "/in", "gs://g/p", "/Volumes"]
)
_MAP = st.dictionaries(_PREFIX, _REST.map(lambda rest: f"/local/{rest}".rstrip("/")), max_size=5)
_SPELLINGS = {
    "/mnt": ["dbfs:/mnt", "dbfs:///mnt", "/dbfs/mnt", "file:/mnt", "//mnt"],
    "/Volumes": ["dbfs:/Volumes", "/dbfs/Volumes", "file:///Volumes"],
    "s3://b": ["s3a://b", "s3n://b", "S3A://b"],
    "/in": ["file:/in", "file:///in", "file://localhost/in"],
    "dbfs:/tmp": ["/dbfs/tmp", "dbfs:////tmp"],
}


@given(_MAP, _PREFIX, _REST)
def test_mapping_is_idempotent_when_no_target_is_a_prefix(paths, prefix, rest):
    mapping = PathMap(paths)
    mapped = mapping.map(f"{prefix}/{rest}")
    assert mapping.map(mapped) == mapped


@given(_MAP, _PREFIX, _REST)
def test_prefix_matches_only_whole_path_components(paths, prefix, rest):
    mapping = PathMap({prefix: "/local/x"})
    joined = f"{prefix.rstrip('/')}/{rest}"
    tidy = rest.rstrip("/")
    assert mapping.map(joined) == (f"/local/x/{tidy}" if tidy else "/local/x")
    if not prefix.endswith("/"):
        assert mapping.map(f"{prefix}z/{rest}") == f"{prefix}z/{rest}"


@given(_MAP, st.sampled_from(sorted(_SPELLINGS)), _REST, st.data())
def test_spellings_of_a_path_are_mapped_alike(paths, path, rest, data):
    other = data.draw(st.sampled_from(_SPELLINGS[path]))
    assert canonical_path(f"{path}/{rest}") == canonical_path(f"{other}/{rest}")
    mapping = PathMap(paths)
    first, second = mapping.map(f"{path}/{rest}"), mapping.map(f"{other}/{rest}")
    assert first == second or (first, second) == (f"{path}/{rest}", f"{other}/{rest}")


@given(_MAP, st.text(max_size=30))
def test_any_string_is_mapped_or_refused(paths, text):
    try:
        assert isinstance(PathMap(paths).map(text), str)
    except SpecError as error:
        assert error.condition == "PATH_OUTSIDE_MAPPING"


@given(_MAP, _PREFIX, _REST)
def test_mapped_path_stays_below_its_target(paths, prefix, rest):
    mapping = PathMap(paths)
    try:
        mapped = mapping.map(f"{prefix}/{rest}/../x")
    except SpecError:
        return
    assert mapped == f"{prefix}/{rest}/../x" or mapped.startswith("/local")
