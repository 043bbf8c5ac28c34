"""Methods found by a sentence: what was measured counts, and a browser ranks as Python does."""

from __future__ import annotations

import pytest

from upslope.cli import main
from upslope.report.catalogue import catalogue_records
from upslope.report.catalogue_search import answer_text, answers, claim_words, comparison, evidence, together, understand

NOISY = "my rewards are noisy and I reuse rollouts"


@pytest.fixture(scope="module")
def records() -> dict:
    return catalogue_records()


def names(records: dict, question: str) -> list[str]:
    return [each.method["name"] for each in answers(records, question)]


def test_a_sentence_is_situations_and_the_words_that_are_left(records: dict) -> None:
    asked = understand(NOISY, records["situations"])
    assert asked.situations == ("noisy rewards", "rollouts are reused") and asked.words == ()
    assert understand("What is cispo...", records["situations"]).words == ("cispo",)


def test_evidence_by_hand() -> None:
    assert evidence({"held": 0, "of": 0, "refuted": 0}) == 0.5
    assert evidence({"held": 3, "of": 3, "refuted": 0}) == pytest.approx(4 / 5)
    assert evidence({"held": 2, "of": 8, "refuted": 1}) == pytest.approx(3 / 11)  # one that did not hold counts twice


def test_methods_whose_claims_held_come_before_those_whose_did_not(records: dict) -> None:
    found = answers(records, NOISY)
    assert evidence(found[0].method["claim"]) > 0.5
    half = [each.method for each in found if len(each.matched) == 1]
    alike = [evidence(each["claim"]) for each in half if each["learner"] != "actor-critic" and each["family"] != "preference"]
    assert alike == sorted(alike, reverse=True)
    order = names(records, NOISY)
    assert order.index("pacs") < order.index("pipo") < order.index("rec-nois")


def test_every_situation_has_its_best_answer_among_the_first(records: dict) -> None:
    for question in (NOISY, "long answers, the entropy collapses and rollouts are stale"):
        asked, found = understand(question, records["situations"]).situations, answers(records, question)
        assert {name for each in found[: len(asked)] for name in each.matched} == set(asked)


def test_controllers_do_not_answer_for_language_models_unless_they_are_asked(records: dict) -> None:
    assert "sac" not in names(records, NOISY)[:5]
    assert records["methods"] and names(records, "a robot, and steps are expensive")[0] in {"sac", "rlpd", "moorl", "serl", "h2o"}


def test_pairs_are_asked_for_by_those_who_have_them(records: dict) -> None:
    families = {each["name"]: each["family"] for each in records["methods"]}
    assert families[names(records, "answers are long and the entropy collapses")[0]] == "rlvr"
    assert families[names(records, "I have pairs of answers and the entropy collapses")[0]] == "preference"


def test_a_name_finds_its_method_whatever_came_of_its_claim(records: dict) -> None:
    for each in records["methods"]:
        assert names(records, each["name"])[0] == each["name"]


def test_bnpo_speaks_of_a_noisy_gradient_not_of_noisy_rewards(records: dict) -> None:
    (bnpo,) = (each for each in records["methods"] if each["name"] == "bnpo")
    assert "noisy rewards" not in bnpo["situations"]


def test_two_are_offered_where_none_whose_claims_held_answers_all(records: dict) -> None:
    from upslope.methods import compose

    both = together(records, NOISY)
    assert both is not None
    assert compose(list(both)).name == "+".join(both)
    assert together(records, "my rewards are noisy") is None


def test_the_best_answer_beside_the_plain_method_in_that_situation(records: dict) -> None:
    from upslope.cli.parsers import parsers

    command = comparison(records, NOISY)
    assert command.startswith(f"upslope compare {names(records, NOISY)[0]} grpo --task ") and command.endswith(
        "--seeds 5 --passes 2"
    )
    parser, _ = parsers()
    for each in records["methods"]:
        if said := comparison(records, each["name"]):
            flags = parser.parse_args(said.split()[1:])
            assert flags.what[0] == each["name"] and flags.seeds == 5
    assert comparison(records, "grpo") == comparison(records, "zzz") == ""


def test_the_terminal_says_what_held_and_what_to_type(capsys: pytest.CaptureFixture) -> None:
    assert main(["methods", "--for", NOISY]) == 0
    told = capsys.readouterr().out
    assert told.startswith("for: noisy rewards · rollouts are reused") and "pipo" in told and "upslope compare" in told
    assert "came out the other way" in told and "pipo               for noisy rewards, rollouts are reused; " in told
    assert main(["methods", "--for", " "]) == 2 and "--for is empty" in capsys.readouterr().err
    assert main(["show", "pacs"]) == 0
    shown = capsys.readouterr().out
    assert "docs/claims/pacs.md: 3 of 3 statements held" in shown and "held: pass@8 at the end above that of grpo" in shown
    assert main(["methods", "--for", NOISY, "--family", "preference", "--json"]) == 0
    assert '"family": "preference"' in (told := capsys.readouterr().out) and '"pipo"' not in told
    assert main(["recommend"]) == 2
    assert "upslope methods --for" in capsys.readouterr().err


def test_words_nobody_speaks_of_are_answered_with_the_situations(records: dict) -> None:
    assert answer_text(records, "zzzz").startswith("No method answers that. Situations that methods speak of: noisy rewards;")
    assert claim_words({"held": 0, "of": 0, "refuted": 0}) == "its claim was not measured yet"
