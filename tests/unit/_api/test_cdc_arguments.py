from collections.abc import Callable

import pytest

import penstock as dp
from penstock._api.reading import reading
from penstock._api.registry import Registry, registration
from penstock._model.cdc import ScdType, TrackHistory
from penstock.errors import DefinitionError


class Column:
    """A stand-in with the name and the string form of Spark's class."""

    def __init__(self, text):
        self._text = text

    def __str__(self):
        return f"Column<'{self._text}'>"

    def __bool__(self):
        raise ValueError("a Column is not a boolean")

    def __eq__(self, other):
        return Column("eq")

    __hash__ = None


def _registry(declare: Callable[[], object]) -> Registry:
    registry = Registry()
    with registration(registry):
        declare()
    return registry


def _flow(declare: Callable[[], object]):
    (flow,) = _registry(declare).build().flows
    return flow


def _errors(declare: Callable[[], object]) -> list:
    return list(_registry(declare).errors)


BASE = {"target": "t", "source": "s", "keys": ["id"], "sequence_by": "seq"}
OPTIONAL = (
    *("where", "ignore_null_updates", "ignore_null_updates_column_list"),
    *("ignore_null_updates_except_column_list", "columns_to_update", "apply_as_deletes"),
    *("apply_as_truncates", "column_list", "except_column_list", "stored_as_scd_type"),
    *("track_history_column_list", "track_history_except_column_list", "system_sequence_by"),
    *("name", "flow_name", "once", "spark_conf"),
)


def test_optional_parameter_none_means_the_default():
    plain = _flow(lambda: dp.create_auto_cdc_flow("t", "s", ["id"], "seq"))
    pasted = _flow(lambda: dp.apply_changes(**BASE, **dict.fromkeys(OPTIONAL)))
    assert plain.cdc == pasted.cdc
    assert (plain.name, plain.target, plain.once) == ("t", "t", False)
    assert plain.cdc.scd_type is ScdType.ONE
    assert plain.cdc.keys == ("id",)


def test_arguments_may_be_positional_where_spark_and_databricks_have_the_same_order():
    flow = _flow(lambda: dp.apply_changes_from_snapshot("t", "s", ["id"], 2, None, ["a"]))
    assert flow.snapshot.track_history == TrackHistory(columns=("a",))
    # The fifth argument is `apply_as_deletes` in Spark, and `where` in Databricks.
    (error,) = _errors(lambda: dp.apply_changes("t", "s", ["id"], "seq", "op = 'D'"))
    assert (error.condition, error.hint) == ("INVALID_CALL", "pass later arguments by name")


def test_flow_has_all_fields_when_all_parameters_are_set():
    sequence, deletes = Column("struct(ts, id)"), Column("(op = D)")
    flow = _flow(
        lambda: dp.create_auto_cdc_flow(
            target="c.s.t",
            source="LIVE.s",
            keys=[Column("id"), "`a.b`"],
            sequence_by=sequence,
            apply_as_deletes=deletes,
            except_column_list=[Column("op"), "seq"],
            stored_as_scd_type="2",
            track_history_except_column_list=["city"],
            ignore_null_updates=True,
            ignore_null_updates_column_list=["city"],
            name="changes",
            once=True,
            spark_conf={"a": 1},
        )
    )
    spec = flow.cdc
    assert (flow.name, flow.target, flow.once) == ("changes", "c.s.t", True)
    assert dict(flow.spark_conf) == {"a": "1"}
    assert spec.sequence_by is sequence
    assert spec.apply_as_deletes is deletes
    assert (spec.source, spec.keys) == ("LIVE.s", ("id", "a.b"))
    assert (spec.columns, spec.except_columns) == (None, ("op", "seq"))
    assert spec.scd_type is ScdType.TWO
    assert spec.track_history == TrackHistory(except_columns=("city",))
    assert (spec.ignore_null_updates, spec.ignore_null_columns) == (True, ("city",))


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "1"), (1, "1"), ("1", "1"), (2, "2"), ("2", "2"), ("SCD TYPE 2", "2")],
)
def test_scd_type_may_be_a_number_or_a_string(value, expected):
    flow = _flow(lambda: dp.create_auto_cdc_flow(**BASE, stored_as_scd_type=value))
    assert flow.cdc.scd_type.value == expected


