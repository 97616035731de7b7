"""The tables of TPC-H with random rows, and its 22 queries as views.

ORDER BY and LIMIT are left out, because they have no meaning for a table. The constants in
conditions are chosen so that small tables contain matching rows.
"""

import random
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

MONEY = "DECIMAL(12,2)"
SCHEMAS = {
    "region": "r_regionkey INT, r_name STRING",
    "nation": "n_nationkey INT, n_name STRING, n_regionkey INT",
    "supplier": f"s_suppkey INT, s_name STRING, s_nationkey INT, s_acctbal {MONEY}, s_comment"
    f" STRING",
    "customer": f"c_custkey INT, c_name STRING, c_nationkey INT, c_phone STRING, c_acctbal {MONEY},"
    " c_mktsegment STRING",
    "part": "p_partkey INT, p_name STRING, p_mfgr STRING, p_brand STRING, p_type STRING, p_size"
    " INT,"
    " p_container STRING",
    "partsupp": f"ps_partkey INT, ps_suppkey INT, ps_availqty INT, ps_supplycost {MONEY}",
    "orders": f"o_orderkey INT, o_custkey INT, o_orderstatus STRING, o_totalprice {MONEY},"
    " o_orderdate DATE, o_orderpriority STRING, o_shippriority INT, o_comment STRING",
    "lineitem": f"l_orderkey INT, l_partkey INT, l_suppkey INT, l_linenumber INT, l_quantity"
    f" {MONEY},"
    f" l_extendedprice {MONEY}, l_discount {MONEY}, l_tax {MONEY}, l_returnflag STRING,"
    " l_linestatus STRING, l_shipdate DATE, l_commitdate DATE, l_receiptdate DATE,"
    " l_shipinstruct STRING, l_shipmode STRING",
}
NATIONS = ("FRANCE", "GERMANY", "BRAZIL", "CANADA", "SAUDI ARABIA", "KENYA")
REGIONS = ("EUROPE", "AMERICA", "ASIA")
PARTS, SUPPLIERS, CUSTOMERS = 12, 8, 15

