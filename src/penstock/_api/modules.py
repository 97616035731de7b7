"""The API under three module names: `dlt`, `pyspark.pipelines` and `penstock`.

The module is added to `sys.modules` instead of being installed: an installed `dlt` may be another
product, and Spark's `pyspark.pipelines` does not support most declarations in existing files.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from penstock._api import surface

_NAMES = ("dlt", "pyspark.pipelines", "pyspark.pipelines.api")
_ABSENT = object()


@contextmanager
def installed_modules() -> Iterator[ModuleType]:
    """Let `import dlt` and `from pyspark import pipelines` import the API inside this context.

    May be nested. Does not import pyspark. The previous modules, such as an installed `dlt` with
    its submodules, are restored afterwards. The change affects the whole process, not only this
    thread.
    """
    saved = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_hidden(name)}
    parent = sys.modules.get("pyspark")
    attribute = getattr(parent, "pipelines", _ABSENT)
    # The real module, not one per name: `importlib.reload` requires a spec that can be found.
    sys.modules.update(dict.fromkeys(_NAMES, surface))
    if parent is not None:
        vars(parent)["pipelines"] = surface
    try:
        yield surface
    finally:
        for name in [name for name in sys.modules if _is_hidden(name)]:
            del sys.modules[name]
        sys.modules.update(saved)
        parent = sys.modules.get("pyspark")
        if parent is not None:
            if attribute is not _ABSENT:
                vars(parent)["pipelines"] = attribute
            else:
                vars(parent).pop("pipelines", None)


def _is_hidden(name: str) -> bool:
    return name in _NAMES or name.startswith("dlt.")
