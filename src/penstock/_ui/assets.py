"""The built pages, which are part of the package."""

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path

STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, kw_only=True)
class Asset:
    """A file of the bundle, in memory and compressed once."""

    body: bytes
    zipped: bytes
    content_type: str
    etag: str


def load_assets(directory: Path = STATIC) -> dict[str, Asset]:
    """All files of the bundle by name.

    A request looks its name up here and nowhere else, so no path of a request ever reaches the file
    system.
    """
    assets = {}
    for path in sorted(directory.iterdir()):
        if path.suffix not in _TYPES:
            continue
        body = path.read_bytes()
        assets[path.name] = Asset(
            body=body,
            zipped=gzip.compress(body, mtime=0),
            content_type=_TYPES[path.suffix],
            etag=f'"{hashlib.sha256(body).hexdigest()[:20]}"',
        )
    return assets
