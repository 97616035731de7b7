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


def options(
    settings: dict[str, str], *, schema: bool = False, streaming: bool = True
) -> FileOptions:
    return file_options(settings, has_schema=schema, streaming=streaming)


def refused(settings: dict[str, str], *, schema: bool = False) -> ConnectorError:
    with pytest.raises(ConnectorError) as caught:
        options(settings, schema=schema)
    return caught.value


def test_option_names_ignore_prefix_and_case():
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
    ("option", "nearest"),
    [
        ("cloudFiles.schemaEvolutionMod", "schemaEvolutionMode"),
        ("cloudFiles.maxFilePerTrigger", "maxFilesPerTrigger"),
        ("cloudFiles.inferSchemas", None),
    ],
)
def test_error_names_the_nearest_option_when_a_prefixed_option_is_unknown(option, nearest):
    error = refused({"cloudFiles.format": "json", option: "x"})
    assert error.condition == "AUTOLOADER_OPTION_UNKNOWN"
    assert option in error.message
    if nearest is not None:
        assert nearest in (error.hint or "")


def test_file_name_pattern_is_an_alias_of_path_glob_filter():
    selected = options({"format": "csv", "fileNamePattern": "HR_*.csv"})
    assert selected.source["pathGlobFilter"] == "HR_*.csv"
    assert dict(selected.parse) == {"header": "true"}


def test_csv_header_is_on_by_default_when_columns_are_inferred():
    csv = {"cloudFiles.format": "CSV"}
    assert dict(options(csv).parse) == {"header": "true"}
    assert dict(options({**csv, "HEADER": "false"}).parse) == {"HEADER": "false"}
    assert dict(options(csv, schema=True).parse) == {}
    assert dict(options({"format": "json"}).parse) == {}
    older = {**csv, "cloudFiles.header": "false", "cloudFiles.inferSchema": "true"}
    assert dict(options(older).parse) == {"header": "false", "inferSchema": "true"}


def test_unknown_options_without_prefix_are_passed_to_the_format():
    parsed = options({"cloudFiles.format": "csv", "header": "true", "weird": "1"})
    assert dict(parsed.parse) == {"header": "true", "weird": "1"}


@pytest.mark.parametrize(
    "name",
    [
        "useManagedFileEvents",
        "resourceTag.team",
        "validateOptions",
        "connectionString",
    ],
)
def test_options_of_other_platforms_have_no_effect(name):
    assert options({"cloudFiles.format": "json", f"cloudFiles.{name}": "true"}) == options(
        {"cloudFiles.format": "json"}
    )


def test_incremental_listing_is_automatic_when_it_is_not_set():
    assert options({"format": "json"}).incremental_listing is IncrementalListing.AUTO
    chosen = options({"format": "json", "cloudFiles.useIncrementalListing": " TRUE "})
    assert chosen.incremental_listing is IncrementalListing.ON


def test_default_evolution_mode_depends_on_the_schema():
    assert options({"format": "json"}).evolution is Evolution.ADD
    assert options({"format": "json"}, schema=True).evolution is Evolution.NONE
    assert options({"format": "json"}, streaming=False).evolution is Evolution.RESCUE
    parsed = options({"format": "json", "schemaEvolutionMode": "FAILONNEWCOLUMNS"})
    assert parsed.evolution is Evolution.FAIL


def test_rescued_column_is_added_by_default_only_when_the_schema_is_inferred():
    assert options({"format": "json"}).rescued == "_rescued_data"
    assert options({"format": "json"}, schema=True).rescued is None
    assert options({"format": "json", "rescuedDataColumn": "_r"}, schema=True).rescued == "_r"
    assert options({"format": "text"}).rescued is None


def test_add_new_columns_mode_is_refused_when_the_schema_is_fixed():
    error = refused({"format": "json", "schemaEvolutionMode": "addNewColumns"}, schema=True)
    assert "schemaHints" in (error.hint or "")


def test_hint_for_a_misspelled_evolution_mode_is_the_nearest_mode():
    error = refused({"format": "json", "schemaEvolutionMode": "addColumns"})
    assert error.hint == "did you mean `addNewColumns`?"


@pytest.mark.parametrize(
    "settings",
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
def test_error_names_the_option_when_its_value_is_invalid(settings):
    error = refused(settings)
    assert error.condition == "AUTOLOADER_OPTION_INVALID"
    assert list(settings)[-1].split(".")[0] in error.message


def test_stream_reads_old_files_and_limits_each_trigger():
    source = options({"format": "json"}).source
    assert source["maxFileAge"] == "3650000d"
    assert source["maxFilesPerTrigger"] == "1000"
    assert source["recursiveFileLookup"] == "true"
    source = options({"format": "json", "maxBytesPerTrigger": "10g"}).source
    assert source["maxBytesPerTrigger"] == str(10 * 1024**3)
    assert "maxFilesPerTrigger" not in source
    assert "maxFileAge" not in options({"format": "json"}, streaming=False).source


def test_queue_region_is_taken_from_its_url_and_secrets_are_hidden():
    settings = {
        "useNotifications": "true",
        "queueUrl": "https://sqs.eu-central-1.amazonaws.com/1/q",
        "backfillInterval": "1 day",
        "awsAccessKey": "k",
        "awsSecretKey": "hidden",
    }
    parsed = options(settings)
    assert parsed.use_notifications
    assert parsed.backfill_seconds == 86_400
    assert parsed.queue is not None
    assert (parsed.queue.region, parsed.queue.receivers) == ("eu-central-1", 1)
    assert "hidden" not in repr(parsed)
    other = options({"queueUrl": "http://localhost:9324/1/q", "region": "x"}).queue
    assert other is not None
    assert other.region == "x"
    assert not options(settings, streaming=False).use_notifications


def test_cleaning_keeps_files_for_30_days_by_default():
    assert (
        options({"cleanSource": "off", "cleanSource.retentionDuration": "1 day"}).cleaning is None
    )
    assert options({"cleanSource": "delete"}).cleaning == Cleaning(retention_seconds=30 * 86_400)
    moved = {"cleanSource": "MOVE", "cloudFiles.cleanSource.moveDestination": "/done"}
    for text in ("0", "0 days", "interval 0 seconds"):
        parsed = options({**moved, "cleanSource.retentionDuration": text}).cleaning
        assert parsed == Cleaning(retention_seconds=0, destination="/done")
    assert "cleanSource" not in options(moved).source
    assert options(moved, streaming=False).cleaning is None


@pytest.mark.parametrize(
    ("value", "names"), [(None, None), ("", ()), ("year, `month`", ("year", "month"))]
)
def test_partition_columns_are_parsed(value, names):
    settings = {"format": "json"} | ({} if value is None else {"partitionColumns": value})
    assert options(settings).partition_columns == names


def test_parser_options_ignore_case():
    parsed = options({"format": "csv", "DELIMITER": ";", "multiline": "TRUE", "MODE": "failfast"})
    assert parsed.parser_option("sep", "delimiter") == ";"
    assert parsed.multiline
    assert parsed.whole_files
    assert parsed.mode is ParseMode.FAIL
    assert options({"format": "json", "encoding": "UTF-16LE"}).whole_files
