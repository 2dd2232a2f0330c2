"""The rules of the definition: one table, printed by docs/definition.md."""

from pathlib import Path

from mha_core.reference.rules import RULES

PAGE = Path(__file__).parents[3] / "docs" / "definition.md"


def test_the_page_prints_every_rule_and_no_other():
    table = PAGE.read_text().partition("| rule | question | answer |\n|---|---|---|\n")[2]
    printed = table.partition("\n\n")[0].splitlines()
    assert printed == [f"| `{rule.id}` | {rule.about} | {rule.text} |" for rule in RULES.values()]


def test_a_terminal_gets_no_markdown():
    assert RULES["allowed"].plain.startswith("allowed, bool: True = may attend.")
    assert all("**" not in rule.plain and "`" not in rule.plain for rule in RULES.values())
