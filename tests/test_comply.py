"""Licences: what cards, texts and bases say, and what that comes to for a deployment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from licence_texts import CUSTOM, DEEPSEEK, MIT, MODIFIED_MIT

from dynamometer.cli import dyno
from dynamometer.compliance import card as cards
from dynamometer.compliance import facts as fact
from dynamometer.compliance import find, names
from dynamometer.compliance.clear import Clearance, clear
from dynamometer.compliance.facts import Facts, Revenue, Use
from dynamometer.compliance.parts import parts

GEMMA = "https://ai.google.dev/gemma/terms"
ROOT = Path(__file__).parent.parent


def judged(model: str | cards.Card, *uses: Use, **more: object) -> Clearance:
    """The clearance of a known name or a card, off the network."""
    card = find.resolve(model, online=False)[0] if isinstance(model, str) else model
    facts = msgspec.convert({"use": uses or ("saas",), **more}, Facts)
    return clear(card.name, parts(card, {}, online=False), facts, notes=card.notes)


def fields(**values: object) -> cards.Card:
    return cards.from_fields(values, str(values.get("repo", "acme/model")), "a card")


def licences_of(found: Clearance) -> dict[str, str]:
    return {part.name: part.licence for part in found.parts}


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """Writes files into a model's folder."""

    def make(**files: str) -> Path:
        place = tmp_path / "model"
        place.mkdir(exist_ok=True)
        for name, text in files.items():
            (place / name.replace("__", "-").replace("README", "README.md")).write_text(text)
        return place

    return make


# --- F01: distilled models inherit from their base


@pytest.mark.parametrize(
    ("size", "base"),
    [("Llama-8B", "LicenseRef-llama3.1"), ("Llama-70B", "LicenseRef-llama3.3"), ("Qwen-32B", "Apache-2.0")],
)
def test_a_distilled_model_is_mit_and_carries_the_terms_of_its_base(size: str, base: str) -> None:
    found = judged(fields(repo=f"deepseek-ai/DeepSeek-R1-Distill-{size}", license="mit"))
    assert found.weights.licence == "MIT"
    assert [part.licence for part in found.parts if part.kind == "base"] == [base]
    assert found.status == ("permissive" if base == "Apache-2.0" else "review")


def test_the_llama_ones_ask_for_name_attribution_policy_and_a_limit_of_users() -> None:
    found = judged(fields(repo="deepseek-ai/DeepSeek-R1-Distill-Llama-8B", license="mit"), "finetune")
    told = " ".join(item.text for item in found.checklist)
    for word in ("700 million", "Built with Llama", "Acceptable Use Policy", "at the beginning of its name"):
        assert word in told
    assert "Built with Llama" in found.attribution


def test_the_maker_s_own_r1_is_mit_only() -> None:
    found = judged(fields(repo="deepseek-ai/DeepSeek-R1", license="mit"))
    assert found.status == "permissive"
    assert [part.kind for part in found.parts] == ["weights"]


def test_a_name_without_a_stated_base_gives_possible_terms_never_certain_ones() -> None:
    found = judged(fields(repo="acme/Chat-Llama-3.1-8B-tuned", license="mit"))
    (possible,) = [part for part in found.parts if part.kind == "possible base"]
    assert possible.licence == "LicenseRef-llama3.1"
    assert found.status == "review"
    assert "possible" in possible.because
    assert not [part for part in found.parts if part.kind == "base"]


# --- F03: sizes of one family differ, and what derives from them inherits


def test_sizes_of_one_family_have_their_own_terms() -> None:
    link = "https://example.invalid/LICENSE"
    small = judged(fields(repo="Qwen/Qwen2.5-3B", license="other", license_name="qwen-research", license_link=link))
    middle = judged(fields(repo="Qwen/Qwen2.5-7B", license="apache-2.0"))
    large = judged(fields(repo="Qwen/Qwen2.5-72B", license="other", license_name="qwen"))
    assert (small.status, middle.status, large.status) == ("blocked", "permissive", "review")
    assert (small.weights.licence, large.weights.licence) == ("LicenseRef-qwen-research", "LicenseRef-qwen")


@pytest.mark.parametrize("base", ["Qwen/Qwen2.5-VL-3B-Instruct", ["Qwen/Qwen2.5-3B-Instruct", "acme/vit"]])
def test_a_derivative_of_a_research_model_stays_blocked_whatever_its_own_tag(base: object) -> None:
    for own in ("mit", "apache-2.0"):
        found = judged(fields(repo="acme/visual-4b", license=own, base_model=base, library_name="peft"))
        assert found.status == "blocked"
        assert found.weights.status == "permissive"
        assert not found.cleared


