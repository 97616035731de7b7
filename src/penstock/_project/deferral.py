"""The production storage of `defer_to`, and storages that two targets must not share."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from penstock._model.pipeline import Deferral, PipelineSettings
from penstock._model.similar import suggested
from penstock._project.file_settings import FileSettings
from penstock._project.locations import storage_uri
from penstock.errors import SpecError


def with_deferral(
    settings: PipelineSettings,
    read: FileSettings,
    defer_to: str | None,
    folder: Path,
    of_target: Callable[[str], PipelineSettings],
) -> PipelineSettings:
    """The settings of a pipeline with the storage from which unchanged datasets are read.

    `read` are the settings of the files. `defer_to` is one of their targets, or a storage relative
    to `folder`. `of_target` returns the settings of another target from its files.

    Raises:
        SpecError: There is no such target, or two targets have the same storage.
    """
    for name in read.own_targets:
        if name != read.target and of_target(name).home == settings.home:
            raise _shared(read.target or "", name, settings.storage)
    if not defer_to:
        return settings
    if defer_to in read.targets:
        production = of_target(defer_to)
    elif read.targets and not set("/\\:") & set(defer_to):
        listed = f"the targets are {', '.join(read.targets)}; a storage is a URI or has a slash"
        raise SpecError(
            "UNKNOWN_TARGET",
            f"`defer_to` is `{defer_to}`, which is neither a target nor the path of a storage",
            hint=suggested(defer_to, read.targets, listed),
        )
    else:
        production = replace(settings, storage=storage_uri(defer_to, folder))
    if production.storage == settings.storage:
        raise _shared(read.target or "this pipeline", defer_to, settings.storage)
    deferral = Deferral(
        name=defer_to,
        storage=production.storage,
        home=production.home,
        catalog=production.catalog,
        schema=production.schema,
    )
    return replace(settings, defer=deferral)


def _shared(target: str, other: str, storage: str) -> SpecError:
    return SpecError(
        "TARGETS_SHARE_STORAGE",
        f"{target} and {other} have the same storage, {storage}: each would write the tables and "
        "checkpoints of the other",
        hint="set `storage` in each target; --storage and PENSTOCK_STORAGE must not name another "
        "target's storage either",
    )
