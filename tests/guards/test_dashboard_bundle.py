"""The committed pages of the dashboard must match their sources."""

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "ui"
BUNDLE = ROOT / "src" / "penstock" / "_ui" / "static"
INPUTS = (
    "src",
    "index.html",
    "package.json",
    "package-lock.json",
    "tsconfig.json",
    "vite.config.js",
)


def _record() -> dict:
    return json.loads((BUNDLE / "bundle.json").read_text(encoding="utf-8"))


def test_bundle_was_built_from_the_current_sources():
    files = sorted(
        path.relative_to(SOURCES).as_posix()
        for name in INPUTS
        for path in [SOURCES / name, *(SOURCES / name).rglob("*")]
        if path.is_file()
    )
    digest = hashlib.sha256()
    for name in files:
        for part in (name.encode(), b"\0", (SOURCES / name).read_bytes(), b"\0"):
            digest.update(part)
    assert _record()["sources"] == digest.hexdigest(), "run `make ui` and commit what it changes"


def test_files_of_the_bundle_match_their_recorded_hashes():
    files = {path.name for path in BUNDLE.iterdir()} - {"bundle.json"}
    hashes = {name: hashlib.sha256((BUNDLE / name).read_bytes()).hexdigest() for name in files}
    assert hashes == _record()["files"]


def test_new_build_has_the_same_files(tmp_path):
    npm = shutil.which("npm")
    if npm is None or not (SOURCES / "node_modules").is_dir():
        pytest.skip("needs Node and `npm ci` in ui/: the recorded hashes are compared without")
    subprocess.run(
        [npm, "run", "--silent", "build"],
        cwd=SOURCES,
        env={**os.environ, "OUT_DIR": str(tmp_path / "static")},
        check=True,
        capture_output=True,
        timeout=120,
    )
    built = {path.name: path.read_bytes() for path in (tmp_path / "static").iterdir()}
    assert built == {path.name: path.read_bytes() for path in BUNDLE.iterdir()}


def test_lock_file_has_no_registry_and_every_hash():
    packages = json.loads((SOURCES / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    assert [name for name, package in packages.items() if "resolved" in package] == []
    assert [name for name, package in packages.items() if name and "integrity" not in package] == []
