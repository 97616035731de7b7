import sys
from pathlib import Path

import pytest

from penstock._model.extras import import_extra
from penstock.errors import MissingExtraError


def test_a_package_is_named_when_it_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    assert import_extra("json", "json.decoder", extra="x", feature="it").loads("1") == 1
    monkeypatch.setitem(sys.modules, "json.decoder", None)
    with pytest.raises(MissingExtraError) as caught:
        import_extra("json", "json.decoder", extra="x", feature="it", package="json-lib")
    assert caught.value.message == "it needs the package json-lib, which is not installed"
    assert caught.value.hint == 'pip install "penstock[x]"'


def test_another_error_passes_when_an_installed_package_lacks_something_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "half_there.py").write_text("import not_there_at_all\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all") as caught:
        import_extra("half_there", extra="x", feature="it")
    assert not isinstance(caught.value, MissingExtraError)
