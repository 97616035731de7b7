"""CSV: from text to typed columns by the names in each file's own header.

Spark's CSV reader matches columns by position: it mixes up the columns of files with different
orders. Here, a file whose header equals the schema is parsed as it is; the lines of other files are
reordered first. The same parser produces the typed columns in both cases.

`CsvRecords`, a JVM class, reads the header of each line's file and parses the lines of files with
the schema's header. If lines alone are not records, files are read and split as a whole.
"""

import re
from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, StringType, StructField, StructType

from penstock._formats.options import Evolution, FileOptions
from penstock._formats.rescue import FLAW, INTO_FLAW, typed_columns
from penstock._formats.rows import (
    LEFT,
    TEXT,
    TYPED,
    broken_sql,
    decoded,
    interpreted,
    left_sql,
    own_class,
)
from penstock._formats.sqltext import (
    FILE,
    NO_TEXTS,
    columns_sql,
    dotted,
    json_text,
    literals,
    options_map,
    path_part,
    with_value,
)
from penstock._formats.widening import can_widen, entry, wider_for_text
from penstock._model.sql_text import literal, quoted
from penstock.parsing.exponents import LARGE_EXPONENT

_HEADER = "__files_header"
_FITTED = "__files_fitted"
_PARSED = "__files_parsed"
_RECORD = "__files_record"
_FIRST = "__files_first"
_LINES = "__files_lines"
_LINE_END = r"\r\n|\n|\r"


def needs_whole_files(spark: SparkSession, options: FileOptions) -> bool:
    """Whether lines alone are not records, or a session lacks Penstock's Java classes."""
    return (
        options.whole_files
        or (options.parser_flag("header") and bool(options.parser_option("lineSep")))
        or int(options.parser_option("skipRows", default="0")) > 0
        or own_class(spark, "CsvRecords") is None
    )


def csv_rows(
    raw: DataFrame, schema: StructType, options: FileOptions, in_path: Sequence[str] = ()
) -> DataFrame:
    """Parse text: column `value` with one file each, or a line unless `needs_whole_files`.

    The columns `in_path` get their values from the path, even if a file has them as well.
    """
    csv = _Csv(schema, options, in_path)
    whole = needs_whole_files(raw.sparkSession, options)
    df = decoded(raw, options, whole=whole)
    fitted = f"CASE WHEN {_HEADER} IS NULL THEN {TEXT} ELSE {csv.fitted()} END"
    if whole:
        df = csv.records(df).selectExpr(FILE, _HEADER, TEXT, f"{fitted} AS {_FITTED}")
        df = df.selectExpr(FILE, _HEADER, TEXT, f"{csv.typed(_FITTED)} AS {TYPED}")
    else:
        df = csv.lines_with_headers(df)
        parsed = F.col(_PARSED)
        line = F.when(parsed.isNull(), interpreted(df, fitted, _HEADER, TEXT))
        df = df.withColumn(_FITTED, line)
        typed = F.when(parsed.isNull(), interpreted(df, csv.typed(_FITTED), _FITTED))
        df = df.select(FILE, _HEADER, TEXT, typed.otherwise(parsed).alias(TYPED))
    fits, left = csv.left()
    left_column = F.when(~F.expr(fits), interpreted(df, left, _HEADER, TEXT, TYPED))
    return df.select(FILE, TEXT, TYPED, left_column.alias(LEFT))


def headers(spark: SparkSession, options: FileOptions, files: Sequence[str]) -> list[list[str]]:
    """The column names in the header of each file, unless `needs_whole_files`.

    They are empty for a file that has no record or cannot be read.
    """
    java_class = own_class(spark, "CsvRecords")
    options_of_parser = _Csv(StructType([]), options).options_of_lines()
    names = java_class.headers(spark._jsparkSession, list(files), options_of_parser)
    return [list(of_file) for of_file in names]


def headers_of_whole_files(raw: DataFrame, options: FileOptions) -> DataFrame:
    """The column names in the header of each file, one row with `names` each."""
    csv = _Csv(StructType([]), options)
    df = decoded(raw, options, whole=True).selectExpr(f"get({csv.lines()}, 0) AS {_FIRST}")
    return df.selectExpr(f"{csv.names(_FIRST)} AS names")


