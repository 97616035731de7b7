"""SQL that compares a record with the typed columns parsed from it.

The record is a variant, so it has every field, regardless of the schema. The comparison finds parts
that are in no typed column (fragments of the rescued data), field names that the schema lacks in
any case (they are added to it), and columns that are too narrow (they are widened).
"""

from dataclasses import dataclass

from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType, VariantType

from penstock._formats.options import Evolution, FileOptions
from penstock._formats.rows import TYPED, left_sql
from penstock._formats.sqltext import (
    NO_TEXTS,
    columns_sql,
    dotted,
    fragment,
    json_text,
    literals,
    options_map,
    path_part,
    type_sql,
    with_value,
)
from penstock._formats.widening import can_widen, entry, wider_for_variant
from penstock._model.sql_text import literal, quoted
from penstock._tables.write.schema import nested_types

FLAW = "__files_flaw"
"""Column of `from_json`, `from_csv` and `from_xml` with the text of a record that did not fit."""
INTO_FLAW = {"columnNameOfCorruptRecord": FLAW, "mode": "PERMISSIVE"}
"""Options that make these functions fill the column."""


def _map(variant: str) -> str:
    return f"try_variant_get({variant}, '$', 'map<string,variant>')"


def _items(variant: str) -> str:
    return f"try_variant_get({variant}, '$', 'array<variant>')"


