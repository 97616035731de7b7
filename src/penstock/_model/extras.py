"""Imports of packages that an extra installs."""

from importlib import import_module
from typing import Any

from penstock.errors import MissingExtraError


def import_extra(*modules: str, extra: str, feature: str, package: str = "") -> Any:
    """Import modules of an optional package; returns the first.

    `feature` is the subject of the message `MISSING_EXTRA`, in the singular; `package` is set if it
    differs from the module. The error for a missing dependency of an installed package is raised
    unchanged.
    """
    for module in modules:
        root = module.partition(".")[0]
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != root:
                raise
            raise MissingExtraError(
                "MISSING_EXTRA",
                f"{feature} needs the package {package or root}, which is not installed",
                hint=f'pip install "penstock[{extra}]"',
            ) from error
    return import_module(modules[0])
