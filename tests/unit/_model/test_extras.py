import sys
from pathlib import Path

import pytest

from penstock._model.extras import import_extra
from penstock.errors import MissingExtraError


def test_error_names_the_package_when_it_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    assert import_extra("json", "json.decoder", extra="x", feature="it").loads("1") == 1
    monkeypatch.setitem(sys.modules, "json.decoder", None)
    with pytest.raises(MissingExtraError) as caught:
        import_extra("json", "json.decoder", extra="x", feature="it", package="json-lib")
    assert caught.value.message == "it needs the package json-lib, which is not installed"
    assert caught.value.hint == 'pip install "penstock[x]"'


def test_import_error_is_unchanged_when_a_dependency_of_the_package_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "broken_package.py").write_text("import missing_dependency\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="missing_dependency") as caught:
        import_extra("broken_package", extra="x", feature="it")
    assert not isinstance(caught.value, MissingExtraError)
