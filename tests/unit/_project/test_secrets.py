import os
from unittest.mock import patch

import pytest

from penstock._model.redaction import forget_secrets, redact
from penstock._project.secrets import resolve_secrets
from penstock.errors import SpecError


@pytest.fixture(autouse=True)
def _forget():
    forget_secrets()
    yield
    forget_secrets()


def _resolve(project, text, **environ):
    with patch.dict(os.environ, environ, clear=True):
        return resolve_secrets(text, root=project.root)


def test_text_is_unchanged_when_it_has_no_reference(project):
    assert _resolve(project, "a ${other:x} $b", OTHER="1") == "a ${other:x} $b"


@pytest.mark.parametrize(
    ("text", "environ"),
    [
        ("${secret:DB}", {"DB": "hunter2"}),
        ("${secret:DB}", {"PENSTOCK_SECRET_DB": "hunter2", "DB": "other"}),
        ("${secret:kafka/sasl-password}", {"PENSTOCK_SECRET_KAFKA_SASL_PASSWORD": "hunter2"}),
        ("${secret: kafka/key }", {"PENSTOCK_SECRET_KAFKA_KEY": "hunter2"}),
    ],
)
def test_value_comes_from_the_environment_when_it_is_there(project, text, environ):
    assert _resolve(project, f"<{text}>", **environ) == "<hunter2>"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("s.yaml", "kafka:\n  password: 0123\n"),
        ("s.yml", "kafka/password: '0123'\n"),
        ("s.json", '{"kafka": {"password": "0123"}}'),
        ("s.env", "# comment\nexport kafka/password = '0123'\n"),
    ],
)
def test_value_comes_from_the_file_when_it_is_named(project, name, content):
    path = project.write(name, content)
    resolved = _resolve(project, "${secret:kafka/password}", PENSTOCK_SECRETS_FILE=str(path))
    assert resolved == "0123"


def test_value_comes_from_a_folder_when_one_is_mounted(project):
    project.write("mounted/kafka/password", "from mount\n")
    project.write(".secrets/kafka/password", "from project\n")
    project.write(".secrets/TOKEN", "tok en\r\n")
    mounted = {"PENSTOCK_SECRETS_DIR": str(project.root / "mounted")}
    assert _resolve(project, "${secret:kafka/password}", **mounted) == "from mount"
    assert _resolve(project, "${secret:kafka/password}") == "from project"
    assert _resolve(project, "${secret:TOKEN}", **mounted) == "tok en"


def test_value_is_searched_further_when_a_scope_is_named_like_a_secret(project):
    project.write("mounted/TOKEN/other", "x")
    project.write("mounted/kafka", "x")
    project.write(".secrets/TOKEN", "a")
    project.write(".secrets/kafka/password", "b")
    mounted = {"PENSTOCK_SECRETS_DIR": str(project.root / "mounted")}
    assert _resolve(project, "${secret:TOKEN}, ${secret:kafka/password}", **mounted) == "a, b"


def test_value_is_used_as_it_stands_when_it_looks_like_a_reference(project):
    value = "\\1 ${secret:B} $x"
    assert _resolve(project, "${secret:A}", A=value, B="never") == value


def test_all_places_are_told_when_a_secret_is_nowhere(project):
    path = project.write("s.yaml", "other: hunter2\n")
    with pytest.raises(SpecError) as caught:
        _resolve(project, "${secret:a/b}", PENSTOCK_SECRETS_FILE=str(path), B="hunter2")
    message = str(caught.value)
    assert caught.value.condition == "SECRET_NOT_FOUND"
    assert "PENSTOCK_SECRET_A_B" in message
    assert str(path) in message
    assert str(project.root / ".secrets" / "a" / "b") in message
    assert "hunter2" not in message


@pytest.mark.parametrize("name", ["", "../etc", "a/../b", "a/b/c", "/etc/passwd", "a b", "."])
def test_reference_is_refused_when_it_could_leave_the_folder(project, name):
    with pytest.raises(SpecError) as caught:
        _resolve(project, f"${{secret:{name}}}")
    assert caught.value.condition == "SECRET_REFERENCE_INVALID"


def test_content_stays_hidden_when_the_file_is_broken(project):
    path = project.write("s.yaml", "password: 'hunter2\n  [")
    with pytest.raises(SpecError) as caught:
        _resolve(project, "${secret:a}", PENSTOCK_SECRETS_FILE=str(path))
    assert caught.value.condition == "SECRETS_FILE_INVALID"
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_value_is_redacted_in_every_spelling_when_it_was_resolved(project):
    secret = 'p&ss "word"\nsecond line of it'
    _resolve(project, "${secret:A}", A=secret)
    shown = [
        f"url?p={secret}",
        'json: p&ss \\"word\\"\\nsecond line of it',
        "quoted p%26ss%20%22word%22%0Asecond%20line%20of%20it",
        "second line of it",
    ]
    for text in shown:
        assert not any(word in redact(text) for word in ("second", "word", "ss"))
        assert "[redacted]" in redact(text)


def test_short_value_is_redacted_only_alone_when_it_would_mangle_the_text(project):
    _resolve(project, "${secret:A}", A="ab")
    assert redact("table ab: pw=ab") == "table [redacted]: pw=[redacted]"


def test_user_error_is_redacted_when_it_quotes_a_secret(project):
    from penstock._project.user_code import user_code_error

    _resolve(project, "${secret:A}", A="hunter2")
    error = user_code_error(ValueError("bad: hunter2"), project.root / "a.py", str(project.root))
    assert "hunter2" not in str(error)
