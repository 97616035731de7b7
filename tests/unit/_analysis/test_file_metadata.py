import pytest

from penstock._analysis.file_metadata import SHOWN, named_in, using_shown


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("SELECT *, _metadata.file_path FROM v", f"SELECT *, {SHOWN}.file_path FROM v"),
        ("SELECT v.`_metadata`.file_name", f"SELECT v.{SHOWN}.file_name"),
        ("SELECT _METADATA['file_name'] x", f"SELECT {SHOWN}['file_name'] x"),
        ("SELECT '_metadata', \"_metadata\" -- _metadata\n/* _metadata */", None),
        ("SELECT my_metadata, _metadata_2, a FROM v", None),
    ],
)
def test_metadata_is_named_otherwise_when_it_is_no_text_or_comment(text, used):
    assert named_in(text) is (used is not None)
    assert using_shown(text) == (used or text)