_REVENUE = "l_extendedprice * (1 - l_discount)"
QUERIES = {
    "q1": "SELECT l_returnflag, l_linestatus, sum(l_quantity) AS quantity, sum(l_extendedprice) AS"
    f" price, sum({_REVENUE}) AS discounted, sum({_REVENUE} * (1 + l_tax)) AS charge,"
    " avg(l_quantity) AS avg_quantity, avg(l_discount) AS avg_discount, count(*) AS n"
    " FROM {lineitem} WHERE l_shipdate <= DATE'1998-09-02' GROUP BY l_returnflag, l_linestatus",
    "q2": "SELECT s_acctbal, s_name, n_name, p_partkey, p_mfgr FROM {part}, {supplier}, {partsupp},"
    " {nation}, {region} WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey AND p_size < 30"
    " AND p_type LIKE '%STEEL' AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey"
    " AND r_name = 'EUROPE' AND ps_supplycost = (SELECT min(ps_supplycost) FROM {partsupp},"
    " {supplier}, {nation}, {region} WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey"
    " AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'EUROPE')",
    "q3": f"SELECT l_orderkey, sum({_REVENUE}) AS revenue, o_orderdate, o_shippriority"
    " FROM {customer}, {orders}, {lineitem} WHERE c_mktsegment = 'BUILDING'"
    " AND c_custkey = o_custkey AND l_orderkey = o_orderkey AND o_orderdate < DATE'1996-03-15'"
    " AND l_shipdate > DATE'1994-03-15' GROUP BY l_orderkey, o_orderdate, o_shippriority",
    "q4": "SELECT o_orderpriority, count(*) AS n FROM {orders} WHERE o_orderdate >="
    " DATE'1993-07-01' AND o_orderdate < DATE'1997-10-01' AND EXISTS (SELECT 1 FROM {lineitem}"
    " WHERE l_orderkey = o_orderkey AND l_commitdate < l_receiptdate) GROUP BY o_orderpriority",
    "q5": f"SELECT n_name, sum({_REVENUE}) AS revenue FROM {{customer}}, {{orders}}, {{lineitem}},"
    " {supplier}, {nation}, {region} WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey"
    " AND l_suppkey = s_suppkey AND c_nationkey = s_nationkey AND s_nationkey = n_nationkey"
    " AND n_regionkey = r_regionkey AND r_name = 'EUROPE' AND o_orderdate >= DATE'1994-01-01'"
    " GROUP BY n_name",
    "q6": "SELECT sum(l_extendedprice * l_discount) AS revenue FROM {lineitem}"
    " WHERE l_shipdate >= DATE'1994-01-01' AND l_discount BETWEEN 0.02 AND 0.07"
    " AND l_quantity < 24",
    "q7": "SELECT supplied, bought, shipped, sum(volume) AS revenue FROM (SELECT a.n_name AS"
    " supplied,"
    f" b.n_name AS bought, year(l_shipdate) AS shipped, {_REVENUE} AS volume FROM {{supplier}},"
    " {lineitem}, {orders}, {customer}, {nation} a, {nation} b WHERE s_suppkey = l_suppkey"
    " AND o_orderkey = l_orderkey AND c_custkey = o_custkey AND s_nationkey = a.n_nationkey"
    " AND c_nationkey = b.n_nationkey AND (a.n_name = 'FRANCE' AND b.n_name = 'GERMANY'"
    " OR a.n_name = 'GERMANY' AND b.n_name = 'FRANCE')) GROUP BY supplied, bought, shipped",
    "q8": "SELECT ordered, sum(CASE WHEN nation = 'BRAZIL' THEN volume ELSE 0 END) / sum(volume)"
    f" AS share FROM (SELECT year(o_orderdate) AS ordered, {_REVENUE} AS volume,"
    " b.n_name AS nation FROM {part}, {supplier}, {lineitem}, {orders}, {customer}, {nation} a,"
    " {nation} b, {region} WHERE p_partkey = l_partkey AND s_suppkey = l_suppkey"
    " AND l_orderkey = o_orderkey AND o_custkey = c_custkey AND c_nationkey = a.n_nationkey"
    " AND a.n_regionkey = r_regionkey AND r_name = 'AMERICA' AND s_nationkey = b.n_nationkey)"
    " GROUP BY ordered",
    "q9": "SELECT nation, ordered, sum(amount) AS profit FROM (SELECT n_name AS nation,"
    f" year(o_orderdate) AS ordered, {_REVENUE} - ps_supplycost * l_quantity AS amount"
    " FROM {part}, {supplier}, {lineitem}, {partsupp}, {orders}, {nation}"
    " WHERE s_suppkey = l_suppkey AND ps_suppkey = l_suppkey AND ps_partkey = l_partkey"
    " AND p_partkey = l_partkey AND o_orderkey = l_orderkey AND s_nationkey = n_nationkey"
    " AND p_name LIKE '%green%') GROUP BY nation, ordered",
    "q10": f"SELECT c_custkey, c_name, sum({_REVENUE}) AS revenue, c_acctbal, n_name, c_phone"
    " FROM {customer}, {orders}, {lineitem}, {nation} WHERE c_custkey = o_custkey"
    " AND l_orderkey = o_orderkey AND o_orderdate >= DATE'1993-10-01' AND l_returnflag = 'R'"
    " AND c_nationkey = n_nationkey GROUP BY c_custkey, c_name, c_acctbal, c_phone, n_name",
    "q11": "SELECT ps_partkey, sum(ps_supplycost * ps_availqty) AS value FROM {partsupp},"
    " {supplier}, {nation} WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey"
    " AND n_name = 'GERMANY' GROUP BY ps_partkey HAVING sum(ps_supplycost * ps_availqty) >"
    " (SELECT sum(ps_supplycost * ps_availqty) * 0.1 FROM {partsupp}, {supplier}, {nation}"
    " WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name = 'GERMANY')",
    "q12": "SELECT l_shipmode, sum(CASE WHEN o_orderpriority IN ('1-URGENT', '2-HIGH') THEN 1 ELSE"
    " 0"
    " END) AS high, sum(CASE WHEN o_orderpriority IN ('1-URGENT', '2-HIGH') THEN 0 ELSE 1 END)"
    " AS low FROM {orders}, {lineitem} WHERE o_orderkey = l_orderkey AND l_shipmode IN ('MAIL',"
    " 'SHIP') AND l_commitdate < l_receiptdate AND l_shipdate < l_commitdate GROUP BY l_shipmode",
    "q13": "SELECT n, count(*) AS customers FROM (SELECT c_custkey, count(o_orderkey) AS n"
    " FROM {customer} LEFT JOIN {orders} ON c_custkey = o_custkey AND o_comment NOT LIKE"
    " '%special%requests%' GROUP BY c_custkey) GROUP BY n",
    "q14": f"SELECT 100 * sum(CASE WHEN p_type LIKE 'PROMO%' THEN {_REVENUE} ELSE 0 END)"
    f" / sum({_REVENUE}) AS share FROM {{lineitem}}, {{part}} WHERE l_partkey = p_partkey"
    " AND l_shipdate >= DATE'1995-09-01'",
    "q15": f"WITH revenue AS (SELECT l_suppkey, sum({_REVENUE}) AS total FROM {{lineitem}}"
    " WHERE l_shipdate >= DATE'1994-01-01' GROUP BY l_suppkey) SELECT s_suppkey, s_name, total"
    " FROM {supplier}, revenue WHERE s_suppkey = l_suppkey AND total = (SELECT max(total)"
    " FROM revenue)",
    "q16": "SELECT p_brand, p_type, p_size, count(DISTINCT ps_suppkey) AS suppliers FROM"
    " {partsupp},"
    " {part} WHERE p_partkey = ps_partkey AND p_brand <> 'Brand#45' AND p_type NOT LIKE 'PROMO%'"
    " AND ps_suppkey NOT IN (SELECT s_suppkey FROM {supplier} WHERE s_comment LIKE"
    " '%Customer%Complaints%') GROUP BY p_brand, p_type, p_size",
    "q17": "SELECT sum(l_extendedprice) / 7.0 AS yearly FROM {lineitem}, {part} WHERE p_partkey ="
    " l_partkey AND p_brand = 'Brand#23' AND l_quantity < (SELECT 0.8 * avg(l_quantity)"
    " FROM {lineitem} WHERE l_partkey = p_partkey)",
    "q18": "SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) AS"
    " quantity FROM {customer}, {orders}, {lineitem} WHERE o_orderkey IN (SELECT l_orderkey"
    " FROM {lineitem} GROUP BY l_orderkey HAVING sum(l_quantity) > 40) AND c_custkey = o_custkey"
    " AND o_orderkey = l_orderkey GROUP BY c_name, c_custkey, o_orderkey, o_orderdate,"
    " o_totalprice",
    "q19": f"SELECT sum({_REVENUE}) AS revenue FROM {{lineitem}}, {{part}} WHERE p_partkey ="
    " l_partkey AND l_shipinstruct = 'DELIVER IN PERSON' AND (p_brand = 'Brand#12'"
    " AND l_quantity < 30 OR p_brand = 'Brand#23' AND l_quantity > 20 AND p_size < 20)",
    "q20": "SELECT s_name FROM {supplier}, {nation} WHERE s_suppkey IN (SELECT ps_suppkey"
    " FROM {partsupp} WHERE ps_partkey IN (SELECT p_partkey FROM {part} WHERE p_name LIKE"
    " 'forest%')"
    " AND ps_availqty > (SELECT 0.5 * sum(l_quantity) FROM {lineitem} WHERE l_partkey ="
    " ps_partkey AND l_suppkey = ps_suppkey AND l_shipdate >= DATE'1994-01-01'))"
    " AND s_nationkey = n_nationkey AND n_name IN ('CANADA', 'FRANCE')",
    "q21": "SELECT s_name, count(*) AS waiting FROM {supplier}, {lineitem} a, {orders}, {nation}"
    " WHERE s_suppkey = a.l_suppkey AND o_orderkey = a.l_orderkey AND o_orderstatus = 'F'"
    " AND a.l_receiptdate > a.l_commitdate AND EXISTS (SELECT 1 FROM {lineitem} b WHERE"
    " b.l_orderkey = a.l_orderkey AND b.l_suppkey <> a.l_suppkey) AND NOT EXISTS (SELECT 1"
    " FROM {lineitem} c WHERE c.l_orderkey = a.l_orderkey AND c.l_suppkey <> a.l_suppkey"
    " AND c.l_receiptdate > c.l_commitdate) AND s_nationkey = n_nationkey"
    " AND n_name = 'SAUDI ARABIA' GROUP BY s_name",
    "q22": "SELECT code, count(*) AS customers, sum(c_acctbal) AS balance FROM (SELECT"
    " substring(c_phone, 1, 2) AS code, c_acctbal FROM {customer} WHERE substring(c_phone, 1, 2)"
    " IN ('13', '31', '23') AND c_acctbal > (SELECT avg(c_acctbal) FROM {customer}"
    " WHERE c_acctbal > 0) AND NOT EXISTS (SELECT 1 FROM {orders} WHERE o_custkey = c_custkey))"
    " GROUP BY code",
}


