import pytest

from penstock._analysis.file_metadata import SHOWN, named_in, using_shown


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT *, _metadata.file_path FROM v", f"SELECT *, {SHOWN}.file_path FROM v"),
        ("SELECT v.`_metadata`.file_name", f"SELECT v.{SHOWN}.file_name"),
        ("SELECT _METADATA['file_name'] x", f"SELECT {SHOWN}['file_name'] x"),
        ("SELECT '_metadata', \"_metadata\" -- _metadata\n/* _metadata */", None),
        ("SELECT my_metadata, _metadata_2, a FROM v", None),
    ],
)
def test_metadata_column_is_replaced_outside_strings_and_comments(query, expected):
    assert named_in(query) is (expected is not None)
    assert using_shown(query) == (expected or query)
