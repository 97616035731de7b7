"""The lint page agrees with the rules."""

import re
from pathlib import Path

import pytest

from penstock._lint.catalogue import RULES

PAGE = Path(__file__).resolve().parents[3] / "docs" / "lint.md"
SECTIONS = dict(
    re.findall(r"(?ms)^### (PSL\d+ [\w-]+)\n(.*?)(?=^##|\Z)", PAGE.read_text(encoding="utf-8"))
)


def _words(text: str) -> str:
    return " ".join(text.split())


def test_the_page_has_a_section_for_each_rule_in_order():
    assert list(SECTIONS) == [f"{rule.id} {rule.name}" for rule in RULES.values()]


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.id)
def test_section_has_severity_summary_reason_and_fix_of_its_rule(rule):
    text = _words(SECTIONS[f"{rule.id} {rule.name}"])
    assert text.startswith(f"**{rule.severity}**: {_words(rule.summary)}.")
    assert _words(rule.why) in text
    assert f"Fix: {_words(rule.fix)}" in text
    assert f"{rule.id} finds it" in text
    assert f"{rule.id} finds nothing" in text


def test_rule_links_have_the_anchors_of_the_page():
    for rule in RULES.values():
        title = f"{rule.id} {rule.name}"
        anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        assert rule.page == f"docs/lint.md#{anchor}"


def test_reason_and_fix_of_a_rule_end_with_a_period():
    for rule in RULES.values():
        assert rule.why.endswith((".", ".)")), rule.id
        assert rule.fix.endswith("."), rule.id
        assert not rule.summary.endswith("."), rule.id
