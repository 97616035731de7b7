"""Output of a quarantine replay, and invalid options."""

from dataclasses import replace

import pytest

from penstock._cli import exit_codes
from penstock._cli.inspection import preview_body, preview_lines, replayed_body, replayed_lines
from penstock._cli.main import main
from penstock._repair.quarantine_replay import Replayed, ReplayPreview

DONE = Replayed(table="silver", version=4, chosen=3, moved=2, kept=1)
OUTLOOK = ReplayPreview(
    table="silver",
    version=4,
    moves=1200,
    keeps=3,
    by_rule={"small": 3, "known": 1},
    unfinished=False,
)


def test_replay_output_describes_the_selected_rows():
    other = replace(DONE, chosen=9, moved=1, kept=8, resumed=True)
    for done, is_all, expected in (
        (DONE, True, ["2 rows moved into silver, 1 stays in quarantine"]),
        (DONE, False, ["3 rows chosen: 2 rows moved into silver, 1 stays in quarantine"]),
        (
            replace(DONE, chosen=0, moved=0, kept=0),
            False,
            ["no row in the quarantine of silver matches; nothing was changed"],
        ),
        (
            other,
            False,
            ["an interrupted replay was finished: 1 row moved into silver, 8 stay in quarantine"],
        ),
        (
            replace(DONE, resumed=True, finished=other),
            False,
            [
                "an interrupted replay of other rows was finished first: "
                "1 row moved into silver, 8 stay in quarantine",
                "3 rows chosen: 2 rows moved into silver, 1 stays in quarantine",
            ],
        ),
        (replace(DONE, version=None), True, ["silver has no quarantined rows"]),
    ):
        assert list(replayed_lines(done, is_all=is_all)) == expected
    body = replayed_body(replace(DONE, resumed=True, finished=other))
    assert body["finished"] == {"chosen": 9, "moved": 1, "kept": 8}
    assert (body["chosen"], body["moved"], body["kept"], body["resumed"]) == (3, 2, 1, True)


def test_dry_run_output_describes_the_result_of_the_replay():
    assert list(preview_lines(OUTLOOK, is_all=False)) == [
        "1,203 rows chosen: 1,200 rows would move into silver, 3 would stay in quarantine",
        "  3 rows would violate small",
        "  1 row would violate known",
        "nothing was changed (--dry-run)",
    ]
    first, second, *_ = preview_lines(replace(OUTLOOK, unfinished=True), is_all=True)
    assert "would be finished first" in first
    assert second.startswith("1,200 rows would move")
    nothing = replace(OUTLOOK, moves=0, keeps=0)
    assert list(preview_lines(nothing, is_all=False)) == [
        "no row in the quarantine of silver matches"
    ]
    assert preview_body(OUTLOOK)["chosen"] == 1203


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--row", ""], "expected at least one name"),
        (["--row", " , "], "expected at least one name"),
        (["--row", "17"], "'17' is not the id of a row"),
        (["--rule", ""], "is empty"),
        (["--where", " "], "is empty"),
    ],
)
def test_replay_is_refused_when_an_option_is_empty_or_an_invalid_row_id(
    arguments, message, tmp_path, capsys
):
    # A script may pass an empty variable, which must not select all rows.
    command = ["quarantine", "replay", "silver", "--project", str(tmp_path / "nowhere"), *arguments]
    assert main(command) == exit_codes.USAGE
    assert message in capsys.readouterr().err
