"""Sends OpenLineage events with OpenLineage's client."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock._model.export import LineageSettings
from penstock._model.extras import import_extra
from penstock._model.redaction import remember_secret
from penstock._observe.bus import EventBus
from penstock._observe.delivery import QUEUE_SIZE, Delivery, Signal
from penstock._observe.events import EventOrigin, LineageProgress
from penstock._observe.masking import shown
from penstock.errors import SpecError

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient

_RUNNING_SECONDS = 30.0
_DEFAULT_NAMESPACE = "penstock"
_SIGNAL = Signal(
    name="lineage",
    items="events",
    body=LineageProgress,
    condition="LINEAGE_NOT_DELIVERED",
    class_name="LineageError",
)
_CONFIGURED = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")
_FILE = "openlineage.yml"


def is_wanted(settings: LineageSettings, root: str, environ: Mapping[str, str]) -> bool:
    """Whether lineage is enabled, by the settings or else by the configuration of OpenLineage.

    An `openlineage.yml` in the folder `root` of the project counts as configuration.
    """
    if environ.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return False
    if settings.is_wanted is not None:
        return settings.is_wanted
    if any(environ.get(name) for name in _CONFIGURED):
        return True
    if any(name.startswith("OPENLINEAGE__TRANSPORT") for name in environ):
        return True
    homes = (Path(root), Path(environ.get("HOME", "~")).expanduser() / ".openlineage")
    return any((home / _FILE).is_file() for home in homes)


def require_extra() -> None:
    """Raise `MISSING_EXTRA` unless OpenLineage's client is installed."""
    import_extra(
        "openlineage.client", extra="openlineage", feature="lineage", package="openlineage-python"
    )


def make_client(
    settings: LineageSettings, root: str, resolve_secrets: Callable[[str], str]
) -> "OpenLineageClient":
    """OpenLineage's client with its own configuration, overridden by the settings."""
    import yaml
    from openlineage.client import OpenLineageClient

    try:
        config: dict[str, Any] = {}
        beside = Path(root) / _FILE
        if beside.is_file() and not os.environ.get("OPENLINEAGE_CONFIG"):
            config = dict(yaml.safe_load(beside.read_text(encoding="utf-8")) or {})
        if settings.transport:
            config["transport"] = _resolved(settings.transport, resolve_secrets)
        _remember(config.get("transport"))
        client = OpenLineageClient(config=config or None)
    except Exception as error:
        text = shown(f"{type(error).__name__}: {error}")
        raise SpecError(
            "LINEAGE_NOT_CONFIGURED",
            f"OpenLineage's client rejected its configuration: {text}",
            hint="see `lineage.transport` in the settings, openlineage.yml and OPENLINEAGE_URL",
        ) from None
    chosen = client.config.transport or {}
    if client.transport.kind == "console" and chosen.get("type") != "console":
        raise SpecError(
            "LINEAGE_NOT_CONFIGURED",
            "lineage is enabled, but no transport is configured",
            hint="set OPENLINEAGE_URL, or `lineage.transport` in the settings",
        )
    return client


def _resolved(value: Any, resolve: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return resolve(value)
    if isinstance(value, Mapping):
        return {str(key): _resolved(item, resolve) for key, item in value.items()}
    return [_resolved(item, resolve) for item in value] if isinstance(value, list) else value


def _remember(value: Any, *, is_secret: bool = False) -> None:
    """Remember values below keys such as `auth` as secrets, so that no message contains them."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            name = str(key).lower()
            hidden = is_secret or any(w in name for w in ("auth", "key", "token", "secret"))
            _remember(item, is_secret=hidden and name != "type")
    elif is_secret and isinstance(value, str):
        remember_secret(value)


class Lineage(Delivery):
    """Converts the events of an update and sends them by `send`; a subscriber of the bus."""

    def __init__(
        self,
        bus: EventBus,
        origin: EventOrigin,
        send: Callable[[Any], None],
        *,
        namespace: str = "",
        running_seconds: float = _RUNNING_SECONDS,
        queue_size: int = QUEUE_SIZE,
    ) -> None:
        from penstock._observe.lineage import LineageFold

        chosen = namespace or os.environ.get("OPENLINEAGE_NAMESPACE", "") or _DEFAULT_NAMESPACE
        super().__init__(
            bus,
            origin,
            _SIGNAL,
            fold=LineageFold(chosen, running_seconds=running_seconds),
            send=lambda events: send(events[0]),
            queue_size=queue_size,
        )
