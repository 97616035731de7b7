"""`display` and `displayHTML`: in a pipeline there is nobody to show something to."""

from typing import Any


def display(*_objects: Any, **_options: Any) -> None:
    """Take anything and show nothing; no query is started."""


def display_html(_html: str = "", *_options: Any, **_more: Any) -> None:
    """Take a text and show nothing."""
