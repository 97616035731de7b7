import pytest

from penstock._formats.options import (
    Cleaning,
    Evolution,
    FileOptions,
    IncrementalListing,
    ParseMode,
    file_options,
)
from penstock.errors import ConnectorError


def options(given: dict[str, str], *, schema: bool = False, streaming: bool = True) -> FileOptions:
    return file_options(given, has_schema=schema, streaming=streaming)


def refused(given: dict[str, str], *, schema: bool = False) -> ConnectorError:
    with pytest.raises(ConnectorError) as caught:
        options(given, schema=schema)
    return caught.value


def test_prefix_and_case_do_not_matter_when_options_are_read():
    bare = options({"format": "JSON", "infercolumntypes": "True", "schemaHints": "a int"})
    prefixed = options(
        {
            "CLOUDFILES.Format": "json",
            "cloudFiles.inferColumnTypes": "true",
            "cloudfiles.schemahints": "a int",
        }
    )
    assert bare == prefixed
    assert bare.format == "json"
    assert bare.infer_types
    assert bare.hints == "a int"


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("cloudFiles.schemaEvolutionMod", "schemaEvolutionMode"),
        ("cloudFiles.maxFilePerTrigger", "maxFilesPerTrigger"),
        ("cloudFiles.inferSchemas", None),
    ],
)
def test_the_nearest_name_is_shown_when_a_prefixed_option_is_unknown(given, near):
    error = refused({"cloudFiles.format": "json", given: "x"})
    assert error.condition == "AUTOLOADER_OPTION_UNKNOWN"
    assert given in error.message
    if near is not None:
        assert near in (error.hint or "")


def test_files_are_selected_by_either_name_of_the_option():
    given = options({"format": "csv", "fileNamePattern": "HR_*.csv"})
    assert given.source["pathGlobFilter"] == "HR_*.csv"
    assert dict(given.parse) == {"header": "true"}


def test_csv_files_have_headers_when_columns_are_inferred_and_nobody_says_otherwise():
    csv = {"cloudFiles.format": "CSV"}
    assert dict(options(csv).parse) == {"header": "true"}
    assert dict(options({**csv, "HEADER": "false"}).parse) == {"HEADER": "false"}
    assert dict(options(csv, schema=True).parse) == {}
    assert dict(options({"format": "json"}).parse) == {}
    older = {**csv, "cloudFiles.header": "false", "cloudFiles.inferSchema": "true"}
    assert dict(options(older).parse) == {"header": "false", "inferSchema": "true"}


def test_unknown_names_go_to_the_format_when_they_have_no_prefix():
    found = options({"cloudFiles.format": "csv", "header": "true", "weird": "1"})
    assert dict(found.parse) == {"header": "true", "weird": "1"}


@pytest.mark.parametrize(
    "name",
    [
        "useManagedFileEvents",
        "resourceTag.team",
        "validateOptions",
        "connectionString",
    ],
)
def test_options_of_other_platforms_are_taken_without_effect_when_given(name):
    assert options({"cloudFiles.format": "json", f"cloudFiles.{name}": "true"}) == options(
        {"cloudFiles.format": "json"}
    )


def test_incremental_listing_is_automatic_when_it_is_not_set():
    assert options({"format": "json"}).incremental_listing is IncrementalListing.AUTO
    chosen = options({"format": "json", "cloudFiles.useIncrementalListing": " TRUE "})
    assert chosen.incremental_listing is IncrementalListing.ON


def test_evolution_follows_the_schema_when_no_mode_is_given():
    assert options({"format": "json"}).evolution is Evolution.ADD
    assert options({"format": "json"}, schema=True).evolution is Evolution.NONE
    assert options({"format": "json"}, streaming=False).evolution is Evolution.RESCUE
    found = options({"format": "json", "schemaEvolutionMode": "FAILONNEWCOLUMNS"})
    assert found.evolution is Evolution.FAIL


def test_the_rescued_column_is_there_when_a_schema_is_inferred_and_not_otherwise():
    assert options({"format": "json"}).rescued == "_rescued_data"
    assert options({"format": "json"}, schema=True).rescued is None
    assert options({"format": "json", "rescuedDataColumn": "_r"}, schema=True).rescued == "_r"
    assert options({"format": "text"}).rescued is None


