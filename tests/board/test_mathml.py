"""Formulas become MathML: well formed for every method, faithful for the shapes they use, harmless for anything else."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upslope.board.mathml import DEEPEST, LONGEST, formula_mathml
from upslope.methods import catalogue

NAMES = {"math", "mrow", "mi", "mn", "mo", "mtext", "msub", "msup", "msubsup", "munder", "munderover", "mfrac", "msqrt"}
CHILDREN = {"msub": 2, "msup": 2, "mfrac": 2, "munder": 2, "msubsup": 3, "munderover": 3}


def checked(formula: str) -> str:
    """The MathML of a formula, without the outermost element, after checking its form."""
    found = formula_mathml(formula)
    if not found:
        return ""
    root = ElementTree.fromstring(found)
    for element in root.iter():
        name = element.tag.rpartition("}")[2]
        assert name in NAMES and set(element.attrib) <= {"display", "stretchy", "lspace", "rspace"}
        assert len(element) == CHILDREN.get(name, len(element)), f"{name} has {len(element)} children"
    return re.sub(r' (stretchy|lspace|rspace)="\w+"', "", found.partition(">")[2].removesuffix("</math>"))


@pytest.mark.parametrize("method", [each for each in catalogue().values() if each.formula], ids=lambda each: each.name)
def test_every_formula_of_the_catalogue_is_set_with_nothing_lost(method):
    found = checked(method.formula)
    said = "".join(ElementTree.fromstring(f"<x>{found}</x>").itertext())
    drawn = "".join(each for each in said if each.isalnum())
    # Halves and raised digits are drawn as plain ones.
    wanted = method.formula
    for sign, plain in {"½": "12", "¼": "14", "²": "2", "ᵀ": "T", "₁": "1", "₂": "2", "₀": "0", "Σ": ""}.items():
        wanted = wanted.replace(sign, plain)
    assert sorted(drawn) == sorted(each for each in wanted if each.isalnum())


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("A_i", "<msub><mi>A</mi><mi>i</mi></msub>"),
        ("r_it", "<msub><mi>r</mi><mrow><mi>i</mi><mi>t</mi></mrow></msub>"),
        ("e^{-k}", "<msup><mi>e</mi><mrow><mo>−</mo><mi>k</mi></mrow></msup>"),
        ("π^l_old", "<msubsup><mi>π</mi><mi>old</mi><mi>l</mi></msubsup>"),
        ("q₁²", "<msubsup><mi>q</mi><mn>1</mn><mn>2</mn></msubsup>"),
        ("Σ_t x", "<munder><mo>∑</mo><mi>t</mi></munder><mi>x</mi>"),
        ("½", "<mfrac><mn>1</mn><mn>2</mn></mfrac>"),
        ("1e-6", "<mn>1e-6</mn>"),
        ("(1/T_i)", "<mfrac><mn>1</mn><msub><mi>T</mi><mi>i</mi></msub></mfrac>"),
        ("(1/ΣT)", "<mfrac><mn>1</mn><mrow><mo>∑</mo><mi>T</mi></mrow></mfrac>"),
        ("π/μ", "<mfrac><mi>π</mi><mi>μ</mi></mfrac>"),
        ("(a + b) / (c)", "<mfrac><mrow><mi>a</mi><mo>+</mo><mi>b</mi></mrow><mrow><mi>c</mi></mrow></mfrac>"),
        ("√(1 + x)", "<msqrt><mrow><mn>1</mn><mo>+</mo><mi>x</mi></mrow></msqrt>"),
        ("x <= y", "<mi>x</mi><mo>≤</mo><mi>y</mi>"),
        ("x <- y", "<mi>x</mi><mo>←</mo><mi>y</mi>"),
        ("exp(x)", "<mrow><mi>exp</mi><mrow><mo>(</mo><mi>x</mi><mo>)</mo></mrow></mrow>"),
        ("f(a/b)", "<mrow><mi>f</mi><mrow><mo>(</mo><mfrac><mi>a</mi><mi>b</mi></mfrac><mo>)</mo></mrow></mrow>"),
        ("log π", "<mi>log</mi><mtext>\u00a0</mtext><mi>π</mi>"),
        ("a,   b", "<mi>a</mi><mo>,</mo><mtext>\u2003</mtext><mi>b</mi>"),
        ("A'", "<msup><mi>A</mi><mo>′</mo></msup>"),
        ("the group's mean", "<mtext>the</mtext><mtext>\u00a0</mtext><mtext>group’s</mtext><mtext>\u00a0</mtext><mi>mean</mi>"),
    ],
)  # fmt: skip
def test_each_shape_is_set_as_one_would_write_it(formula: str, expected: str):
    assert checked(formula) == expected


@pytest.mark.parametrize(
    "formula", ["G A / Σ_j x", "d / mean d", "a b / c", "answer classes / n", "-α S / log G", "exp(s) x / y z", "/", "a/", "/a"]
)
def test_a_slash_that_could_be_read_otherwise_stays_a_slash(formula: str):
    assert "mfrac" not in checked(formula) and "<mo>/</mo>" in checked(formula)


ODD = [
    "", "   ", "x" * (LONGEST + 1), "(", ")", "((a)", "[a)", "(a]", "{a}", "}", "_", "^", "x_", "x^", "x_{", "√", "√(", "Σ_", "__",
    "x__y", "(" * 500 + "x" + ")" * 500, "x^{" * 200 + "y" + "}" * 200, "|a", "'", "²", "<script>alert(1)</script>", "a & b",
    '"><img>', "\x00\ud800\uffff x", "]]>", "&lt;", "x_<b>", "½/½", "1/2/3",
]  # fmt: skip


@pytest.mark.parametrize("formula", ODD)
def test_odd_text_neither_fails_nor_becomes_markup(formula: str):
    found = checked(formula)
    assert "<script" not in found and "<img" not in found and "<b>" not in found


@given(st.text(alphabet="aπΣT_^{}()[]|/√½²₁'<>&,- =.1eé\u0302", max_size=60))
def test_any_text_gives_well_formed_mathml(formula: str):
    checked(formula)


def test_brackets_are_followed_only_so_deep():
    assert checked("(" * (DEEPEST - 1) + "x" + ")" * (DEEPEST - 1)).count("<mrow>") == DEEPEST - 1
