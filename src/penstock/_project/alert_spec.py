"""`alerts` of a spec file: rules, and destinations of notifications."""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from penstock._model.alert import AlertKind, AlertRule, AlertSettings, AlertTarget
from penstock._project.export_spec import Count, PositiveCount, PositiveNumber, SpecPart, Truth


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class AlertRuleSpec(SpecPart):
    """An alert rule; exactly one of the first eight keys after `name` is set."""

    name: str = Field(description="Unique name.")
    failure_rate: float | None = Field(
        default=None,
        strict=False,
        ge=0,
        lt=1,
        description="Share of rows that violate a rule: 0.05 is 5 %.",
    )
    backlog: Count | None = Field(
        default=None, description="Records that wait at the sources of a flow."
    )
    no_progress_seconds: PositiveNumber | None = Field(
        default=None, description="Seconds since the last batch of a running flow."
    )
    lag_seconds: float | None = Field(
        default=None,
        strict=False,
        ge=0,
        description="Age of the oldest record, file or commit that a flow has not read.",
    )
    retention_seconds: PositiveNumber | None = Field(
        default=None, description="Seconds until the source removes rows that a flow has not read."
    )
    watermark_seconds: PositiveNumber | None = Field(
        default=None, description="Seconds without watermark advance while rows arrived."
    )
    schema_change: Truth | None = Field(
        default=None, description="true: columns of a dataset or source changed."
    )
    failed: Truth | None = Field(default=None, description="true: a flow or the update failed.")
    flow: str = Field(default="", description="Only this flow.")
    dataset: str = Field(default="", description="Only this dataset and its rules.")
    rule: str = Field(default="", description="Only this expectation.")
    batches: PositiveCount = Field(default=5, description="Number of batches of a failure rate.")
    min_rows: PositiveCount = Field(
        default=1, description="Minimum number of rows for a failure rate."
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if len(self._thresholds()) != 1 or False in (self.failed, self.schema_change):
            known = ", ".join(f"`{kind.value}`" for kind in AlertKind)
            raise ValueError(f"needs exactly one of {known}")
        return self

    def _thresholds(self) -> dict[AlertKind, float]:
        values = {kind: getattr(self, kind) for kind in AlertKind}
        return {
            kind: 0.0 if value is True else float(value)
            for kind, value in values.items()
            if value is not None
        }

    def rule_of(self) -> AlertRule:
        ((kind, threshold),) = self._thresholds().items()
        return AlertRule(kind=kind, threshold=threshold, **self.model_dump(exclude={*AlertKind}))


class MailSpec(SpecPart):
    """A mail server and the recipients."""

    to: Annotated[list[str], BeforeValidator(_listed, json_schema_input_type=str | list[str])] = (
        Field(description="Addresses.")
    )
    sender: str | None = Field(default=None, alias="from", description="Sender.")
    host: str = Field(default="localhost", description="Mail server.")
    port: int | None = Field(default=None, strict=False, description="Its port.")
    user: str | None = Field(default=None, description="User name for the login.")
    password: str | None = Field(default=None, description="`${secret:...}`.")
    tls: str = Field(
        default="starttls", pattern="^(starttls|ssl|none)$", description="starttls, ssl or none."
    )


class AlertTargetSpec(SpecPart):
    """A destination; exactly one of `webhook`, `command` and `email` is set."""

    webhook: str | None = Field(default=None, description="URL; may be `${secret:...}`.")
    format: str = Field(
        default="generic", pattern="^(generic|slack)$", description="Format of the webhook's JSON."
    )
    headers: dict[str, str] = Field(
        default_factory=dict, description="HTTP headers of the request."
    )
    command: Annotated[
        list[str] | None, BeforeValidator(_listed, json_schema_input_type=str | list[str])
    ] = Field(
        default=None, description="Program and arguments; JSON is sent to its standard input."
    )
    email: MailSpec | None = Field(default=None, description="A mail server and addresses.")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if sum(map(bool, (self.webhook, self.command, self.email))) != 1:
            raise ValueError("needs exactly one of `webhook`, `command`, `email`")
        return self

    def target(self) -> AlertTarget:
        mail = {}
        if self.email is not None:
            server = self.email.model_dump(by_alias=True, exclude={"to"}, exclude_none=True)
            mail = {key: str(value) for key, value in server.items()}
        return AlertTarget(
            webhook=self.webhook or "",
            slack=self.format == "slack",
            headers=self.headers,
            command=tuple(self.command or ()),
            mail_to=tuple(self.email.to) if self.email is not None else (),
            mail=mail,
        )


class AlertsSpec(SpecPart):
    """`alerts: {rules: [...], to: [...]}`."""

    rules: list[AlertRuleSpec] = Field(default_factory=list, description="Alert rules.")
    to: list[AlertTargetSpec] = Field(
        default_factory=list,
        description="Destinations of notifications; default: only the event log.",
    )
    repeat_seconds: PositiveNumber = Field(
        default=3600.0,
        description="Minimum interval between notifications about the same condition.",
    )

    @model_validator(mode="after")
    def _unique(self) -> Self:
        names = [rule.name for rule in self.rules]
        if len(set(names)) != len(names):
            raise ValueError("has two rules with the same name")
        return self

    def settings(self) -> AlertSettings:
        return AlertSettings(
            rules=tuple(rule.rule_of() for rule in self.rules),
            targets=tuple(target.target() for target in self.to),
            repeat_seconds=self.repeat_seconds,
        )
