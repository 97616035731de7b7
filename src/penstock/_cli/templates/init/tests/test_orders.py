"""Run with `penstock test`."""

from penstock.testing import PipelineTest, assert_rows

ORDER = "order_id BIGINT, ordered_at TIMESTAMP, customer STRING, product STRING, amount DOUBLE"


def test_orders_without_a_positive_amount_are_quarantined(pipeline: PipelineTest) -> None:
    good = {"order_id": 1, "customer": "C1", "product": "tea", "amount": 2.5}
    bad = {"order_id": 2, "customer": "C2", "product": "tea", "amount": -1.0}
    pipeline.add_rows("bronze", [good, bad], ORDER)
    pipeline.run()
    assert_rows(pipeline.table("silver"), [{"order_id": 1, "amount": 2.5}])
    assert_rows(pipeline.quarantine("silver"), [{"order_id": 2, "amount": -1.0}])
    assert_rows(pipeline.table("revenue"), [{"product": "tea", "orders": 1, "revenue": 2.5}])