class _Csv:
    def __init__(
        self, schema: StructType, options: FileOptions, in_path: Sequence[str] = ()
    ) -> None:
        self._schema = schema
        self._in_path = in_path
        self._options = options
        self._parse = options.record_options
        self._names = [field.name for field in schema.fields]
        separator = options.parser_option("sep", "delimiter", default=",")
        self._separator = separator.replace(r"\t", "\t")  # as Spark takes it
        self._quote = options.parser_option("quote", default='"')
        self._escape = options.parser_option("escape", default="\\")
        self._comment = options.parser_option("comment")

    def records(self, df: DataFrame) -> DataFrame:
        """The lines of files with the names in their headers; NULL if these equal the schema's."""
        # Each in a separate projection, so that it is computed once, not for each use.
        df = df.selectExpr(FILE, f"{self.lines()} AS {_LINES}")
        body = _LINES
        if self._options.parser_flag("header"):
            body = f"slice({_LINES}, 2, greatest(size({_LINES}) - 1, 0))"
        df = df.selectExpr(FILE, _LINES, f"{self.header(f'get({_LINES}, 0)')} AS {_HEADER}")
        return df.selectExpr(FILE, _HEADER, f"explode({body}) AS {TEXT}")

    def lines_with_headers(self, df: DataFrame) -> DataFrame:
        """As `records` for lines, with the typed columns if the names equal the schema's."""
        columns: list[Any] = [F.col("value"), F.col(FILE), F.col("_metadata.file_block_start")]
        java = own_class(df.sparkSession, "CsvRecords").parsed(
            df.sparkSession._jsparkSession,
            *(column._jc for column in columns),
            columns_sql(self._schema, colon=True),
            FLAW,
            self.options_of_lines(),
            self._options.case_sensitive,
            LARGE_EXPONENT,
        )
        df = df.select(FILE, F.col("value").alias(TEXT), Column(java).alias(_RECORD))
        df = df.filter(f"{_RECORD}.is_record")
        return df.selectExpr(
            FILE, TEXT, f"{_RECORD}.header AS {_HEADER}", f"{_RECORD}.typed AS {_PARSED}"
        )

    def options_of_lines(self) -> dict[str, str]:
        """The options of `CsvRecords`."""
        encoding = self._options.parser_option("encoding", "charset", default="UTF-8")
        comment = {"comment": self._comment} if self._comment else {}
        header = str(self._options.parser_flag("header")).lower()
        return {**self._parse, **comment, "header": header, "encoding": encoding}

    def lines(self) -> str:
        """SQL: the records of a file, including its header."""
        separator = self._options.parser_option("lineSep")
        if self._options.multiline and self._quote:
            records = f"regexp_extract_all(value, {literal(self._record())}, 0)"
            records = f"transform({records}, x -> regexp_replace(x, '[\\\\r\\\\n]+$', ''))"
        else:
            end = re.escape(separator) if separator else _LINE_END
            records = f"split(value, {literal(end)})"
        skipped = int(self._options.parser_option("skipRows", default="0"))
        if skipped:
            records = with_value(
                "rs", records, f"slice(rs, {skipped + 1}, greatest(size(rs) - {skipped}, 0))"
            )
        is_record = "trim(' \\t\\r\\n', x) <> ''"
        if self._comment:
            is_record += f" AND NOT startswith(ltrim(x), {literal(self._comment)})"
        return f"filter({records}, x -> {is_record})"

    def _record(self) -> str:
        """A pattern for a record with line ends in quotes; possessive, to avoid recursion."""
        separator = re.escape(self._separator)
        plain = rf"(?:(?!{separator})[^\r\n])*+"
        token = rf"(?:[ \t]*+{self._quoted()})?+{plain}(?:{separator}|(?=[\r\n]|\z))"
        return rf"(?:{token})++(?:\r\n|\n|\r|\z)"

    def _quoted(self) -> str:
        quote, escape = re.escape(self._quote), re.escape(self._escape or self._quote)
        plain = f"[^{_class(self._quote)}{_class(self._escape)}]"
        end = rf"\s*(?:{re.escape(self._separator)}|[\r\n]|\z)"
        inside = rf"{plain}++|{quote}{quote}"
        if escape != quote:
            inside += rf"|{escape}(?!{quote}{end})[\s\S]|{escape}{quote}"
        return rf"{quote}(?:{inside})*+{quote}"

    def names(self, first: str) -> str:
        """SQL: the names in a header as Spark's reader would call the columns."""
        tokens = f"transform({self._tokens(first)}, x -> trim({self._value('x')}))"
        # Names that differ only in case are distinct: one is a column, the others are rescued.
        is_duplicate = "size(filter(h, y -> y = x)) > 1"
        safe = (
            "transform(h, (x, i) -> CASE WHEN x IS NULL OR x = '' THEN concat('_c', i) "
            f"WHEN {is_duplicate} THEN concat(x, i) ELSE x END)"
        )
        return f"CASE WHEN {first} IS NOT NULL THEN {with_value('h', tokens, safe)} END"

    def header(self, first: str) -> str:
        """SQL: the names in a file's header; NULL if they equal the schema's."""
        if not self._options.parser_flag("header"):
            return "cast(NULL AS array<string>)"
        names = self.names(first)
        if not self._options.case_sensitive and self._names:
            spelled = ", ".join(f"{literal(n.lower())}, {literal(n)}" for n in self._names)
            alone = "size(filter(hs, y -> lower(y) = lower(x))) = 1"
            spelling = f"coalesce(try_element_at(map({spelled}), lower(x)), x)"
            respelled = f"transform(hs, x -> CASE WHEN {alone} THEN {spelling} ELSE x END)"
            names = with_value("hs", names, respelled)
        return with_value("hn", names, f"CASE WHEN hn <> {literals(self._names)} THEN hn END")

    def typed(self, text: str) -> str:
        """SQL: the struct of the typed columns."""
        parsed = self._parsed(text, self._schema)
        decimals = {f.name for f in self._schema if isinstance(f.dataType, DecimalType)}
        if not decimals:
            return parsed
        # The flaw causes a comparison of the record, which rescues the number that is left out.
        fields = [
            StructField(f.name, StringType()) if f.name in decimals else f for f in self._schema
        ]
        strings = self._parsed(text, StructType(fields))
        cells = []
        for field in self._schema:
            cell = f"st.{quoted(field.name)}"
            if field.name in decimals:
                number = f"try_cast({cell} AS {field.dataType.simpleString()})"
                cell = f"CASE WHEN {cell} NOT RLIKE {literal(LARGE_EXPONENT)} THEN {number} END"
            cells += [literal(field.name), cell]
        cells += [literal(FLAW), text]
        cast = with_value("st", strings, f"named_struct({', '.join(cells)})")
        return f"CASE WHEN {text} RLIKE {literal(LARGE_EXPONENT)} THEN {cast} ELSE {parsed} END"

    def _parsed(self, text: str, schema: StructType) -> str:
        return f"from_csv({text}, {typed_columns(schema)}, {options_map(self._parse | INTO_FLAW)})"

    def _tokens(self, text: str) -> str:
        separator = re.escape(self._separator)
        plain = f"split({text}, {literal(separator)}, -1)"
        if not self._quote:
            return plain
        # With a leading separator, every token begins with one, and no match is empty.
        token = rf"{separator}((?:[ \t]*+{self._quoted()})?+(?:(?!{separator})[\s\S])*+)"
        line = f"concat({literal(self._separator)}, {text})"
        quoted = f"regexp_extract_all({line}, {literal(token)}, 1)"
        return f"CASE WHEN contains({text}, {literal(self._quote)}) THEN {quoted} ELSE {plain} END"

    def _value(self, token: str) -> str:
        parser_options = {**self._parse, "mode": "PERMISSIVE"}
        return f"from_csv({token}, 'v string', {options_map(parser_options)}).v"

    def fitted(self) -> str:
        """SQL: a line in the order of the schema."""
        cells = ", ".join(f"coalesce({_lookup(literal(n), _HEADER)}, '')" for n in self._names)
        line = f"concat_ws({literal(self._separator)}, {cells})" if cells else "''"
        return with_value("tk", self._tokens(TEXT), line)

    def left(self) -> tuple[str, str]:
        """SQL: whether a line fits into the columns, and a value of `LEFT` if it does not."""
        names = f"coalesce({_HEADER}, {literals(self._names)})"
        misfits = []
        for column in self._names:
            value = f"CASE WHEN {TYPED}.{quoted(column)} IS NULL THEN {self._value('mt')} END"
            entry_text = f"concat({json_text(literal(column))}, ':', {json_text('mv')})"
            shown = with_value("mv", value, f"CASE WHEN mv <> '' THEN {entry_text} END")
            misfits.append(with_value("mt", _lookup(literal(column), "tn"), shown))
        known = literals([*self._names, *self._in_path])
        # Tokens without a column, by the name in the header or their position in the line.
        place = "coalesce(get(tn, i), concat('_c', i))"
        entry_text = f"concat({json_text(place)}, ':', {json_text('v')})"
        others = (
            f"transform(tk, (x, i) -> CASE WHEN NOT array_contains({known}, {place}) THEN "
            + with_value("v", self._value("x"), f"CASE WHEN v IS NOT NULL THEN {entry_text} END")
            + " END)"
        )
        parts = ", ".join(misfits) or "cast(NULL AS string)"
        fragments = f"filter(concat({others}, array({parts})), x -> x IS NOT NULL)"
        new = NO_TEXTS
        if self._options.evolution is not Evolution.NONE:
            taken = [name.lower() for name in (*self._names, *self._in_path)]
            folded = literals([*taken, *self._options.reserved])
            test = f"NOT array_contains({folded}, lower(x)) AND NOT x RLIKE '^_c[0-9]+$'"
            paths = f"transform(filter({_HEADER}, x -> {test}), x -> {dotted('', 'x')})"
            new = f"coalesce({paths}, {NO_TEXTS})"
        tokens, wide = self._tokens(TEXT), self._wider()
        whole = left_sql(fragments=fragments, new=new, wide=wide)
        slow = with_value("tk", tokens, with_value("tn", names, whole))
        fits = f"{_HEADER} IS NULL AND {TYPED}.{FLAW} IS NULL"
        if self._quote:
            opened = self._has_open_quote()
            slow = f"CASE WHEN {opened} THEN {broken_sql(TEXT)} ELSE {slow} END"
            fits += f" AND NOT ({opened})"
        if any(isinstance(f.dataType, DecimalType) for f in self._schema) and wide != NO_TEXTS:
            fits += f" AND size({with_value('tk', tokens, with_value('tn', names, wide))}) = 0"
        return fits, slow

    def _wider(self) -> str:
        entries = []
        for field in self._schema.fields:
            if self._options.evolution is not Evolution.WIDEN or not can_widen(field.dataType):
                continue
            value = self._value("wt")
            if not isinstance(field.dataType, DecimalType):  # they are rounded, not refused
                value = f"CASE WHEN {TYPED}.{quoted(field.name)} IS NULL THEN {value} END"
            wider = entry(path_part(field.name), wider_for_text("wv", field.dataType))
            lookup = _lookup(literal(field.name), "tn")
            entries.append(with_value("wt", lookup, with_value("wv", value, wider)))
        return f"filter(array({', '.join(entries)}), x -> x IS NOT NULL)" if entries else NO_TEXTS

    def _has_open_quote(self) -> str:
        """SQL: whether a quote is not closed; the parser would consume the following tokens."""
        separator = re.escape(self._separator)
        opened = rf"(?:^|{separator})[ \t]*+{re.escape(self._quote)}"
        first = rf"(?:(?!{separator})[\s\S])*+"
        token = rf"[ \t]*+(?:{self._quoted()}|(?!{re.escape(self._quote)})){first}"
        closed = rf"^(?:{token}(?:{separator}|\z))*+\z"
        return (
            f"contains({TEXT}, {literal(self._quote)}) AND {TEXT} RLIKE {literal(opened)} "
            f"AND NOT {TEXT} RLIKE {literal(closed)}"
        )


def _lookup(key: str, names: str) -> str:
    return f"get(tk, cast(array_position({names}, {key}) AS int) - 1)"


def _class(text: str) -> str:
    return re.sub(r"([\\\]\[^&-])", r"\\\1", text[:1])
