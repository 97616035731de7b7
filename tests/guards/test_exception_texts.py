"""Exceptions of the JVM are converted to text in one function, so no message has Py4J's text."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock._model.exception_text import first_line

SOURCE = Path(__file__).resolve().parents[2] / "src" / "penstock"
# Packages that call the JVM or show its exceptions.
ROOMS = (
    *("_analysis", "_execution", "_spark", "_tables", "_repair", "_lint", "_check.py"),
    *("sources", "sinks", "parsing", "quality"),
)
JVM_ERRORS = {"Exception", "BaseException", "Py4JError", "Py4JJavaError", "_SPARK_ERRORS"}
# failures.py: `full_text` collects all texts of an exception to search them, and `_reason` returns
# the line to show. protobuf.py: exceptions of the Protobuf library do not come from the JVM.
SEARCHED = {"failures.py", "protobuf.py"}


def quoted_exceptions(tree: ast.AST) -> Iterator[int]:
    """Lines that format an exception that can be one of Py4J as a string."""
    for handler in ast.walk(tree):
        if not isinstance(handler, ast.ExceptHandler) or handler.name is None:
            continue
        kinds = {getattr(n, "id", getattr(n, "attr", "")) for n in ast.walk(handler.type)}
        if not kinds & JVM_ERRORS:
            continue
        compared = {
            id(part)
            for node in ast.walk(handler)
            if isinstance(node, ast.Compare)
            for part in ast.walk(node)
        }
        for node in ast.walk(handler):
            if id(node) in compared:
                continue
            is_str = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "str"
            values = node.args if is_str else [node.value] if isinstance(
                node, ast.FormattedValue
            ) else []  # fmt: skip
            if any(getattr(value, "id", "") == handler.name for value in values):
                yield node.lineno


def test_jvm_exceptions_become_text_in_one_function():
    paths = [path for room in ROOMS for path in [SOURCE / room, *(SOURCE / room).rglob("*.py")]]
    guilty = {
        f"{path.relative_to(SOURCE)}:{line}"
        for path in paths
        if path.is_file() and path.name not in SEARCHED
        for line in quoted_exceptions(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert guilty == set()


def test_guard_detects_a_quoted_exception():
    code = "try:\n    f()\nexcept (Py4JJavaError, ValueError) as e:\n    raise X(f'{e}') from e\n"
    assert list(quoted_exceptions(ast.parse(code))) == [4]
    assert list(quoted_exceptions(ast.parse(code.replace("Py4JJavaError, ", "")))) == []


CALL = "An error occurred while calling o213.getFileSystem."


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            f'{CALL}\n: org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for "s3"'
            "\n\tat org.apache.hadoop.fs.FileSystem.get(FileSystem.java:1)",
            'No FileSystem for "s3"',
        ),
        (
            f"{CALL}\n: java.lang.RuntimeException: java.lang.ClassNotFoundException: "
            "Class org.apache.hadoop.fs.s3a.S3AFileSystem not found\n\tat a.B.c(D.java:1)",
            "Class org.apache.hadoop.fs.s3a.S3AFileSystem not found",
        ),
        (f"{CALL}\n: java.lang.NullPointerException\n\tat a.B.c(D.java:1)",
         "java.lang.NullPointerException"),
        ("An error occurred while calling o37.openFolder. Trace:\npy4j.Py4JException: "
         "Method openFolder([]) does not exist\n\tat py4j.A",
         "Method openFolder([]) does not exist"),
        (f"Py4JJavaError: {CALL}\n: a.b.CException: why", "why"),
        ("read on s3a://b: a.b.SdkException: refused (attempt: 6):    a.b.SdkException: refused "
         "(attempt: 6): refused", "read on s3a://b: a.b.SdkException: refused (attempt: 6)"),
        (CALL, "the JVM of Spark did not respond"),
        ("An error occurred while calling o213.load", "the JVM of Spark did not respond"),
        ("[X] what happened;\n'Project [a]", "[X] what happened"),
        ("[DELTA_X] it is before the version of\nthis table. Use\na later one.\n\tat a.B",
         "[DELTA_X] it is before the version of this table. Use a later one."),
        ("", "unknown"),
        ("  \n", "unknown"),
    ],
)  # fmt: skip
def test_no_py4j_text_remains_in_a_message(text: str, line: str):
    assert first_line(text) == line


def test_exception_without_a_message_is_named():
    assert first_line(ValueError()) == "ValueError"


def test_exception_whose_text_the_jvm_cannot_send_has_a_message():
    class GoneError(Exception):
        def __str__(self) -> str:
            raise ConnectionRefusedError

    assert first_line(GoneError()) == "the JVM of Spark did not respond"