def test_a_base_that_nobody_knows_makes_the_answer_unknown_until_it_is_stated() -> None:
    card = fields(repo="acme/model", license="mit", base_model="acme/vit")
    assert judged(card).status == "unknown"
    stated = parts(card, {"acme/vit": names.read("apache-2.0")}, online=False)
    assert clear(card.name, stated, Facts()).status == "permissive"


def test_the_chain_is_followed_to_its_end_and_a_circle_ends() -> None:
    found = judged(fields(repo="acme/q", license="mit", base_model="deepseek-ai/DeepSeek-R1-Distill-Llama-70B"))
    assert [part.name for part in found.parts] == [
        "acme/q",
        "deepseek-ai/DeepSeek-R1-Distill-Llama-70B",
        "meta-llama/Llama-3.3-70B-Instruct",
    ]
    assert judged(fields(repo="acme/q", license="mit", base_model="acme/q")).status == "permissive"


# --- F04: odd, missing and broken metadata


@pytest.mark.parametrize(
    ("front", "expression", "status"),
    [
        (f"license: other\nlicense_name: gemma-terms-of-use\nlicense_link: {GEMMA}", "LicenseRef-gemma", "review"),
        ("license: gemma", "LicenseRef-gemma", "review"),
        ("license:\n- apache-2.0\n- cc-by-nc-4.0", "Apache-2.0 AND CC-BY-NC-4.0", "blocked"),
        ("license: Apache 2.0", "Apache-2.0", "permissive"),
        ("license: MIT OR Apache-2.0", "MIT OR Apache-2.0", "permissive"),
        ("license: unknown", "unknown", "unknown"),
        ("license: other   # no name, no link", "unknown", "unknown"),
        ("license:", "unknown", "unknown"),
        ("license: 3", "unknown", "unknown"),
        ("license: {a: b}", "unknown", "unknown"),
        ("license: [", "unknown", "unknown"),
        ("license: mit\nlicense: cc-by-nc-4.0", "unknown", "unknown"),
        ("license: !!python/object:os.system", "unknown", "unknown"),
        ("license: mit\nbase_model: [3, null]", "MIT", "unknown"),
        ("tags:\n- x", "unknown", "unknown"),
        ("just words", "unknown", "unknown"),
    ],
)  # fmt: skip
def test_front_matter_is_read_as_it_comes_and_never_taken_for_permissive(
    front: str, expression: str, status: str
) -> None:
    found = judged(cards.from_readme(f"---\n{front}\n---\n# Model\n", "acme/model", "README.md"))
    assert (found.weights.licence, found.status) == (expression, status)


def test_a_licence_file_alone_is_read_from_its_text(folder: Callable[..., Path]) -> None:
    found = judged(str(folder(README="# A model without front matter\n", LICENSE=MIT)))
    assert (found.weights.licence, found.status) == ("MIT", "permissive")
    assert "file LICENSE" in found.weights.source


@pytest.mark.parametrize("readme", ["# no front matter\n", "", "---\nlicense: unknown\n---\n"])
def test_neither_tag_nor_file_is_unknown_and_not_cleared(folder: Callable[..., Path], readme: str) -> None:
    found = judged(str(folder(README=readme)))
    assert (found.status, found.cleared) == ("unknown", False)
    assert found.look_at


# --- F06: code and weights have licences of their own


def test_the_licence_of_the_code_does_not_clear_weights() -> None:
    card = msgspec.structs.replace(fields(repo="acme/voice", license="cc-by-nc-4.0"), code=names.read("Apache-2.0"))
    found = judged(card)
    kinds = {part.kind: part for part in found.parts}
    assert (kinds["code"].licence, kinds["code"].status) == ("Apache-2.0", "permissive")
    assert (kinds["weights"].licence, kinds["weights"].status) == ("CC-BY-NC-4.0", "blocked")
    assert found.status == "blocked"


def test_licence_code_and_licence_model_map_to_their_parts(folder: Callable[..., Path]) -> None:
    found = judged(str(folder(README="# model\n", LICENSE__CODE=MIT, LICENSE__MODEL=DEEPSEEK)))
    kinds = {part.kind: part.licence for part in found.parts}
    assert kinds == {"weights": "LicenseRef-deepseek", "code": "MIT"}
    assert found.status == "review"


def test_a_custom_model_text_is_unknown_even_beside_mit_code(folder: Callable[..., Path]) -> None:
    found = judged(str(folder(README="# model\n", LICENSE__CODE=MIT, LICENSE__MODEL=CUSTOM)))
    assert (found.weights.licence, found.status) == ("unknown", "unknown")
    assert "non-commercial research purposes" in found.weights.doubt


# --- agreement of tag and text


