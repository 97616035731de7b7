"""Numbers in JSON whose exponent Spark would write out: seconds to hours for one value.

Spark's JSON parser turns a number for a DECIMAL column into a BigDecimal and then sets its scale,
which computes all digits of `1e300000000`. Its CAST checks the size first, the parser does not.
"""

import json
import re
from collections.abc import Iterator

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructType

REASON = "a number has an exponent of more than three digits"

_EXPONENT = r"[0-9.][eE][+-]?[0-9]{4}"
# The possessive groups are loops in Java: a long string needs no stack.
_STRINGS = r"""(?s)"(?:[^"\\]++|\\.)*+"|'(?:[^'\\]++|\\.)*+'"""
_QUOTED = r"""["']\s*[+-]?[0-9.]+[eE][+-]?[0-9]{4}[0-9]*\s*["'](?!\s*:)"""


def huge_number(text: Column, schema: StructType) -> Column | None:
    """Whether a JSON text has a number that Spark must not parse into this schema.

    That is a number without quotes with four or more digits in its exponent, or one in quotes that
    goes into a DECIMAL. Other strings are left alone: `"5e12345"` may be an id. The result is NULL
    or false for NULL; `None` for a schema without a DECIMAL, with which Spark writes nothing out.
    """
    names = list(dict.fromkeys(_decimal_fields(schema)))
    if not names:
        return None
    keys = "|".join(re.escape(json.dumps(name, ensure_ascii=False)[1:-1]) for name in names)
    quoted = rf"""["'](?:{keys})["']\s*:\s*(?:[\[{{][^\]}}]*?)?{_QUOTED}"""
    outside = F.regexp_replace(text, F.lit(_STRINGS), F.lit('""'))
    certain = outside.rlike(_EXPONENT) | text.rlike(quoted)
    # The first look is all that a normal message costs.
    return F.when(text.rlike(_EXPONENT), certain).otherwise(F.lit(False))


def _decimal_fields(kind: DataType, name: str | None = None) -> Iterator[str]:
    """Names of the fields whose values, or elements, are DECIMAL."""
    if isinstance(kind, DecimalType) and name is not None:
        yield name
    elif isinstance(kind, ArrayType):
        yield from _decimal_fields(kind.elementType, name)
    elif isinstance(kind, MapType):
        yield from _decimal_fields(kind.valueType, name)
    elif isinstance(kind, StructType):
        for field in kind:
            yield from _decimal_fields(field.dataType, field.name)
