"""Which file a text is, by the name that it is sent with."""

import pytest

from gateway.rule_versions.errors import RulesRefused
from gateway.rule_versions.file_names import named

KNOWN = ["rules/b.yaml", "rules/a.yaml", "more/a.yaml", "more/c.yaml"]


def test_names_are_those_of_the_files() -> None:
    """The order is that of the disk, new files come last."""
    sent = {"new.yaml": "5", "more/a.yaml": "3", "c.yaml": "4", "rules/a.yaml": "2", "b.yaml": "1", "more/d.yml": "6"}
    assert list(named(sent, KNOWN).items()) == [
        ("rules/b.yaml", "1"),
        ("rules/a.yaml", "2"),
        ("more/a.yaml", "3"),
        ("more/c.yaml", "4"),
        ("more/d.yml", "6"),
        ("rules/new.yaml", "5"),
    ]


@pytest.mark.parametrize(
    "sent, why",
    [
        ({}, "there is no file"),
        ({"rules.txt": ""}, "ends with .yaml or .yml"),
        ({"rules/.hidden.yaml": ""}, "ends with .yaml or .yml"),
        ({"/etc/passwd": ""}, "ends with .yaml or .yml"),
        ({"/etc/x.yaml": ""}, "one of: rules, more"),
        ({"../x.yaml": ""}, "one of: rules, more"),
        ({"b.yaml": "", "rules/b.yaml": ""}, "rules/b.yaml is given twice"),
    ],
)
def test_other_names_are_refused(sent: dict[str, str], why: str) -> None:
    """What rules name beside themselves is looked for where rule files are already, and nowhere else."""
    with pytest.raises(RulesRefused) as refused:
        named(sent, KNOWN)
    assert why in str(refused.value)