def test_tag_and_text_that_disagree_are_unknown_with_both_named(folder: Callable[..., Path]) -> None:
    found = judged(str(folder(README="---\nlicense: apache-2.0\n---\n", LICENSE=MIT)))
    assert found.status == "unknown"
    assert "Apache-2.0" in found.weights.doubt
    assert "MIT" in found.weights.doubt
    assert found.look_at == ("LICENSE",)


def test_a_disagreement_of_which_one_side_forbids_is_a_no(folder: Callable[..., Path]) -> None:
    found = judged(str(folder(README="---\nlicense: cc-by-nc-4.0\n---\n", LICENSE=MIT)))
    assert found.status == "blocked"


def test_a_sentence_added_to_a_permissive_text_is_seen(folder: Callable[..., Path]) -> None:
    found = judged(str(folder(README="---\nlicense: mit\n---\n", LICENSE=MODIFIED_MIT)))
    assert found.status == "unknown"
    assert "5 million monthly active users" in found.weights.doubt


def test_this_project_s_own_licence_is_recognised() -> None:
    assert cards.identify((ROOT / "LICENSE").read_text()).ids == ("Apache-2.0",)


# --- facts that turn the answer


@pytest.mark.parametrize(
    ("mau", "status"), [(None, "review"), (1_000_000, "review"), (700_000_000, "review"), (700_000_001, "blocked")]
)
def test_more_than_700_million_users_need_a_licence_of_their_own(mau: int | None, status: str) -> None:
    assert judged("meta-llama/Llama-3.1-8B", mau=mau).status == status


@pytest.mark.parametrize(
    ("mau", "revenue", "status"),
    [
        (1000, Revenue(1e6, "month"), "permissive"),
        (100_000_001, Revenue(1e6, "month"), "review"),
        (1000, Revenue(21e6, "month"), "review"),
        (1000, Revenue(21e6, "year"), "permissive"),
        (1000, Revenue(300e6, "year"), "review"),
        (1000, None, "review"),
    ],
)
def test_a_permissive_looking_text_with_a_threshold_is_judged_by_the_facts(
    mau: int, revenue: Revenue | None, status: str
) -> None:
    assert judged("moonshotai/Kimi-K2-Instruct", mau=mau, revenue=revenue).status == status


def test_a_revenue_without_a_period_is_read_both_ways_and_asked_for() -> None:
    found = judged("moonshotai/Kimi-K2-Instruct", mau=1000, revenue=Revenue(30e6))
    assert found.status == "review"
    assert any("30M/month" in item.why for item in found.checklist)


def test_llama_2_and_3_forbid_distilling_into_another_model_and_3_1_does_not() -> None:
    states = {
        name: judged(name, "distill", mau=1).status
        for name in ("meta-llama/Llama-2-7b", "meta-llama/Meta-Llama-3-8B", "meta-llama/Llama-3.1-8B")
    }
    assert list(states.values()) == ["blocked", "blocked", "review"]


def test_a_territory_can_close_a_licence() -> None:
    assert judged("tencent/Hunyuan-7B-Instruct", mau=1, territories=("KR",)).status == "blocked"
    assert judged("tencent/Hunyuan-7B-Instruct", mau=1, territories=("JP",)).status == "review"
    assert judged("meta-llama/Llama-4-Scout-17B", mau=1, territories=("DE", "EU")).status == "blocked"
    assert judged("meta-llama/Llama-3.2-1B", mau=1, territories=("DE", "EU")).status == "review"
    assert judged("meta-llama/Llama-3.2-11B-Vision", mau=1, territories=("DE", "EU")).status == "blocked"


def test_non_commercial_use_opens_a_non_commercial_licence() -> None:
    assert judged("CohereLabs/c4ai-command-r-v01", commercial=False).status == "permissive"
    assert judged("Qwen/Qwen2.5-3B", "on-prem", commercial=False).status == "permissive"


def test_v3_and_its_march_release_differ() -> None:
    first, march = judged("deepseek-ai/DeepSeek-V3"), judged("deepseek-ai/DeepSeek-V3-0324")
    assert (first.status, march.status) == ("review", "permissive")
    assert licences_of(first) == {"deepseek-ai/DeepSeek-V3": "MIT"}  # the code, named last under the same name
    assert first.weights.licence == "LicenseRef-deepseek"


def test_deepseek_terms_pass_use_restrictions_on_when_hosted_but_not_inside_one_s_own_house() -> None:
    hosted, inside = judged("deepseek-ai/DeepSeek-V2"), judged("deepseek-ai/DeepSeek-V2", "on-prem")
    assert next(item.clause for item in hosted.checklist if item.kind == "act").startswith("4(a)")
    assert not [item for item in inside.checklist if item.kind == "act"]
    assert any("military" in item.text for item in inside.checklist)


