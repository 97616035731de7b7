"""Numbers in text whose exponent Spark would write out: seconds to hours for one value.

Spark's parsers of JSON, CSV and XML turn a number for a DECIMAL column into a BigDecimal and then
set its scale, which computes all digits of `1e300000000` (SPARK-55932 is the same in their
conversion to VARIANT). Its CAST checks the size first, but not of `1e-300000000`.
"""

import json
import re
from collections.abc import Iterator

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructType

REASON = "a number has an exponent of more than three digits"

LARGE_EXPONENT = r"[0-9.][eE][+-]?[0-9]{4}"
"""Regular expression that a text with such a number matches, and perhaps others."""

# The possessive groups are loops in Java: a long string needs no stack.
_STRINGS = r"""(?s)"(?:[^"\\]++|\\.)*+"|'(?:[^'\\]++|\\.)*+'"""
_QUOTED = r"""["']\s*[+-]?[0-9.]+[eE][+-]?[0-9]{4}[0-9]*\s*["'](?!\s*:)"""


def huge_number(text: Column, schema: StructType) -> Column | None:
    """Whether a JSON text has a number that Spark must not parse into this schema.

    That is a number without quotes with four or more digits in its exponent, or one in quotes that
    goes into a DECIMAL. Other strings are left alone: `"5e12345"` may be an id. The result is NULL
    or false for NULL; `None` for a schema without a DECIMAL, with which Spark writes nothing out.
    """
    names = list(dict.fromkeys(decimal_fields(schema)))
    if not names:
        return None
    keys = "|".join(re.escape(json.dumps(name, ensure_ascii=False)[1:-1]) for name in names)
    quoted = rf"""["'](?:{keys})["']\s*:\s*(?:[\[{{][^\]}}]*?)?{_QUOTED}"""
    outside = F.regexp_replace(text, F.lit(_STRINGS), F.lit('""'))
    certain = outside.rlike(LARGE_EXPONENT) | text.rlike(quoted)
    # The first look is all that a normal message costs.
    return F.when(text.rlike(LARGE_EXPONENT), certain).otherwise(F.lit(False))


def decimal_fields(
    kind: DataType, name: str | None = None, *, text_field: str = ""
) -> Iterator[str]:
    """Names of the fields whose values, or elements, are DECIMAL.

    `text_field` stands for the text of the XML element around it, and counts under that name.
    """
    if isinstance(kind, DecimalType) and name is not None:
        yield name
    elif isinstance(kind, ArrayType):
        yield from decimal_fields(kind.elementType, name, text_field=text_field)
    elif isinstance(kind, MapType):
        yield from decimal_fields(kind.valueType, name, text_field=text_field)
    elif isinstance(kind, StructType):
        for field in kind:
            inner = name if field.name == text_field else field.name
            yield from decimal_fields(field.dataType, inner, text_field=text_field)
