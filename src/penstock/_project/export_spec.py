"""`metrics` and `lineage` of a spec file: what a pipeline tells other systems."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from penstock._model.export import LineageSettings, MetricsSettings


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class MetricsSpec(_Part):
    """`metrics: {port: ..., address: ...}`."""

    port: int | None = Field(
        default=None,
        strict=False,
        ge=0,
        le=65535,
        description="Serve metrics for Prometheus on this port; 0 for any free one.",
    )
    address: str = Field(default="127.0.0.1", min_length=1, description="What to listen on.")

    def settings(self) -> MetricsSettings:
        """The same as plain data."""
        return MetricsSettings(port=self.port, address=self.address)


def _as_switch(value: Any) -> Any:
    return {"enabled": value} if isinstance(value, bool) else value


class LineageSpec(_Part):
    """`lineage: {namespace: ..., transport: {...}}`, or `lineage: true`."""

    enabled: bool = Field(default=True, description="false: send nothing, whoever asks for it.")
    namespace: str = Field(default="", description="OpenLineage namespace of the jobs.")
    transport: dict[str, Any] = Field(
        default_factory=dict,
        description="Transport as in openlineage.yml; `${secret:...}` is filled in.",
    )

    def settings(self) -> LineageSettings:
        """The same as plain data."""
        return LineageSettings(
            is_wanted=self.enabled, namespace=self.namespace, transport=self.transport
        )


Lineage = Annotated[
    LineageSpec | None,
    BeforeValidator(_as_switch, json_schema_input_type=bool | LineageSpec | None),
]
