"""Orders as a shop would send them, with everything that goes wrong in real life.

An order is a pure function of seed, run and index: the same three give the same bytes. Times come
from a schedule (start and rate), not from the clock, so that a generator that was held up sends
what it owes with the times at which it was due.

Bounds that the pipeline relies on: nothing but stale orders is later than `MAX_LATENESS_SECONDS`, a
duplicate follows its original within `MAX_DUPLICATE_SECONDS`, and an order id never comes twice
with different content.
"""

import json
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from penstock._observe.codec import time_text

MAX_LATENESS_SECONDS = 479.0
MAX_DUPLICATE_SECONDS = 30.0
KNOWN_CUSTOMERS = 500

# Shares of all messages.
MALFORMED_SHARE = 0.01
DUPLICATE_SHARE = 0.02
# Shares of the orders, each drawn by itself.
LATE_SHARE = 0.05
WRONG_AMOUNT_SHARE = 0.01
NO_AMOUNT_SHARE = 0.003
UNKNOWN_CUSTOMER_SHARE = 0.005
CORRUPT_TIME_SHARE = 0.002
NO_TIME_SHARE = 0.001
FUTURE_TIME_SHARE = 0.002
STALE_SHARE = 0.002

_CENTS = {
    "apron": 1890,
    "basket": 2450,
    "candle": 790,
    "jug": 1650,
    "kettle": 4999,
    "lamp": 3875,
    "mug": 925,
    "plate": 1199,
    "rug": 8950,
    "teapot": 3249,
    "towel": 1425,
    "vase": 2799,
}
PRODUCTS = tuple(_CENTS)
_CORRUPT_TIMES = ("yesterday", "", "31.12. at noon", "2026-13-45T25:61:00Z", "12:00 or so")
_DUPLICATE_REACH = 50
_DAY_SECONDS = 86_400.0


class Kind(StrEnum):
    ORDER = "order"
    DUPLICATE = "duplicate"
    MALFORMED = "malformed"


@dataclass(frozen=True, kw_only=True)
class Message:
    key: bytes | None  # the customer, so that a duplicate is in the partition of its original
    value: bytes  # JSON, maybe malformed
    timestamp_ms: int  # scheduled time


@dataclass(frozen=True, kw_only=True)
class OrderStream:
    run_id: str  # part of every order id: unique per run
    rate: float  # messages per second
    seed: int = 0
    start_ms: int = 0  # scheduled time of the first message

    def due_ms(self, index: int) -> int:
        return self.start_ms + int(index * 1000 / self.rate)

    def kind(self, index: int) -> Kind:
        return self._draw(index)[0]

    def message(self, index: int) -> Message:
        kind, dice = self._draw(index)
        if kind is Kind.MALFORMED:
            value = self._malformed(index, dice)
            return Message(key=None, value=value, timestamp_ms=self.due_ms(index))
        source = self._original(index, dice) if kind is Kind.DUPLICATE else index
        order = self._order(source)
        value = json.dumps(order, separators=(",", ":")).encode()
        key = str(order["customer_id"]).encode()
        return Message(key=key, value=value, timestamp_ms=self.due_ms(index))

    def _dice(self, index: int, purpose: str) -> random.Random:
        return random.Random(f"{self.seed}/{self.run_id}/{index}/{purpose}")  # noqa: S311 - no secret

    def _draw(self, index: int) -> tuple[Kind, random.Random]:
        dice = self._dice(index, "kind")
        share = dice.random()
        if share < MALFORMED_SHARE:
            return Kind.MALFORMED, dice
        if share < MALFORMED_SHARE + DUPLICATE_SHARE and self._reach(index) > 0:
            return Kind.DUPLICATE, dice
        return Kind.ORDER, dice

    def _reach(self, index: int) -> int:
        return int(min(index, _DUPLICATE_REACH, self.rate * MAX_DUPLICATE_SECONDS))

    def _original(self, index: int, dice: random.Random) -> int:
        """Index of the order that a duplicate repeats; its own if none is in reach."""
        reach = self._reach(index)
        first = dice.randint(1, reach)
        nearest_last = (*range(first, reach + 1), *range(first - 1, 0, -1))
        candidates = (index - back for back in nearest_last)
        return next((at for at in candidates if self.kind(at) is Kind.ORDER), index)

    def _order(self, index: int) -> dict[str, Any]:
        dice = self._dice(index, "order")
        known = dice.random() >= UNKNOWN_CUSTOMER_SHARE
        customer = f"{'C' if known else 'X'}{dice.randint(1, KNOWN_CUSTOMERS):04d}"
        product = dice.choice(PRODUCTS)
        quantity = dice.randint(1, 5)
        order = {
            "order_id": f"{self.run_id}-{index:08d}",
            "customer_id": customer,
            "product": product,
            "quantity": quantity,
            "unit_price": _CENTS[product] / 100,
            "amount": self._amount(quantity * _CENTS[product], dice),
            "currency": "EUR",
        }
        event_time = self._event_time(index, dice)
        if event_time is not None:
            order["event_time"] = event_time
        return order

    def _amount(self, cents: int, dice: random.Random) -> float | None:
        share = dice.random()
        if share < NO_AMOUNT_SHARE:
            return None
        if share < NO_AMOUNT_SHARE + WRONG_AMOUNT_SHARE:
            cents = -cents if dice.random() < 0.5 else cents + dice.randint(1, 5000)
        return cents / 100

    def _event_time(self, index: int, dice: random.Random) -> str | None:
        share = dice.random()
        due = self.due_ms(index) / 1000
        if share < (edge := CORRUPT_TIME_SHARE):
            return dice.choice(_CORRUPT_TIMES)
        if share < (edge := edge + NO_TIME_SHARE):
            return None
        if share < (edge := edge + FUTURE_TIME_SHARE):
            due += dice.uniform(_DAY_SECONDS, 1000 * _DAY_SECONDS)
        elif share < (edge := edge + STALE_SHARE):
            due -= dice.uniform(_DAY_SECONDS / 24, 2 * _DAY_SECONDS)
        elif share < edge + LATE_SHARE:
            due -= dice.uniform(1.0, MAX_LATENESS_SECONDS)
        return time_text(datetime.fromtimestamp(due, UTC))

    def _malformed(self, index: int, dice: random.Random) -> bytes:
        whole = json.dumps(self._order(index), separators=(",", ":")).encode()
        match dice.randrange(5):
            case 0:
                return whole[: dice.randint(1, len(whole) - 1)]
            case 1:
                return whole.replace(b":", b"=", 1)
            case 2:
                return b"\xff\xfe" + whole
            case 3:
                return b""
            case _:
                return b"<html><body>502 Bad Gateway</body></html>"
