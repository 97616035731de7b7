import json

import pytest

from penstock._model.redaction import forget_secrets, redact
from penstock.errors import ConnectorError
from penstock.sources.kinesis.options import source_options
from penstock.sources.kinesis.reading import unpack


def checked(streaming: bool = True, **options: str):
    return source_options({"streamName": "orders", **options}, streaming=streaming)


def refusal(**options: str) -> ConnectorError:
    with pytest.raises(ConnectorError) as caught:
        checked(**options)
    return caught.value


def test_defaults_are_those_of_the_documented_connector():
    options = checked()
    assert options.streams == ("orders",)
    assert options.start.kind == "latest"
    assert checked(streaming=False).start.kind == "trim_horizon"
    assert (options.records_per_fetch, options.fetch_rate) == (10_000, 1 << 20)
    assert (options.fetch_seconds, options.shards_per_task) == (10.0, 5)
    assert options.fails_on_loss is True


def test_options_are_read_in_any_case_and_with_units():
    options = source_options(
        {"STREAMNAME": " a, b,a ", "MaxFetchDuration": "2m", "minFetchPeriod": "250ms"}
        | {"fetchBufferSize": "8MB", "maxFetchRate": "0.5", "failOnDataLoss": "FALSE"}
        | {"endpoint": "kinesis.example:4567", "coalesceBinSize": "1gb", "consumerMode": "Polling"}
    )
    assert options.streams == ("a", "b")
    assert (options.fetch_seconds, options.fetch_period_seconds) == (120.0, 0.25)
    assert (options.buffer_bytes, options.fetch_rate) == (8 << 20, 0.5 * (1 << 20))
    assert options.fails_on_loss is False
    assert options.endpoint == "https://kinesis.example:4567"


@pytest.mark.parametrize(
    ("at", "millis"),
    [
        ({"at_timestamp": "2026-06-25T10:23:45Z"}, 1782383025000),
        ({"at_timestamp": "2026-06-25T10:23:45.250+02:00"}, 1782375825250),
        ({"at_timestamp": "2026-06-25"}, 1782345600000),
        (
            {"at_timestamp": "06/25/2026 10:23:45 PDT", "format": "MM/dd/yyyy HH:mm:ss ZZZ"},
            1782408225000,
        ),
        (
            {
                "at_timestamp": "06/25/2026 10:23:45 Europe/Berlin",
                "format": "MM/dd/yyyy HH:mm:ss VV",
            },
            1782375825000,
        ),
        (
            {"at_timestamp": "2026-06-25T10:23:45+0200", "format": "yyyy-MM-dd'T'HH:mm:ssZ"},
            1782375825000,
        ),
    ],
)
def test_initial_position_at_a_timestamp_is_parsed_from_json(at, millis):
    start = checked(initialPosition=json.dumps(at)).start
    assert (start.kind, start.millis) == ("at_timestamp", millis)


@pytest.mark.parametrize("word", ["TRIM_HORIZON", "earliest"])
def test_earliest_is_the_trim_horizon(word):
    assert checked(initialPosition=word).start.kind == "trim_horizon"


@pytest.mark.parametrize(
    ("options", "condition", "says"),
    [
        ({"streamName": " , "}, "INVALID", "streamName"),
        ({"streamName": "a b"}, "INVALID", "a b"),
        ({"initialPosition": "yesterday"}, "INVALID", "JSON"),
        ({"initialPosition": '{"at": "2026-01-01"}'}, "INVALID", "at_timestamp"),
        ({"initialPosition": '{"at_timestamp": "noon"}'}, "INVALID", "ISO 8601"),
        ({"initialPosition": '{"at_timestamp": "1", "format": "EEE"}'}, "INVALID", "EEE"),
        ({"consumerMode": "efo"}, "REFUSED", "fan-out"),
        ({"consumerMode": "push"}, "INVALID", "polling"),
        ({"streamARN": "arn:aws:kinesis:eu-central-1:1:stream/a"}, "REFUSED", "streamARN"),
        ({"serviceCredential": "x"}, "REFUSED", "serviceCredential"),
        ({"initialPositon": "latest"}, "UNKNOWN", "initialPositon"),
        ({"awsAccessKey": "AKIA1234"}, "INVALID", "awsSecretKey"),
        ({"awsSessionToken": "abcd1234"}, "INVALID", "awsSessionToken"),
        ({"maxRecordsPerFetch": "10001"}, "INVALID", "10000"),
        ({"maxFetchRate": "3"}, "INVALID", "2.0"),
        ({"maxFetchDuration": "soon"}, "INVALID", "10s"),
        ({"fetchBufferSize": "0mb"}, "INVALID", "32mb"),
        ({"failOnDataLoss": "no"}, "INVALID", "true or false"),
        ({"endpoint": "https://user:word@host"}, "INVALID", "endpoint"),
    ],
)
def test_invalid_option_is_refused_with_the_reason(options, condition, says):
    error = refusal(**options)
    assert error.condition == f"KINESIS_OPTION_{condition}"
    assert says in error.message


def test_hint_for_a_misspelled_option_has_the_right_name():
    assert "`initialPosition`" in (refusal(initialPositon="latest").hint or "")


def test_batch_read_cannot_start_at_latest():
    with pytest.raises(ConnectorError, match="batch"):
        checked(streaming=False, initialPosition="latest")


def test_repr_of_options_has_no_access_keys():
    try:
        options = checked(awsAccessKey="AKIASHOWN", awsSecretKey="hidden/word+1")
        assert "hidden" not in repr(options)
        assert "AKIASHOWN" not in repr(options)
        assert "hidden" not in redact("denied for hidden/word+1 of AKIASHOWN")
    finally:
        forget_secrets()


# In the format of the Kinesis Producer Library: keys k0 and k1, records (k0, a), (k1, b).
_MESSAGE = b"\x0a\x02k0\x0a\x02k1\x1a\x05\x08\x00\x1a\x01a\x1a\x05\x08\x01\x1a\x01b"


def test_aggregated_record_is_split_into_rows():
    import hashlib

    packed = b"\xf3\x89\x9a\xc2" + _MESSAGE + hashlib.md5(_MESSAGE).digest()
    assert unpack("outer", packed) == [("k0", b"a"), ("k1", b"b")]


@pytest.mark.parametrize(
    "data", [b"", b"plain", b"\xf3\x89\x9a\xc2", b"\xf3\x89\x9a\xc2" + _MESSAGE + b"x" * 16]
)
def test_record_that_is_not_aggregated_is_unchanged(data):
    assert unpack("key", data) == [("key", data)]
