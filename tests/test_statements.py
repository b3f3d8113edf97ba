"""Statements about licences, each held against the clauses."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamometer.compliance.statements import check, check_file
from dynamometer.errors import UsageError

EXAMPLES = Path(__file__).parent.parent / "examples" / "licence_statements.csv"


def test_the_example_s_verdicts_follow_from_the_clauses() -> None:
    found = {row.id: row.verdict for row in check_file(EXAMPLES)}
    assert found == {
        "l01": "wrong",  # the weights of V3 of December 2024 are under DeepSeek's own licence; its code is MIT
        "l02": "right",  # clause 2
        "l03": "right",  # Attachment A
        "l04": "wrong",  # no threshold
        "l05": "right",
        "l06": "right",  # MIT forbids nothing
        "l07": "wrong",  # the base brings Llama 3.1's terms
        "l08": "right",  # MIT, and Apache-2.0 of the base restricts nothing more
        "l09": "wrong",  # 1.b.v
        "l10": "right",  # 2
        "l11": "wrong",  # 2(a)
        "l12": "wrong",  # MIT is no copyleft
        "l13": "right",  # 4(c)
        "l14": "not_checkable",
    }


@pytest.mark.parametrize(
    ("statement", "verdict"),
    [
        ("DeepSeek-R1 is not released under the MIT licence", "wrong"),
        ("DeepSeek-V2 may be used for military purposes", "wrong"),
        ("Qwen2.5-72B needs a licence above 100 million monthly active users", "right"),
        ("DeepSeek-V3 is under the MIT licence and may be used commercially", "partly"),
    ],
)
def test_negations_and_halves_are_read(statement: str, verdict: str) -> None:
    assert check(statement).verdict == verdict


def test_a_model_that_is_only_a_pattern_of_the_list_is_found_by_its_column() -> None:
    assert check("needs a licence above 100 million users", "Qwen/Qwen2.5-72B-Instruct").verdict == "right"


def test_a_file_without_the_column_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,text\n1,x\n")
    with pytest.raises(UsageError, match="no column 'statement'"):
        check_file(path)
