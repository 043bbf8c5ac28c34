"""Formulas of docstrings, written in LaTeX, as people read them in a terminal or a table."""

from __future__ import annotations

import re

SYMBOLS = {
    "pi": "π", "theta": "θ", "tau": "τ", "mu": "μ", "epsilon": "ε", "varepsilon": "ε", "lambda": "λ", "xi": "ξ", "alpha": "α",
    "sigma": "σ", "rho": "ρ", "phi": "φ", "gamma": "γ", "delta": "δ", "beta": "β", "psi": "ψ", "omega": "ω", "eta": "η",
    "kappa": "κ", "nu": "ν", "Delta": "Δ", "Sigma": "Σ", "Omega": "Ω", "Phi": "Φ", "Pi": "Π", "sum": "Σ", "prod": "∏",
    "int": "∫", "cdot": "·", "times": "×", "leftarrow": "←", "rightarrow": "→", "to": "→", "mapsto": "↦", "in": "∈",
    "notin": "∉", "ge": "≥", "geq": "≥", "le": "≤", "leq": "≤", "ne": "≠", "neq": "≠", "approx": "≈", "propto": "∝", "sim": "~",
    "pm": "±", "top": "ᵀ", "langle": "⟨", "rangle": "⟩", "lfloor": "⌊", "rfloor": "⌋", "lceil": "⌈", "rceil": "⌉", "ell": "ℓ",
    "infty": "∞", "odot": "⊙", "circ": "∘", "nabla": "∇", "partial": "∂", "mid": "|", "vert": "|", "lVert": "‖", "rVert": "‖",
    "Vert": "‖", "ldots": "…", "dots": "…", "cdots": "…", "cup": "∪", "cap": "∩", "setminus": "∖", "forall": "∀", "gets": "←",
    "succ": "≻", "prec": "≺", "wedge": "∧", "vee": "∨", "neg": "¬", "star": "*", "ast": "*", "prime": "′", "mathbb": "",
    "mathbf": "", "mathcal": "", "mathrm": "", "mathit": "", "text": "", "operatorname": "", "textstyle": "",
    "displaystyle": "", "left": "", "right": "", "big": "", "Big": "", "bigl": "", "bigr": "", "Bigl": "", "Bigr": "",
    "quad": "  ", "qquad": "   ", "ni": "∋", "Rightarrow": "⇒",
}  # fmt: skip
"""Other commands are their own names: ``log``, ``min``, ``exp``."""
APART = frozenset({
    "cdot", "times", "leftarrow", "rightarrow", "to", "mapsto", "in", "notin", "ge", "geq", "le", "leq", "ne", "neq", "approx",
    "propto", "ni", "Rightarrow", "sim", "pm", "mid", "cup", "cap", "setminus", "gets", "succ", "prec", "wedge", "vee",
    "odot", "circ",
})  # fmt: skip
"""Stand between blanks."""
ACCENTS = {"bar": "\u0304", "hat": "\u0302", "tilde": "\u0303", "overline": "\u0304", "dot": "\u0307"}
GROUP = r"\{([^{}]*)\}"


def plain_math(text: str) -> str:
    """A text in which formulas stand, with Greek letters, bars and fractions as single-line text."""
    text = text.replace(r"\{", "\x01").replace(r"\}", "\x02").replace(r"\|", "‖")
    text = re.sub(r"\\[,;:! ]", " ", text)
    before = None
    while before != text:  # from the innermost braces outwards
        before = text
        text = re.sub(rf"\\[dt]?frac\s*{GROUP}\s*{GROUP}", lambda found: f"{_closed(found[1])}/{_closed(found[2])}", text)
        text = re.sub(rf"\\sqrt\s*{GROUP}", lambda found: f"√{_closed(found[1])}", text)
        text = re.sub(rf"\\({'|'.join(ACCENTS)})(?![A-Za-z])\s*(?:{GROUP}|(\\[A-Za-z]+|\w))", _accented, text)
        text = re.sub(rf"(?<=[A-Za-z])(?=\\(?:mathrm|text|operatorname)\s*{GROUP})", " ", text)  # \quad\text{and} are two words
        text = re.sub(rf"\\(?:mathrm|mathbb|mathbf|mathcal|mathit|text|operatorname)\s*{GROUP}", r"\1", text)
        text = re.sub(rf"([_^])\s*{GROUP}", lambda found: found[1] + _closed(found[2]), text)
        text = re.sub(rf"(?<![A-Za-z}}]){GROUP}", r"\1", text)
    text = re.sub(r"\\[dt]?frac\s*(\w)\s*(\w)", r"\1/\2", text)
    text = re.sub(r"\\([A-Za-z]+)( ?)", _symbol, text)
    text = text.replace("{", "").replace("}", "").replace("\\", "")
    return text.replace("\x01", "{").replace("\x02", "}")


def _closed(inner: str) -> str:
    """In brackets unless it is one thing anyway."""
    inner = inner.strip()
    return inner if re.fullmatch(r"\\?[\w.]+|\\[A-Za-z]+", inner) else f"({inner})"


def _accented(found: re.Match[str]) -> str:
    inner = (found[2] if found[2] is not None else found[3]).strip()
    name = inner.removeprefix("\\")
    letter = SYMBOLS.get(name, name) if inner.startswith("\\") else inner
    return letter[:1] + ACCENTS[found[1]] + letter[1:] if letter else ""


def _symbol(found: re.Match[str]) -> str:
    """A command as text, apart from what stands beside it where that would run into it."""
    name, text = found[1], SYMBOLS.get(found[1], found[1])
    before, after = found.string[: found.start()][-1:], found.string[found.end() :][:1]
    if name in APART:
        return f" {text} "
    if name in SYMBOLS and name not in ("sum", "prod"):
        return text + found[2]
    front = " " if before.isalnum() or (before and before in ")]\u0304\u0302\u0303") else ""
    return front + text + (" " if found[2] or after == "\\" or after.isalnum() else "")