@dataclass
class Comparison:
    """Builds the comparison for one schema; fields with reserved names are rescued.

    Unless `has_exact_strings`, the parser may shorten a number in a string column.
    """

    options: FileOptions
    parser: str = "from_json"
    has_exact_strings: bool = False
    _depth: int = 0

    def left_of_record(self, schema: StructType) -> str:
        """SQL of `LEFT` for a record whose fields are in the map of variants `f`."""
        left, new, wide = self.left_over("f", TYPED, schema), NO_TEXTS, NO_TEXTS
        if self.options.evolution is not Evolution.NONE:
            new = self._names("f", schema, "", exact=False)
        if self.options.evolution is Evolution.WIDEN:
            wide = self.wider_types("f", schema)
        return left_sql(fragments=left, new=new, wide=wide)

    def left_over(self, fields: str, typed: str, schema: StructType) -> str:
        """SQL: fragments of a map of variants that are in no typed column."""
        known = literals(field.name for field in schema.fields)
        entry = self._variable("e")
        unknown = (
            f"transform(filter(map_entries({fields}), {entry} -> "
            f"NOT array_contains({known}, {entry}.key)), {entry} -> "
            f"{fragment(entry + '.key', entry + '.value')})"
        )
        misfits = [
            self._misfit(fields, typed, field.name, field.dataType) for field in schema.fields
        ]
        if not misfits:
            return unknown
        return f"concat({unknown}, filter(array({', '.join(misfits)}), x -> x IS NOT NULL))"

    def _misfit(self, fields: str, typed: str, column: str, kind: DataType) -> str:
        value, cell = self._variable("v"), f"{typed}.{quoted(column)}"
        whole = fragment(literal(column), value)
        if isinstance(kind, StructType):
            inner, rest = self._variable("m"), self._variable("r")
            inside = self.left_over(inner, cell, kind)
            nested = with_value(
                rest,
                inside,
                f"CASE WHEN size({rest}) > 0 THEN concat({json_text(literal(column))}, ':{{', "
                f"array_join({rest}, ','), '}}') END",
            )
            parts = with_value(
                inner, _map(value), f"CASE WHEN {inner} IS NULL THEN {whole} ELSE {nested} END"
            )
            test = f"CASE WHEN {cell} IS NULL THEN {whole} ELSE {parts} END"
        elif isinstance(kind, ArrayType | MapType):
            unplaced = self._names_inside(value, kind, "", exact=True)
            lost = f"{cell} IS NULL OR size({unplaced}) > 0 OR {self._broken(value, kind)}"
            test = f"CASE WHEN {lost} THEN {whole} END"
        elif isinstance(kind, StringType) and not self.has_exact_strings:
            # A long fraction may have been shortened in the string; up to 15 digits, only its
            # notation can differ.
            text = f"to_json({value})"
            short = f"length(regexp_replace({text}, '[^0-9]', '')) <= 15"
            same = f"{short} AND try_cast({cell} AS double) <=> try_cast({text} AS double)"
            changed = (
                f"schema_of_variant({value}) RLIKE '^(DECIMAL|DOUBLE|FLOAT)' "
                f"AND {cell} <> {text} AND NOT ({same})"
            )
            lost = f"{cell} IS NULL OR ({changed}) OR {self._broken(value, kind)}"
            test = f"CASE WHEN {lost} THEN {whole} END"
        else:
            test = f"CASE WHEN {cell} IS NULL OR {self._broken(value, kind)} THEN {whole} END"
        source = f"try_element_at({fields}, {literal(column)})"
        present = f"{value} IS NOT NULL AND NOT is_variant_null({value})"
        return with_value(value, source, f"CASE WHEN {present} THEN {test} END")

    def _broken(self, value: str, kind: DataType) -> str:
        if self.parser == "from_xml":
            return self._shortened(value, kind)
        if not isinstance(kind, ArrayType):
            return "false"
        wanted = literal(f"x {type_sql(kind)}, {FLAW} string")
        options = options_map(self.options.record_options | INTO_FLAW)
        text = f"concat('{{\"x\":', to_json({value}), '}}')"
        return f"from_json({text}, {wanted}, {options}).{FLAW} IS NOT NULL"

    def _shortened(self, value: str, kind: DataType) -> str:
        """SQL: whether an XML element has attributes or repetitions that its column lacks."""
        if isinstance(kind, MapType | VariantType):
            return "false"
        items, known = _items(value), self._variable("p")
        if isinstance(kind, ArrayType):
            inside = self._shortened(known, kind.elementType)
            return f"exists(coalesce({items}, array({value})), {known} -> {inside})"
        if isinstance(kind, StructType):
            fields = [
                self._shortened(f"try_element_at({known}, {literal(f.name)})", f.dataType)
                for f in kind.fields
            ]
            more = with_value(known, _map(value), " OR ".join(fields) or "false")
        else:
            prefix = self.options.parser_option("attributePrefix", default="_")
            text = self.options.parser_option("valueTag", default="_VALUE")
            is_attribute = f"startswith(k, {literal(prefix)}) AND k <> {literal(text)}"
            more = f"exists(map_keys({_map(value)}), k -> {is_attribute})"
        return f"coalesce({items} IS NOT NULL OR {more}, false)"

    def wider_types(self, fields: str, schema: StructType, prefix: str = "") -> str:
        """SQL: columns that are too narrow for their values, as `path TYPE`."""
        parts = []
        for field in schema.fields:
            value = self._variable("w")
            inside = self._wider(value, field.dataType, prefix + path_part(field.name))
            if inside:
                source = f"try_element_at({fields}, {literal(field.name)})"
                parts.append(with_value(value, source, f"coalesce({inside}, {NO_TEXTS})"))
        if not parts:
            return NO_TEXTS
        return f"filter(concat({', '.join(parts)}), x -> x IS NOT NULL)"

    def _wider(self, value: str, kind: DataType, path: str) -> str:
        if can_widen(kind):
            prefers = self.options.parser_option("prefersDecimal").strip().lower() == "true"
            return f"array({entry(path, wider_for_variant(value, kind, prefers_decimal=prefers))})"
        if isinstance(kind, StructType):
            inner = self._variable("m")
            inside = self.wider_types(inner, kind, f"{path}.")
            return "" if inside == NO_TEXTS else with_value(inner, _map(value), inside)
        if isinstance(kind, ArrayType):
            item = self._variable("i")
            inside = self._wider(item, kind.elementType, path)
            return inside and f"flatten(transform({_items(value)}, {item} -> {inside}))"
        return ""

    def _names(self, fields: str, schema: StructType, prefix: str, *, exact: bool) -> str:
        """SQL: paths of the fields that the schema does not have, in any case unless `exact`."""
        key = self._variable("k")
        if exact:
            known = literals(field.name for field in schema.fields)
            test = f"NOT array_contains({known}, {key})"
        else:
            names = [field.name.lower() for field in schema.fields]
            known = literals([*names, *(() if prefix else self.options.reserved)])
            # Spark has no columns without a name: such a field is rescued.
            test = f"{key} <> '' AND NOT array_contains({known}, lower({key}))"
        unknown = f"filter(map_keys({fields}), {key} -> {test})"
        here = f"transform({unknown}, {key} -> {dotted(prefix, key)})"
        parts = [f"coalesce({here}, {NO_TEXTS})"]
        for field in schema.fields:
            if not _has_fields(field.dataType):
                continue
            value = self._variable("n")
            source = f"try_element_at({fields}, {literal(field.name)})"
            path = f"{prefix}{path_part(field.name)}."
            inside = self._names_inside(value, field.dataType, path, exact=exact)
            parts.append(with_value(value, source, inside))
        return parts[0] if len(parts) == 1 else f"array_distinct(concat({', '.join(parts)}))"

    def _names_inside(self, variant: str, kind: DataType, prefix: str, *, exact: bool) -> str:
        if isinstance(kind, StructType):
            inner = self._variable("m")
            names = self._names(inner, kind, prefix, exact=exact)
            return f"coalesce({with_value(inner, _map(variant), names)}, {NO_TEXTS})"
        if not isinstance(kind, ArrayType | MapType) or not _has_fields(kind):
            return NO_TEXTS
        inside = kind.elementType if isinstance(kind, ArrayType) else kind.valueType
        items = _items(variant) if isinstance(kind, ArrayType) else f"map_values({_map(variant)})"
        item = self._variable("i")
        names = self._names_inside(item, inside, prefix, exact=exact)
        listed = f"flatten(transform({items}, {item} -> {names}))"
        return f"coalesce(array_distinct({listed}), {NO_TEXTS})"

    def _variable(self, letter: str) -> str:
        self._depth += 1
        return f"{letter}{self._depth}"


def typed_columns(schema: StructType) -> str:
    """DDL literal of the columns to parse, including `FLAW`."""
    return literal(f"{columns_sql(schema)}, {FLAW} string")


def _has_fields(kind: DataType) -> bool:
    return any(isinstance(inner, StructType) for inner in nested_types(kind))
