"""Formulas of the site as MathML, made when it is built: TeX of the pages and docstrings, and the one-line formulas of methods.

A formula that cannot be set is an error of the build, not a red word on a page.
"""

from __future__ import annotations

import re

import latex2mathml.converter
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from upslope.board.catalogue import formula_lines

WORDS = {r"\arg\max": r"\operatorname{argmax}", r"\arg\min": r"\operatorname{argmin}", r"\arg": r"\operatorname{arg}"}
"""What the library does not know, in words that it does."""


def tex_mathml(tex: str, block: bool) -> str:
    """TeX as a ``<math>`` element.

    Raises:
        ExtensionError: if a command is not known, or braces do not close.
    """
    said = tex
    for word, instead in WORDS.items():
        said = said.replace(word, instead)
    said = re.sub(r"\\mathrm\{([A-Za-z]{2,})\}", r"\\operatorname{\1}", said)  # one word, not letters side by side
    bare = re.sub(r"\\[{}]", "", said)
    if bare.count("{") != bare.count("}"):
        raise ExtensionError(f"the braces of this formula do not close: {tex}")
    try:
        made = latex2mathml.converter.convert(said, display="block" if block else "inline")
    except Exception as problem:
        raise ExtensionError(f"this formula cannot be set ({type(problem).__name__}): {tex}") from problem
    if unknown := re.search(r"\\[A-Za-z]+", made):
        raise ExtensionError(f"{unknown[0]} is not known in this formula: {tex}")
    return made


def visit_inline(translator, node: nodes.math) -> None:
    translator.body.append(tex_mathml(node.astext(), block=False))
    raise nodes.SkipNode


def visit_block(translator, node: nodes.math_block) -> None:
    label = "Formula: " + " ".join(node.astext().split()).replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    made = tex_mathml(node.astext(), block=True)
    translator.body.append(f'<div class="formula" tabindex="0" role="region" aria-label="{label}">{made}</div>')
    raise nodes.SkipNode


def set_method_formulas(app: Sphinx, doctree: nodes.document) -> None:
    """On a method's page, the formula that ``upslope show`` prints as text is set."""
    if not app.env.current_document.docname.startswith("methods/"):
        return
    for block in list(doctree.findall(nodes.literal_block)):
        if block.get("language") != "text":
            continue
        made = formula_lines(block.astext())
        if not made:
            raise ExtensionError(f"the formula of {app.env.current_document.docname} cannot be set: {block.astext()}")
        body = "".join(made)
        html = f'<div class="formula" tabindex="0" role="region" aria-label="Formula of the method">{body}</div>'
        block.replace_self(nodes.raw("", html, format="html"))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    app.connect("doctree-read", set_method_formulas)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
