"""Numbers with exponents that Spark would expand, which takes seconds to hours for one value.

Spark's parsers of JSON, CSV and XML convert a number for a DECIMAL column to a BigDecimal and then
set its scale, which computes all digits of `1e300000000` (SPARK-55932 is the same problem in the
conversion to VARIANT). CAST checks the size first, but not that of `1e-300000000`.
"""

import json
import re
from collections.abc import Iterator

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructType

REASON = "a number has an exponent of more than three digits"

LARGE_EXPONENT = r"[0-9.][eE][+-]?[0-9]{4}"
"""Regular expression that matches every text with such a number, and possibly others."""

# Java evaluates possessive groups in a loop: a long string does not overflow the stack.
_STRINGS = r"""(?s)"(?:[^"\\]++|\\.)*+"|'(?:[^'\\]++|\\.)*+'"""
_QUOTED = r"""["']\s*[+-]?[0-9.]+[eE][+-]?[0-9]{4}[0-9]*\s*["'](?!\s*:)"""


def huge_number(text: Column, schema: StructType) -> Column | None:
    """Whether a JSON text has a number that Spark must not parse into this schema.

    That is an unquoted number whose exponent has four or more digits, or a quoted one in a DECIMAL
    field. Other strings are not matched: `"5e12345"` may be an id. The result is NULL or false for
    NULL; `None` for a schema without a DECIMAL, with which Spark does not expand numbers.
    """
    names = list(dict.fromkeys(decimal_fields(schema)))
    if not names:
        return None
    keys = "|".join(re.escape(json.dumps(name, ensure_ascii=False)[1:-1]) for name in names)
    quoted = rf"""["'](?:{keys})["']\s*:\s*(?:[\[{{][^\]}}]*?)?{_QUOTED}"""
    outside = F.regexp_replace(text, F.lit(_STRINGS), F.lit('""'))
    certain = outside.rlike(LARGE_EXPONENT) | text.rlike(quoted)
    # Most messages need only this first check.
    return F.when(text.rlike(LARGE_EXPONENT), certain).otherwise(F.lit(False))


def decimal_fields(
    kind: DataType, name: str | None = None, *, text_field: str = ""
) -> Iterator[str]:
    """Names of the fields whose values, or elements, are DECIMAL.

    `text_field` is the field for the text of an XML element; the name of the element is returned.
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
