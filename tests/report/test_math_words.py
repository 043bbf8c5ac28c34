"""Formulas of docstrings can be read in a terminal."""

import pytest

from upslope.methods import catalogue
from upslope.report.describe import read_docstring
from upslope.report.math_words import plain_math
from upslope.types import Part


@pytest.mark.parametrize(
    ("latex", "wanted"),
    [
        (r"r_t = \exp(\log\pi_\theta - \log\pi_{old})", "r_t = exp(log π_θ - log π_old)"),
        (r"A_i = \frac{r_i - \bar r_{g(i)}}{s_{g(i)} + \epsilon}", "A_i = (r_i - r̄_(g(i)))/(s_(g(i)) + ε)"),
        (r"u = w\,r + (1-w)\,s", "u = w r + (1-w) s"),
        (r"\tfrac12 + \sqrt{1 + 4x}", "1/2 + √(1 + 4x)"),
        (r"s' \text{ of } \{R_1, \dots, R_G\} \cup \{best\}^{virtual}", "s' of {R_1, …, R_G} ∪ {best}^virtual"),
        (r"x\quad\text{and}\quad y", "x and y"),
        (r"\frac{1}{T_i}\sum_t d_{i,t}", "1/T_i Σ_t d_(i,t)"),
        ("nothing to do: 3 / 4", "nothing to do: 3 / 4"),
    ],
)
def test_a_formula_is_written_in_a_line(latex, wanted):
    assert " ".join(plain_math(latex).split()) == wanted


def test_no_part_of_the_catalogue_shows_latex():
    catalogue()
    kinds, texts = [Part], []
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if kind.__module__.startswith("upslope."):
            about, formulas, fields = read_docstring(kind)
            texts += [about, *formulas, *fields.values()]
    assert len(texts) > 200
    assert not [text for text in texts if "\\" in text or "frac" in text.split() or "quad" in text]
