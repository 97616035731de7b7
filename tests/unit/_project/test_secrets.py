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


def test_string_without_a_secret_reference_is_unchanged(project):
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
def test_secret_is_read_from_the_environment(project, text, environ):
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
def test_secret_is_read_from_the_secrets_file(project, name, content):
    path = project.write(name, content)
    resolved = _resolve(project, "${secret:kafka/password}", PENSTOCK_SECRETS_FILE=str(path))
    assert resolved == "0123"


def test_secret_is_read_from_a_mounted_folder(project):
    project.write("mounted/kafka/password", "from mount\n")
    project.write(".secrets/kafka/password", "from project\n")
    project.write(".secrets/TOKEN", "tok en\r\n")
    mounted = {"PENSTOCK_SECRETS_DIR": str(project.root / "mounted")}
    assert _resolve(project, "${secret:kafka/password}", **mounted) == "from mount"
    assert _resolve(project, "${secret:kafka/password}") == "from project"
    assert _resolve(project, "${secret:TOKEN}", **mounted) == "tok en"


def test_next_folder_is_searched_when_a_scope_has_the_name_of_a_secret(project):
    project.write("mounted/TOKEN/other", "x")
    project.write("mounted/kafka", "x")
    project.write(".secrets/TOKEN", "a")
    project.write(".secrets/kafka/password", "b")
    mounted = {"PENSTOCK_SECRETS_DIR": str(project.root / "mounted")}
    assert _resolve(project, "${secret:TOKEN}, ${secret:kafka/password}", **mounted) == "a, b"


def test_secret_value_is_not_resolved_again(project):
    value = "\\1 ${secret:B} $x"
    assert _resolve(project, "${secret:A}", A=value, B="never") == value


def test_error_names_all_searched_locations_when_a_secret_is_missing(project):
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
def test_invalid_secret_reference_is_refused(project, name):
    with pytest.raises(SpecError) as caught:
        _resolve(project, f"${{secret:{name}}}")
    assert caught.value.condition == "SECRET_REFERENCE_INVALID"


def test_content_of_an_invalid_secrets_file_is_not_shown(project):
    path = project.write("s.yaml", "password: 'hunter2\n  [")
    with pytest.raises(SpecError) as caught:
        _resolve(project, "${secret:a}", PENSTOCK_SECRETS_FILE=str(path))
    assert caught.value.condition == "SECRETS_FILE_INVALID"
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_resolved_secret_is_redacted_in_every_encoding(project):
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


def test_short_secret_is_redacted_only_as_a_whole_word(project):
    _resolve(project, "${secret:A}", A="ab")
    assert redact("table ab: pw=ab") == "table [redacted]: pw=[redacted]"


def test_secret_in_a_user_code_error_is_redacted(project):
    from penstock._project.user_code import user_code_error

    _resolve(project, "${secret:A}", A="hunter2")
    error = user_code_error(ValueError("bad: hunter2"), project.root / "a.py", str(project.root))
    assert "hunter2" not in str(error)
