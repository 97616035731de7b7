import pytest

from penstock._model.redaction import (
    REDACTED,
    forget_secrets,
    redact,
    remember_named,
    remember_secret,
)


@pytest.fixture(autouse=True)
def no_secrets():
    forget_secrets()
    yield
    forget_secrets()


def test_remembered_secret_is_redacted():
    remember_secret("hunter2")
    assert redact("password=hunter2;") == f"password={REDACTED};"


def test_string_is_unchanged_without_remembered_secrets():
    assert redact("password=hunter2") == "password=hunter2"


@pytest.mark.parametrize("shown", ['say \\"please\\"', "say%20%22please%22", ' say "please" '])
def test_secret_is_redacted_when_escaped_for_json_or_a_url(shown):
    remember_secret('say "please"')
    assert "please" not in redact(f"<{shown}>")


def test_each_line_of_a_key_is_redacted():
    remember_secret("-----BEGIN-----\nMIIEvAIBADANBg\n-----END-----")
    assert "MIIEvAIBADANBg" not in redact("bad line: MIIEvAIBADANBg")


def test_longer_secret_is_redacted_first():
    remember_secret("pass")
    remember_secret("passphrase")
    assert redact("passphrase") == REDACTED


def test_short_secret_is_redacted_only_as_a_whole_word():
    remember_secret("abc")
    assert redact("abc abcde x=abc") == f"{REDACTED} abcde x={REDACTED}"


def test_blank_secret_is_ignored():
    remember_secret("  ")
    assert redact("a  b") == "a  b"


def test_password_with_an_at_sign_is_redacted_completely():
    remember_named({"url": "jdbc:postgresql://app:hunter@22@db/shop"})
    assert redact("the password hunter@22 is wrong") == f"the password {REDACTED} is wrong"
    remember_named({"conf": '{"url":"http://app:tiger-77@db","mail":"me@example.org"}'})
    assert redact("the password tiger-77 is wrong") == f"the password {REDACTED} is wrong"


def test_environment_variable_pwd_is_not_a_password():
    remember_named({"PWD": "/home/ada/shop", "pwd": "hunter2hunter2"})
    assert redact("/home/ada/shop/data hunter2hunter2") == f"/home/ada/shop/data {REDACTED}"
