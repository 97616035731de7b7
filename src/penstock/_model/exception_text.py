"""One-line messages of exceptions of Python, Spark and Py4J."""

import re

from penstock._model.redaction import redact

# Py4J reports which of its objects was called, followed by the message of the JVM.
_CALL = re.compile(
    r"(?:Py4J\w*Error: )?An error occurred while calling [^\n]*(?:\n: ?|\n)"
    r"(?:[\w.$]+(?:Exception|Error): )*([^\n]+)"
)
_CALL_ALONE = re.compile(r"(?:Py4J\w*Error: )?An error occurred while calling [^\n]*\.?")
# The qualifier of a column: the temporary view of a dataset in a query.
_GENERATED_VIEW = re.compile(r"`__penstock_\d+`\.")
# Delta breaks some of its sentences across lines.
_WRAPPED = re.compile(r"(?<=[\w,)]) ?\n ?(?=[a-z])")
# Hadoop repeats the text of the SDK of a store.
_REPEATED = re.compile(r"(\b[\w.$]+(?:Exception|Error): .+?):\s+\1.*")
_NO_ANSWER = "the JVM of Spark did not respond"


def first_line(error: BaseException | str) -> str:
    """An exception's message without stack trace, plan, secrets and the call of Py4J.

    Every message that quotes an exception of the JVM uses this function.
    """
    try:
        text = str(error).strip()
    except Exception:  # Py4J gets the text from the JVM, which may have ended
        return _NO_ANSWER
    if not text:
        return "unknown" if isinstance(error, str) else type(error).__name__
    if _CALL_ALONE.fullmatch(text):
        line = _NO_ANSWER
    else:
        text = _CALL.sub(r"\1", text, count=1)
        line = (_WRAPPED.sub(" ", text) if text.startswith("[DELTA_") else text).split("\n", 1)[0]
    line = _REPEATED.sub(r"\1", _GENERATED_VIEW.sub("", line))
    return redact(line.strip().removesuffix(";"))