def test_empty_column_list_means_not_set():
    flow = _flow(lambda: dp.create_auto_cdc_flow(**BASE, column_list=[], except_column_list=["a"]))
    assert (flow.cdc.columns, flow.cdc.except_columns) == (None, ("a",))


WRONG = {
    "no target": (dict(BASE, target=None), "INVALID_PARAMETER"),
    "no source": (dict(BASE, source=None), "INVALID_PARAMETER"),
    "no keys": (dict(BASE, keys=[]), "INVALID_PARAMETER"),
    "keys none": (dict(BASE, keys=None), "INVALID_PARAMETER"),
    "keys as a string": (dict(BASE, keys="id"), "INVALID_PARAMETER"),
    "duplicate key": (dict(BASE, keys=["id", "ID"]), "INVALID_PARAMETER"),
    "key of a number": (dict(BASE, keys=[1]), "INVALID_PARAMETER"),
    "qualified key": (dict(BASE, keys=["s.id"]), "INVALID_PARAMETER"),
    "key expression": (dict(BASE, keys=[Column("upper(id)")]), "INVALID_PARAMETER"),
    "blank key": (dict(BASE, keys=[" "]), "INVALID_PARAMETER"),
    "no sequence": (dict(BASE, sequence_by=None), "INVALID_PARAMETER"),
    "sequence of a number": (dict(BASE, sequence_by=3), "INVALID_PARAMETER"),
    "bad source name": (dict(BASE, source="a..b"), "INVALID_NAME"),
    "scd 3": (dict(BASE, stored_as_scd_type=3), "INVALID_PARAMETER"),
    "scd true": (dict(BASE, stored_as_scd_type=True), "INVALID_PARAMETER"),
    "bitemporal": (dict(BASE, stored_as_scd_type="bitemporal"), "FEATURE_NOT_AVAILABLE"),
    "system sequence": (dict(BASE, system_sequence_by="ts"), "FEATURE_NOT_AVAILABLE"),
    "both lists": (
        dict(BASE, column_list=["a"], except_column_list=["b"]),
        "CONFLICTING_PARAMETERS",
    ),
    "both track lists": (
        dict(
            BASE,
            stored_as_scd_type=2,
            track_history_column_list=["a"],
            track_history_except_column_list=["b"],
        ),
        "CONFLICTING_PARAMETERS",
    ),
    "nulls and updates": (
        dict(BASE, ignore_null_updates=True, columns_to_update="u"),
        "CONFLICTING_PARAMETERS",
    ),
    "track without history": (dict(BASE, track_history_column_list=["a"]), "INVALID_PARAMETER"),
    "truncate with history": (
        dict(BASE, stored_as_scd_type=2, apply_as_truncates="op = 'T'"),
        "INVALID_PARAMETER",
    ),
    "two names": (dict(BASE, name="a", flow_name="b"), "CONFLICTING_PARAMETERS"),
    "unknown": (dict(BASE, apply_as_delete="x"), "UNKNOWN_PARAMETER"),
}


@pytest.mark.parametrize(("arguments", "condition"), WRONG.values(), ids=WRONG)
def test_invalid_argument_is_one_error_with_its_file(arguments, condition):
    (error,) = _errors(lambda: dp.create_auto_cdc_flow(**arguments))
    assert error.condition == condition
    assert error.origin.file.endswith("test_cdc_arguments.py")


def test_hint_names_the_nearest_parameter_when_misspelt():
    (error,) = _errors(lambda: dp.create_auto_cdc_flow(**BASE, apply_as_delete="x"))
    assert "apply_as_deletes" in error.hint


class Reader:
    """A reader of a streaming view, which refuses batch reads."""

    def __init__(self):
        self.calls = []

    def read(self, name):
        self.calls.append(("read", name))
        raise DefinitionError("INCOMPATIBLE_VIEW_READ", "a stream")

    def read_stream(self, name):
        self.calls.append(("read_stream", name))
        return Frame()


