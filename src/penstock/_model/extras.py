"""Imports of packages that an extra installs."""

from importlib import import_module
from typing import Any

from penstock.errors import MissingExtraError


def import_extra(*modules: str, extra: str, feature: str, package: str = "") -> Any:
    """Import what a feature needs; the first of the modules.

    Args:
        modules: Full names.
        extra: Of Penstock, that installs them.
        feature: Who needs them, in the singular: the subject of the message.
        package: What is installed, where that is not the name of the module.

    Raises:
        MissingExtraError: `MISSING_EXTRA`. A package that is there but lacks one of its own is
            another error, which passes.
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
