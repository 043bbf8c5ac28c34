"""Settings of the site for Sphinx; `make_site.py` calls it."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from upslope import __version__  # noqa: E402

project = "upslope"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "formulas", "sources", "menu"]
root_doc = "index"
language = "en"
smartquotes = False  # pages quote code and messages as they are

myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = {"math"}
myst_heading_anchors = 4
myst_dmath_double_inline = False
myst_url_schemes = ["http", "https", "mailto", "source"]

toc_object_entries = False  # hundreds of names, of which no menu has room for one
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Fields", "params_style")]
python_display_short_literal_types = True
add_module_names = False

html_theme = "furo"
html_title = "upslope"
html_static_path = [str(HERE / "static")]
html_js_files = ["scrolling.js"]
html_css_files = ["colours.css", "site.css", "catalogue.css"]
html_favicon = str(HERE.parent.parent / "src" / "upslope" / "board" / "page" / "icon.svg")
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False
# The words around a hit are fetched, which no browser does for a file; the titles come with the index, which is a script.
html_show_search_summary = False
html_math_renderer = "mathml"
html_domain_indices = False
html_theme_options = {"navigation_with_keys": False, "top_of_page_buttons": []}
pygments_style = "a11y-light"
pygments_dark_style = "a11y-dark"
