"""Stand-ins for missing modules while a project is analyzed."""

import pickle
import sys

from penstock._project.databricks.stand_ins import stand_ins

SOURCE = """
import no_such_package.deep as deep
from no_such_package import Base, decorate, start

class Pipeline(Base, level=2):
    def __init__(self, name):
        super().__init__(name, 1)
        self.name = name

@decorate
def decorated():
    return 1

pipeline = Pipeline("p")
rows = pipeline.spark.read(3)
"""


def test_code_runs_when_a_package_is_missing():
    with stand_ins(["no_such_package.deep"]):
        names: dict = {}
        exec(SOURCE, names)
        assert names["pipeline"].name == "p"
        assert names["decorated"]() == 1
        module = sys.modules["no_such_package"]
        # Spark pickles functions with the modules that they use, even if no query runs.
        assert pickle.loads(pickle.dumps(module)).__name__ == "no_such_package"
        # Spark treats an object with this attribute as a UDF.
        assert not hasattr(names["start"], "asNondeterministic")
    assert "no_such_package" not in sys.modules
