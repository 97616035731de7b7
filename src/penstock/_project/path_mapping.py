"""Maps the paths in a pipeline's code to paths on this machine."""

import re
from collections.abc import Callable
from pathlib import Path

from penstock._model.paths import PathMap
from penstock._model.pipeline import PipelineSettings


def path_mapping(settings: PipelineSettings, notes: dict[str, None]) -> Callable[[str], str]:
    """Return a function that maps paths by the setting `paths`.

    Relative paths are in the folder of the project, or in the folder where the command was started
    if they exist only there, which adds a sentence to `notes`.
    """
    mapped_by = PathMap(settings.paths).map
    root, start = Path(settings.root), Path(settings.started_in or settings.root)

    def mapped(path: str) -> str:
        place = mapped_by(path)
        head, *wildcards = re.split(r"[*?{\[]", place, maxsplit=1)
        known = Path(head.rpartition("/")[0] if wildcards else place)
        if known.is_absolute() or ":" in place or start == root:
            return place
        if (root / known).exists() or not (start / known).exists():
            return place
        notes[f"{path!r} is read from the working directory {start}: it is not in {root}"] = None
        return str(start / place)

    return mapped
