"""Finding a formula in prose and working it out, without ever running anything."""

from __future__ import annotations

import pytest

from dynamometer.decisions.formula import Unsolvable, evaluate, find


@pytest.mark.parametrize(
    ("text", "values", "result"),
    [
        ("predicted by 12500/(1+0.0043*batch^0.82*seq^1.37); measured 8920", {"batch": 32, "seq": 128}, 216.15497),
        ("concurrency 16 on y=1182x/(22.3+x); residual said to be 1.2 percent", {"x": 16}, 493.7859),
        ("0.6*(128.5/100)^-1+0.4*(24.8/25)", {}, 0.863726),
        ("204.8e9/12.4e6*0.8 by the printed formula", {}, 13212.903),
        ("2 × 3 × 4", {}, 24),
        ("sqrt(16)*2", {}, 8),
        ("latency = 20 + 5*batch", {"batch": 16}, 100),
        ("1,000 * 2 tokens", {}, 2000),
    ],
)
def test_a_formula_in_prose_is_found_and_worked_out(text: str, values: dict[str, float], result: float) -> None:
    formula = find(text)
    assert formula is not None
    assert set(formula.variables) == set(values)
    assert evaluate(formula, values) == pytest.approx(result, rel=1e-5)


@pytest.mark.parametrize(
    "text",
    [
        "1842 to 2157 tokens/s, pruning 12 heads to 6",
        "AVX2 FP32 187.3 ms to AVX-512 BF16 92.1 ms",
        "vLLM, 64 users; P95 142 ms; 18.3 GB",
        "84.2 to 79.6",
        "the moon is made of cheese",
        "",
        "a 2x speedup at 900 GB/s",
    ],
)
def test_prose_with_numbers_is_no_formula(text: str) -> None:
    assert find(text) is None


@pytest.mark.parametrize("text", ["9**9**9**9*2", "1/(2-2)*3", "10*log(0)"])
def test_a_formula_without_a_finite_value_says_so(text: str) -> None:
    formula = find(text)
    assert formula is not None
    with pytest.raises(Unsolvable):
        evaluate(formula, {})


@pytest.mark.parametrize(
    "text", ["__import__('os').system('true')*2", "().__class__*2", "x.y*3", "open('f')*2", "[1]*9"]
)
def test_nothing_but_arithmetic_gets_through(text: str) -> None:
    formula = find(text)
    assert formula is None or all(letter in "0123456789*/+-(). xyfosn" for letter in formula.python)


def test_a_missing_variable_is_named() -> None:
    formula = find("3*batch+1")
    assert formula is not None
    with pytest.raises(Unsolvable, match="batch"):
        evaluate(formula, {})