class Frame:
    def where(self, condition):
        return f"where {condition}"


def test_the_source_is_read_as_a_stream_and_filtered():
    flow = _flow(lambda: dp.create_auto_cdc_flow(**BASE, where=Column("seq > 2")))
    with reading(Reader()):
        assert flow.function() == "where Column<'seq > 2'>"
    flow = _flow(lambda: dp.create_auto_cdc_flow(**BASE, where="seq > 3"))
    reader = Reader()
    with reading(reader):
        assert flow.function() == "where seq > 3"
    assert reader.calls == [("read_stream", "s")]


def test_a_streaming_view_is_read_as_a_stream_when_the_flow_runs_once():
    flow = _flow(lambda: dp.create_auto_cdc_flow(**BASE, once=True))
    reader = Reader()
    with reading(reader):
        assert isinstance(flow.function(), Frame)
    assert reader.calls == [("read", "s"), ("read_stream", "s")]


@pytest.mark.parametrize(
    "name",
    ["apply_changes", "create_auto_cdc_flow", "apply_changes_from_snapshot"],
)
def test_errors_name_the_function_that_was_called(name):
    function = getattr(dp, name)
    assert function.__name__ == name
    messages = [error.message for error in _errors(lambda: function("t", "s", ["a", "A"], x=1))]
    assert messages
    assert all(f"`{name}`" in message for message in messages)
    (missing,) = _errors(lambda: function())
    assert missing.message.startswith(f"`{name}`")


def test_errors_name_the_called_alias_of_create_streaming_table():
    for name in ("create_target_table", "create_streaming_live_table", "create_streaming_table"):
        (error,) = _errors(lambda name=name: getattr(dp, name)(name="  "))
        assert error.message == f"`{name}`: `name` is blank"


def test_snapshot_source_may_be_a_function_a_pair_or_a_name():
    def next_snapshot(latest):
        return None

    by_function = _flow(
        lambda: dp.apply_changes_from_snapshot(
            target="t", snapshot_and_version=next_snapshot, keys=["id"], stored_as_scd_type=2
        )
    )
    assert by_function.snapshot.next_snapshot is next_snapshot
    assert by_function.snapshot.source is None
    assert by_function.snapshot.scd_type is ScdType.TWO
    by_pair = _flow(
        lambda: dp.apply_changes_from_snapshot("t", snapshot_and_version=("df", 5), keys=["id"])
    )
    snapshots = [by_pair.snapshot.next_snapshot(latest) for latest in (None, 4, 5, 6)]
    assert snapshots == [("df", 5), ("df", 5), None, None]
    by_name = _flow(
        lambda: dp.create_auto_cdc_from_snapshot_flow("t", "s", [Column("id")], once=True)
    )
    assert (by_name.snapshot.source, by_name.snapshot.keys, by_name.once) == ("s", ("id",), True)


SNAPSHOT_WRONG = {
    "no source": ({"target": "t", "keys": ["id"]}, "INVALID_PARAMETER"),
    "number as source": ({"target": "t", "source": 3, "keys": ["id"]}, "INVALID_PARAMETER"),
    "three in a tuple": (
        {"target": "t", "source": ("df", 1, 2), "keys": ["id"]},
        "INVALID_PARAMETER",
    ),
    "no keys": ({"target": "t", "source": "s"}, "INVALID_PARAMETER"),
    "both sources": (
        {"target": "t", "source": "s", "snapshot_and_version": "u", "keys": ["id"]},
        "CONFLICTING_PARAMETERS",
    ),
    "track without history": (
        {"target": "t", "source": "s", "keys": ["id"], "track_history_column_list": ["a"]},
        "INVALID_PARAMETER",
    ),
}


@pytest.mark.parametrize(("arguments", "condition"), SNAPSHOT_WRONG.values(), ids=SNAPSHOT_WRONG)
def test_invalid_argument_of_a_snapshot_flow_is_one_error(arguments, condition):
    (error,) = _errors(lambda: dp.create_auto_cdc_from_snapshot_flow(**arguments))
    assert error.condition == condition
