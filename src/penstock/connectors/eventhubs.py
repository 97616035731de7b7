"""Deprecated since 0.2, removed in 0.3: import from `penstock.sources.kafka.event_hubs`."""

import warnings

from penstock.sources.kafka.event_hubs import kafka_options

__all__ = ["kafka_options"]

warnings.warn(
    "penstock.connectors.eventhubs is deprecated: import from penstock.sources.kafka.event_hubs",
    DeprecationWarning,
    stacklevel=2,
)
