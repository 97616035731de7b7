"""Table properties as Delta takes them."""

from collections.abc import Mapping

from pyspark.sql import SparkSession

from penstock._model.exception_text import first_line
from penstock._model.origin import SourceLocation
from penstock._tables.delta_log import DeltaJvm
from penstock.errors import PlanError

_FEATURE = "delta.feature."


def check_properties(
    spark: SparkSession,
    properties: Mapping[str, str],
    *,
    name: str,
    origin: SourceLocation | None,
) -> dict[str, str]:
    """Table properties with `delta.*` keys checked and spelled as Delta spells them.

    Args:
        spark: Any session with Delta.
        properties: As declared.
        name: Of the table.
        origin: Where it was declared.

    Raises:
        PlanError: `TABLE_PROPERTY_INVALID`.
    """
    declared = {str(key): str(value) for key, value in properties.items()}
    if not any(key.lower().startswith("delta.") for key in declared):
        return declared
    delta = DeltaJvm(spark)
    for key in declared:
        feature = key.lower().removeprefix(_FEATURE)
        if key.lower().startswith(_FEATURE) and not delta.has_feature(feature):
            raise PlanError(
                "TABLE_PROPERTY_INVALID",
                f"{key} of {name} is not supported: open-source Delta Lake does not know the table "
                "feature, or it requires catalog-managed commits, and tables are written by path",
                origin=origin,
            )
    try:
        return delta.validated_properties(declared)
    except Exception as error:
        raise PlanError(
            "TABLE_PROPERTY_INVALID",
            f"a table property of {name} is refused by Delta: {first_line(error)}",
            origin=origin,
        ) from error