def test_new_columns_are_refused_when_the_schema_is_given():
    error = refused({"format": "json", "schemaEvolutionMode": "addNewColumns"}, schema=True)
    assert "schemaHints" in (error.hint or "")


@pytest.mark.parametrize(
    "given",
    [
        {"format": "jsn"},
        {"format": "json", "schemaEvolutionMode": "add"},
        {"format": "json", "inferColumnTypes": "yes"},
        {"format": "json", "mode": "STRICT"},
        {"format": "json", "maxFilesPerTrigger": "0"},
        {"format": "json", "maxFilesPerTrigger": "many"},
        {"format": "json", "maxBytesPerTrigger": "10 potatoes"},
        {"format": "json", "allowOverwrites": "perhaps"},
        {"format": "json", "useIncrementalListing": "perhaps"},
        {"format": "json", "cleanSource": "BURN"},
        {"format": "json", "cleanSource": "MOVE"},
        {"cleanSource": "DELETE", "cleanSource.retentionDuration": "1 fortnight"},
        {"backfillInterval": "daily"},
        {"useNotifications": "perhaps"},
        {"queueUrl": "arn:aws:sqs:eu-central-1:1:q"},
        {"queueUrl": "https://sqs.eu-central-1.amazonaws.com"},
        {"queueUrl": "https://sqs.eu-central-1.amazonaws.com/1/q", "fetchParallelism": "0"},
    ],
)
def test_the_option_is_named_when_its_value_is_wrong(given):
    error = refused(given)
    assert error.condition == "AUTOLOADER_OPTION_INVALID"
    assert list(given)[-1].split(".")[0] in error.message


def test_old_files_are_never_skipped_and_triggers_are_limited_when_streaming():
    source = options({"format": "json"}).source
    assert source["maxFileAge"] == "3650000d"
    assert source["maxFilesPerTrigger"] == "1000"
    assert source["recursiveFileLookup"] == "true"
    source = options({"format": "json", "maxBytesPerTrigger": "10g"}).source
    assert source["maxBytesPerTrigger"] == str(10 * 1024**3)
    assert "maxFilesPerTrigger" not in source
    assert "maxFileAge" not in options({"format": "json"}, streaming=False).source


def test_the_region_of_a_queue_is_in_its_address_and_no_secret_is_shown():
    given = {
        "useNotifications": "true",
        "queueUrl": "https://sqs.eu-central-1.amazonaws.com/1/q",
        "backfillInterval": "1 day",
        "awsAccessKey": "k",
        "awsSecretKey": "hidden",
    }
    found = options(given)
    assert found.use_notifications
    assert found.backfill_seconds == 86_400
    assert found.queue is not None
    assert (found.queue.region, found.queue.receivers) == ("eu-central-1", 1)
    assert "hidden" not in repr(found)
    other = options({"queueUrl": "http://localhost:9324/1/q", "region": "x"}).queue
    assert other is not None
    assert other.region == "x"
    assert not options(given, streaming=False).use_notifications


def test_files_are_kept_for_30_days_when_no_retention_is_set():
    assert (
        options({"cleanSource": "off", "cleanSource.retentionDuration": "1 day"}).cleaning is None
    )
    assert options({"cleanSource": "delete"}).cleaning == Cleaning(retention_seconds=30 * 86_400)
    moved = {"cleanSource": "MOVE", "cloudFiles.cleanSource.moveDestination": "/done"}
    for text in ("0", "0 days", "interval 0 seconds"):
        found = options({**moved, "cleanSource.retentionDuration": text}).cleaning
        assert found == Cleaning(retention_seconds=0, destination="/done")
    assert "cleanSource" not in options(moved).source
    assert options(moved, streaming=False).cleaning is None


@pytest.mark.parametrize(
    ("text", "names"), [(None, None), ("", ()), ("year, `month`", ("year", "month"))]
)
def test_partition_columns_are_a_list_none_or_found_when_given_or_not(text, names):
    given = {"format": "json"} | ({} if text is None else {"partitionColumns": text})
    assert options(given).partition_columns == names


def test_parser_options_are_found_in_any_case_when_asked_for():
    found = options({"format": "csv", "DELIMITER": ";", "multiline": "TRUE", "MODE": "failfast"})
    assert found.parser_option("sep", "delimiter") == ";"
    assert found.multiline
    assert found.whole_files
    assert found.mode is ParseMode.FAIL
    assert options({"format": "json", "encoding": "UTF-16LE"}).whole_files