def test_the_boundary_names_every_use() -> None:
    found = judged("meta-llama/Llama-2-7b", mau=1)
    told = {one.use: one.status for one in found.boundary}
    assert told == {**dict.fromkeys(fact.USES, "review"), "distill": "blocked"}


def test_data_under_a_non_commercial_licence_is_a_reason_to_look() -> None:
    found = judged(fields(repo="acme/x", license="apache-2.0", datasets=["tatsu-lab/alpaca", "acme/own"]))
    assert found.status == "review"
    assert [part.licence for part in found.parts if part.kind == "data"] == ["CC-BY-NC-4.0", "unknown"]


# --- words in


@pytest.mark.parametrize(
    ("text", "usd", "period"),
    [("30M/month", 30e6, "month"), ("2.5b/year", 2.5e9, "year"), ("1,000", 1000, ""), ("$5k", 5000, "")],
)
def test_revenue_is_read_with_its_period(text: str, usd: float, period: str) -> None:
    assert fact.revenue(text) == Revenue(usd, period)


def test_a_country_of_the_union_is_the_union_as_well() -> None:
    assert fact.places(("de, US",)) == ("DE", "EU", "US")


# --- the verb


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(dyno, ["comply", *args, "--offline"])
    code = (
        result.exit_code
        if result.exception is None or isinstance(result.exception, SystemExit)
        else getattr(result.exception, "exit_code", -1)
    )
    return code, result.output


def test_the_exit_code_is_made_for_ci() -> None:
    assert run("deepseek-ai/DeepSeek-R1")[0] == 0
    assert run("deepseek-ai/DeepSeek-V3")[0] == 1
    assert run("deepseek-ai/DeepSeek-V3", "--accept", "LicenseRef-deepseek")[0] == 0
    assert run("meta-llama/Llama-3.1-8B", "--accept", "llama3.1")[0] == 1  # --mau is still open
    assert run("meta-llama/Llama-3.1-8B", "--accept", "llama3.1", "--mau", "5M")[0] == 0
    assert run("Qwen/Qwen2.5-3B", "--accept", "LicenseRef-qwen-research")[0] == 1


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("nothing-by-that-name",),
        ("./absent.md",),
        ("deepseek-v3", "--mau", "many"),
        ("deepseek-v3", "--territory", "Mars"),
        ("deepseek-v3", "--base", "x"),
        ("deepseek-v3", "--accept", "zz"),
    ],
)
def test_bad_input_is_a_usage_error(words: tuple[str, ...]) -> None:
    assert run(*words)[0] == 2


def test_a_hub_name_that_nobody_knows_is_not_cleared_and_says_where_to_look() -> None:
    code, text = run("nobody/unheard-of-7b", "--json")
    table = msgspec.json.decode(text)
    assert (code, table["status"], table["cleared"]) == (1, "unknown", False)
    assert table["look_at"]


def test_json_has_weights_code_and_data_apart() -> None:
    table = msgspec.json.decode(run("deepseek-v3", "--json")[1])
    assert table["weights"]["licence"] == "LicenseRef-deepseek"
    assert table["code"]["licence"] == "MIT"
    assert table["status"] == "review"
    assert table["boundary"]["on-prem"]["status"] == "review"
    assert "Not legal advice" in table["disclaimer"]


def test_several_cards_of_one_file_are_answered_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "cards.json"
    research = {"repo": "Qwen/Qwen2.5-3B", "license": "other", "license_name": "qwen-research"}
    rows = [{"repo": "deepseek-ai/DeepSeek-R1", "license": "mit"}, research]
    path.write_bytes(msgspec.json.encode({"cards": rows}))
    code, text = run(str(path), "--json")
    assert code == 1
    assert [row["status"] for row in msgspec.json.decode(text)] == ["permissive", "blocked"]


def test_every_obligation_has_a_clause_and_every_licence_a_source() -> None:
    from dynamometer.compliance.catalogue import KINDS, licences

    for entry in licences().values():
        assert entry.kind in KINDS
        assert entry.source.startswith("https://")
        assert entry.checked in ("text", "quoted", "check")
        for term in entry.obligations:
            assert term.clause
            assert term.kind in ("notice", "act", "limit", "separate", "forbidden", "know")


def test_every_rule_of_the_list_names_a_licence_of_the_catalogue() -> None:
    from dynamometer.compliance.catalogue import licences

    for rule in find.known().rule:
        assert {rule.weights, rule.code or "MIT"} <= set(licences()), rule.match
    for hint in find.known().hint:
        assert hint.weights in licences()
