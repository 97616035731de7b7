"""Auto CDC: flows that apply change events, or whole snapshots, to a streaming table."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Union

from penstock._api.arguments import Arguments, ConfValues, aliased, checked_call, is_a
from penstock._api.reading import read, read_stream
from penstock._model.cdc import CdcSpec, ScdType, SnapshotSpec, TrackHistory
from penstock._model.flow import Flow
from penstock._model.name import split_name
from penstock.errors import DefinitionError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Expression = Union[str, "Column"]
Columns = list[str] | list["Column"] | tuple[str, ...] | tuple["Column", ...]
Snapshot = tuple["DataFrame", Any]
Snapshots = Callable[[Any], Snapshot | None]

_COLUMN_TEXT = re.compile(r"Column<'(.*)'>", re.DOTALL)
_SCD_TYPE = re.compile(r"(?:scd\s*)?(?:type\s*)?([12])", re.IGNORECASE)


@checked_call
def create_auto_cdc_flow(
    target: str,
    source: str,
    keys: Columns,
    sequence_by: Expression,
    *,
    where: Expression | None = None,
    ignore_null_updates: bool | None = None,
    ignore_null_updates_column_list: Columns | None = None,
    ignore_null_updates_except_column_list: Columns | None = None,
    columns_to_update: Expression | None = None,
    apply_as_deletes: Expression | None = None,
    apply_as_truncates: Expression | None = None,
    column_list: Columns | None = None,
    except_column_list: Columns | None = None,
    stored_as_scd_type: int | str | None = None,
    track_history_column_list: Columns | None = None,
    track_history_except_column_list: Columns | None = None,
    system_sequence_by: object = None,
    name: str | None = None,
    flow_name: str | None = None,
    once: bool | None = None,
    spark_conf: ConfValues | None = None,
) -> None:
    """Define a flow that applies change events to a streaming table.

    Every event that is neither a delete nor a truncate is an upsert. The table depends on the set
    of events alone, not on the order in which they arrive. `None` always means "not given".

    Args:
        target: Streaming table, declared with `create_streaming_table`.
        source: Name of the dataset or table whose rows are the events.
        keys: Columns that identify a row of the target.
        sequence_by: Orders the events of a key: a SQL expression or a Column. Never NULL.
        where: Condition of the events to apply: a SQL expression or a Column.
        ignore_null_updates: NULL in an event keeps the stored value.
        ignore_null_updates_column_list: Only for these columns.
        ignore_null_updates_except_column_list: For all but these columns.
        columns_to_update: Column of the source (ARRAY<STRING>) that lists the columns which the
            event changes; NULL in it means all.
        apply_as_deletes: Condition of the events that delete.
        apply_as_truncates: Condition of the events that remove everything before them; SCD type 1
            only.
        column_list: Columns of the target; all if not given.
        except_column_list: All columns but these.
        stored_as_scd_type: 1 keeps the newest row of a key, 2 every version of it.
        track_history_column_list: Only these columns open a version; SCD type 2 only.
        track_history_except_column_list: All but these open a version; SCD type 2 only.
        system_sequence_by: Not available: bitemporal tables are not supported.
        name: Name of the flow, the key of its checkpoint; that of the target if not given.
        flow_name: Older spelling of `name`.
        once: Apply the current rows of the source one time, and again only after a full refresh.
        spark_conf: Settings of the flow; they win over those of its target and the pipeline.
    """
    arguments = Arguments("create_auto_cdc_flow")
    arguments.require(target=target, source=source, keys=keys, sequence_by=sequence_by)
    arguments.unavailable("system_sequence_by", system_sequence_by)
    checked_target = arguments.dataset_name("target", target)
    checked_source = arguments.dataset_name("source", source)
    checked_keys = _keys(arguments, keys)
    sequence = arguments.row_condition("sequence_by", sequence_by)
    condition = arguments.row_condition("where", where)
    scd_type = _scd_type(arguments, stored_as_scd_type)
    track = _track_history(
        arguments, scd_type, track_history_column_list, track_history_except_column_list
    )
    columns, except_columns = _exclusive(
        arguments, ("column_list", column_list), ("except_column_list", except_column_list)
    )
    null_columns, null_except = _exclusive(
        arguments,
        ("ignore_null_updates_column_list", ignore_null_updates_column_list),
        ("ignore_null_updates_except_column_list", ignore_null_updates_except_column_list),
    )
    ignores = bool(arguments.flag("ignore_null_updates", ignore_null_updates))
    ignores = ignores or null_columns is not None or null_except is not None
    update_list = None
    if columns_to_update is not None:
        update_list = _column(arguments, "columns_to_update", columns_to_update)
    if ignores and update_list is not None:
        arguments.conflict("ignore_null_updates", "columns_to_update")
    truncates = arguments.row_condition("apply_as_truncates", apply_as_truncates)
    if truncates is not None and scd_type is ScdType.TWO:
        arguments.reject("apply_as_truncates", "is for SCD type 1 only")
    deletes = arguments.row_condition("apply_as_deletes", apply_as_deletes)
    runs_once = bool(arguments.flag("once", once))
    checked_name = _flow_name(arguments, name, flow_name)
    conf = arguments.mapping("spark_conf", spark_conf)
    if checked_target is None or checked_source is None or not checked_keys or sequence is None:
        return
    arguments.registry.add_flow(
        Flow(
            name=checked_name or checked_target,
            target=checked_target,
            function=_events(checked_source, once=runs_once, where=condition),
            origin=arguments.origin,
            once=runs_once,
            spark_conf=conf,
            cdc=CdcSpec(
                source=checked_source,
                keys=checked_keys,
                sequence_by=sequence,
                apply_as_deletes=deletes,
                apply_as_truncates=truncates,
                columns=columns,
                except_columns=except_columns,
                scd_type=scd_type,
                track_history=track,
                ignore_null_updates=ignores,
                ignore_null_columns=null_columns,
                ignore_null_except_columns=null_except,
                columns_to_update=update_list,
            ),
        )
    )


@checked_call
def create_auto_cdc_from_snapshot_flow(
    target: str,
    source: "str | Snapshots | Snapshot | None" = None,
    keys: Columns | None = None,
    stored_as_scd_type: int | str | None = None,
    snapshot_and_version: "str | Snapshots | Snapshot | None" = None,
    track_history_column_list: Columns | None = None,
    track_history_except_column_list: Columns | None = None,
    *,
    name: str | None = None,
    flow_name: str | None = None,
    once: bool | None = None,
    spark_conf: ConfValues | None = None,
) -> None:
    """Define a flow that makes a streaming table follow the snapshots of a source.

    New rows are inserted, rows that differ are updated, rows that are gone are deleted.

    Args:
        target: Streaming table, declared with `create_streaming_table`.
        source: Name of a dataset or table, whose content is compared in every update; or a
            function that takes the version of the last snapshot (`None` at first) and returns the
            next one with its version, `(DataFrame, version)`, or `None` when there is none. It is
            called until then. Versions ascend; a lower one is skipped. Or one such pair.
        keys: Columns that identify a row of a snapshot.
        stored_as_scd_type: 1 keeps the newest row of a key, 2 every version of it.
        snapshot_and_version: Older spelling of `source`.
        track_history_column_list: Only these columns open a version; SCD type 2 only.
        track_history_except_column_list: All but these open a version; SCD type 2 only.
        name: Name of the flow; that of the target if not given.
        flow_name: Older spelling of `name`.
        once: Apply one time, and again only after a full refresh.
        spark_conf: Settings of the flow; they win over those of its target and the pipeline.
    """
    arguments = Arguments("create_auto_cdc_from_snapshot_flow")
    if source is not None and snapshot_and_version is not None:
        arguments.conflict("source", "snapshot_and_version")
    snapshots = source if source is not None else snapshot_and_version
    arguments.require(target=target, source=snapshots, keys=keys)
    checked_target = arguments.dataset_name("target", target)
    checked_keys = _keys(arguments, keys)
    scd_type = _scd_type(arguments, stored_as_scd_type)
    track = _track_history(
        arguments, scd_type, track_history_column_list, track_history_except_column_list
    )
    checked_name = _flow_name(arguments, name, flow_name)
    runs_once = bool(arguments.flag("once", once))
    conf = arguments.mapping("spark_conf", spark_conf)
    table = next_snapshot = None
    if callable(snapshots):
        next_snapshot = snapshots
    elif isinstance(snapshots, tuple):
        next_snapshot = _single_snapshot(arguments, snapshots)
    elif snapshots is not None:
        table = arguments.dataset_name("source", snapshots)
    if checked_target is None or not checked_keys or (table is None and next_snapshot is None):
        return
    arguments.registry.add_flow(
        Flow(
            name=checked_name or checked_target,
            target=checked_target,
            function=_no_query if table is None else _snapshot(table),
            origin=arguments.origin,
            once=runs_once,
            spark_conf=conf,
            snapshot=SnapshotSpec(
                source=table,
                next_snapshot=next_snapshot,
                keys=checked_keys,
                scd_type=scd_type,
                track_history=track,
            ),
        )
    )


apply_changes = aliased("apply_changes", create_auto_cdc_flow)
apply_changes_from_snapshot = aliased(
    "apply_changes_from_snapshot", create_auto_cdc_from_snapshot_flow
)


# -- query functions ----------------------------------------------------------------------------


def _events(source: str, *, once: bool, where: Expression | None) -> Callable[[], "DataFrame"]:
    def events() -> "DataFrame":
        df = _read_once(source) if once else read_stream(source)
        return df if where is None else df.where(where)

    return events


def _read_once(source: str) -> "DataFrame":
    """Read the current rows of a source; a streaming view is read as a stream."""
    try:
        return read(source)
    except DefinitionError as error:
        if error.condition != "INCOMPATIBLE_VIEW_READ":
            raise
        return read_stream(source)


def _snapshot(source: str) -> Callable[[], "DataFrame"]:
    return lambda: read(source)


def _single_snapshot(arguments: Arguments, snapshot: "Snapshot") -> "Snapshots | None":
    """A function that returns this snapshot if its version is newer than the last one."""
    if len(snapshot) != 2:
        arguments.reject("source", "as a tuple it must be (DataFrame, version)")
        return None
    version = snapshot[1]
    return lambda latest: snapshot if latest is None or latest < version else None


def _no_query() -> None:
    """The query of a flow whose snapshots come from a function."""


# -- arguments ----------------------------------------------------------------------------------


def _keys(arguments: Arguments, value: object) -> tuple[str, ...] | None:
    if isinstance(value, list | tuple) and not value:
        arguments.reject("keys", "is empty: at least one column identifies a row")
    return _columns(arguments, "keys", value)


def _columns(arguments: Arguments, parameter: str, value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple):
        shown = f"write [{value!r}]" if isinstance(value, str) else None
        arguments.reject(parameter, f"must be a list of columns, not {type(value).__name__}", shown)
        return None
    known = [name for entry in value if (name := _column(arguments, parameter, entry)) is not None]
    if len(known) < len(value) or arguments.has_duplicates(parameter, known):
        return None
    # Generated code passes an empty list for "not given".
    return tuple(known) or None


def _column(arguments: Arguments, parameter: str, value: object) -> str | None:
    if is_a(value, "Column"):
        match = _COLUMN_TEXT.fullmatch(str(value))
        text = match.group(1) if match else str(value)
        if not match or re.search(r"[()]|\s(?:AS|=)\s", text):
            arguments.reject(parameter, "must hold plain columns, not expressions")
            return None
    elif isinstance(value, str):
        text = value.strip()
    else:
        arguments.reject(
            parameter, f"must hold column names or Columns, not {type(value).__name__}"
        )
        return None
    if not text:
        arguments.reject(parameter, "has a blank column name")
        return None
    if "." not in text and "`" not in text:
        return text
    try:
        parts = split_name(text)
    except ValueError:
        parts = (text, text)
    if len(parts) > 1:
        arguments.reject(
            parameter,
            f"names {text!r}, but must name top-level columns without a qualifier",
            "put a name that has dots in `backticks`",
        )
        return None
    return parts[0]


def _exclusive(
    arguments: Arguments, only: tuple[str, object], but: tuple[str, object]
) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """Two lists of columns that exclude each other, each given as a parameter and its value."""
    only_columns = _columns(arguments, *only)
    but_columns = _columns(arguments, *but)
    if only_columns is not None and but_columns is not None:
        arguments.conflict(only[0], but[0])
        return None, None
    return only_columns, but_columns


def _scd_type(arguments: Arguments, value: object) -> ScdType:
    if value is None:
        return ScdType.ONE
    text = str(value).strip() if isinstance(value, int | str) else ""
    if text.lower() == "bitemporal":
        arguments.unavailable("stored_as_scd_type='bitemporal'", value)
        return ScdType.ONE
    match = None if isinstance(value, bool) else _SCD_TYPE.fullmatch(text)
    if match is None:
        arguments.reject("stored_as_scd_type", "must be 1 or 2")
        return ScdType.ONE
    return ScdType(match.group(1))


def _track_history(
    arguments: Arguments, scd_type: ScdType, columns: object, except_columns: object
) -> TrackHistory:
    only, but = _exclusive(
        arguments,
        ("track_history_column_list", columns),
        ("track_history_except_column_list", except_columns),
    )
    if scd_type is ScdType.ONE and (only is not None or but is not None):
        named = "track_history_column_list" if only else "track_history_except_column_list"
        arguments.reject(named, "is for SCD type 2 only", "set stored_as_scd_type=2")
        return TrackHistory()
    return TrackHistory(columns=only, except_columns=but)


def _flow_name(arguments: Arguments, name: object, flow_name: object) -> str | None:
    if name is not None and flow_name is not None and name != flow_name:
        arguments.conflict("name", "flow_name")
    return arguments.single_name("name", name if name is not None else flow_name)
