import importlib
import subprocess
import sys
from types import ModuleType

import pytest

import penstock
from penstock import pipelines
from penstock._api import surface
from penstock._api.modules import installed_modules


def _run(text: str) -> dict:
    names: dict = {}
    exec(text, names)
    return names


@pytest.mark.parametrize(
    "text",
    [
        "import dlt as m",
        "from pyspark import pipelines as m",
        "import pyspark.pipelines as m",
        "import pyspark.pipelines.api as m",
        "from pyspark.pipelines import api as m",
        "import pyspark\nm = pyspark.pipelines",
        "import importlib\nm = importlib.import_module('dlt')",
        "import dlt, importlib\nm = importlib.reload(dlt)",
    ],
)
def test_every_import_name_has_the_same_functions(text):
    import pyspark  # noqa: F401 (the attribute is set only where it is imported)

    with installed_modules():
        module = _run(text)["m"]
    for name in surface.__all__:
        assert getattr(module, name) is getattr(penstock, name)


def test_star_import_has_all_names():
    with installed_modules():
        names = _run("from dlt import *")
    assert set(surface.__all__) <= set(names)


def test_penstock_exports_the_declarations_and_the_run_functions():
    functions = {"check", "dry_run", "open_pipeline", "run"}
    assert set(penstock.__all__) == {*surface.__all__, *functions, "__version__"}
    assert functions <= set(pipelines.__all__)


def test_modules_are_restored_after_the_block():
    import pyspark
    import pyspark.pipelines as real_pipelines

    real_dlt, real_sub = ModuleType("dlt"), ModuleType("dlt.sources")
    sys.modules["dlt"], sys.modules["dlt.sources"] = real_dlt, real_sub
    try:
        with pytest.raises(ZeroDivisionError), installed_modules():
            assert sys.modules["dlt"] is surface
            assert pyspark.pipelines is surface
            with pytest.raises(ModuleNotFoundError):
                importlib.import_module("dlt.sources")
            raise ZeroDivisionError
        assert sys.modules["dlt"] is real_dlt
        assert sys.modules["dlt.sources"] is real_sub
        assert sys.modules["pyspark.pipelines"] is real_pipelines
        assert pyspark.pipelines is real_pipelines
    finally:
        del sys.modules["dlt"], sys.modules["dlt.sources"]


def test_modules_stay_installed_when_a_nested_block_ends():
    with installed_modules():
        with installed_modules():
            pass
        assert sys.modules["dlt"] is surface


def test_installed_modules_does_not_import_pyspark():
    program = (
        "import sys; import penstock\n"
        "from penstock._api.modules import installed_modules\n"
        "with installed_modules():\n"
        "    import dlt\n"
        "    assert 'pyspark' not in sys.modules and 'pydantic' not in sys.modules\n"
        "    from pyspark import pipelines as dp\n"
        "    assert dp is dlt\n"
        "import pyspark\n"
        "assert not hasattr(pyspark, 'pipelines') and 'pyspark.pipelines' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_pipelines_attribute_is_removed_when_pyspark_had_none():
    program = (
        "import pyspark\n"
        "from penstock._api.modules import installed_modules\n"
        "assert not hasattr(pyspark, 'pipelines')\n"
        "with installed_modules():\n"
        "    assert pyspark.pipelines.table\n"
        "assert not hasattr(pyspark, 'pipelines')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_error_names_the_nearest_function_when_unknown():
    with pytest.raises(AttributeError, match="did you mean 'append_flow'"):
        _ = surface.apend_flow
    with pytest.raises(AttributeError, match="loading tool `dlt` of PyPI"):
        _ = surface.resource
    assert not hasattr(surface, "zzz")
    with pytest.raises(AttributeError, match="not available yet"):
        _ = surface.replace_flow