class TpchTables:
    """Delta tables below `root`, with random new rows and random changes of rows."""

    def __init__(self, spark: Any, root: str, seed: int) -> None:
        self.spark, self.pick = spark, random.Random(seed)
        self.paths = {name: f"delta.`{root}/{name}`" for name in SCHEMAS}
        self._orders = 0
        for name, schema in SCHEMAS.items():
            spark.sql(
                f"CREATE TABLE {self.paths[name]} ({schema}) USING delta "
                "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
            )
        self._add("region", [(key, name) for key, name in enumerate(REGIONS)])
        self._add("nation", [(key, name, key % 3) for key, name in enumerate(NATIONS)])
        self._add("supplier", [self._supplier(key) for key in range(SUPPLIERS)])
        self._add("part", [self._part(key) for key in range(PARTS)])
        self.add_rows(CUSTOMERS, 60)

    def add_rows(self, customers: int = 2, orders: int = 8) -> None:
        """Add rows to four tables."""
        first = 0 if not self._orders else 100 + self._orders
        self._add("customer", [self._customer(first + n) for n in range(customers)])
        self._add("partsupp", [self._offer() for _ in range(orders)])
        numbers = range(self._orders, self._orders + orders)
        self._orders += orders
        self._add("orders", [self._order(number) for number in numbers])
        lines = [(number, line) for number in numbers for line in range(self.pick.randint(1, 4))]
        self._add("lineitem", [self._line(*line) for line in lines])

    def change(self) -> None:
        """Update and delete rows of four tables."""
        line, order = self.paths["lineitem"], self.paths["orders"]
        digit = self.pick.randrange(5)
        self.spark.sql(
            f"UPDATE {line} SET l_quantity = l_quantity + 5 WHERE l_orderkey % 5 = {digit}"
        )
        self.spark.sql(f"DELETE FROM {line} WHERE l_orderkey % 7 = {digit} AND l_linenumber = 1")
        self.spark.sql(f"UPDATE {order} SET o_orderstatus = 'F' WHERE o_orderkey % 4 = {digit % 4}")
        self.spark.sql(
            f"UPDATE {self.paths['customer']} SET c_acctbal = c_acctbal + 1"
            f" WHERE c_custkey % 6 = {digit}"
        )
        self.spark.sql(
            f"UPDATE {self.paths['partsupp']} SET ps_availqty = ps_availqty + 1"
            f" WHERE ps_partkey % 6 = {digit}"
        )

    def _add(self, table: str, rows: list[tuple[Any, ...]]) -> None:
        df = self.spark.createDataFrame(rows, SCHEMAS[table]).coalesce(1)
        df.write.format("delta").mode("append").save(self.paths[table].split("`")[1])

    def _money(self, most: int) -> Decimal:
        return Decimal(self.pick.randrange(most * 100)) / 100

    def _day(self) -> date:
        return date(1993, 1, 1) + timedelta(days=self.pick.randrange(2000))

    def _supplier(self, key: int) -> tuple[Any, ...]:
        comment = self.pick.choice(["", "Customer had Complaints"])
        return key, f"Supplier#{key}", key % len(NATIONS), self._money(1000), comment

    def _customer(self, key: int) -> tuple[Any, ...]:
        pick = self.pick
        phone = f"{pick.choice(['13', '31', '23', '40'])}-{key}"
        segment = pick.choice(["BUILDING", "MACHINERY"])
        balance = self._money(1000) - 200
        return key, f"Customer#{key}", pick.randrange(len(NATIONS)), phone, balance, segment

    def _part(self, key: int) -> tuple[Any, ...]:
        choose: Callable[..., Any] = self.pick.choice
        kind = f"{choose(['PROMO', 'ECONOMY'])} {choose(['STEEL', 'TIN'])}"
        name, brand = choose(["forest green", "blue"]), choose(["Brand#12", "Brand#23", "Brand#45"])
        return key, name, f"Mfgr#{key % 2}", brand, kind, self.pick.randrange(50), "BOX"

    def _offer(self) -> tuple[Any, ...]:
        pick = self.pick
        part, supplier = pick.randrange(PARTS), pick.randrange(SUPPLIERS)
        return part, supplier, pick.randrange(100), self._money(100)

    def _order(self, key: int) -> tuple[Any, ...]:
        pick = self.pick
        priority = pick.choice(["1-URGENT", "2-HIGH", "3-MEDIUM"])
        comment = pick.choice(["", "special wishes and requests"])
        customer, status = pick.randrange(CUSTOMERS), pick.choice("FOP")
        return key, customer, status, self._money(9000), self._day(), priority, 0, comment

    def _line(self, order: int, number: int) -> tuple[Any, ...]:
        pick = self.pick
        shipped = self._day()
        days = [shipped + timedelta(days=pick.randrange(-5, 30)) for _ in range(2)]
        return (
            order,
            pick.randrange(PARTS),
            pick.randrange(SUPPLIERS),
            number,
            Decimal(pick.randrange(1, 50)),
            self._money(900),
            Decimal(pick.randrange(10)) / 100,
            Decimal(pick.randrange(8)) / 100,
            pick.choice("RAN"),
            pick.choice("OF"),
            shipped,
            *days,
            pick.choice(["DELIVER IN PERSON", "NONE"]),
            pick.choice(["MAIL", "SHIP", "AIR"]),
        )
