"""Modules that are not there, while a project is only looked at."""

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
def kept():
    return 1

made = Pipeline("p")
whatever = made.spark.read(3)
"""


def test_code_goes_on_when_a_package_is_not_there():
    with stand_ins(["no_such_package.deep"]):
        names: dict = {}
        exec(SOURCE, names)
        assert names["made"].name == "p"
        assert names["kept"]() == 1
        module = sys.modules["no_such_package"]
        # Spark pickles functions with what they refer to, although nothing runs.
        assert pickle.loads(pickle.dumps(module)).__name__ == "no_such_package"
        # Spark registers it as a plain function.
        assert not hasattr(names["start"], "asNondeterministic")
    assert "no_such_package" not in sys.modules
