"""The site: ``make docs`` builds it in ``site/``. Nothing in it is loaded from elsewhere."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import api_groups  # noqa: E402
import seqdata  # noqa: E402

project = "seqdata"
copyright = "the seqdata authors"
version = release = seqdata.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_design",
    "sphinx_copybutton",
    "sphinx_codeautolink",
    "api_pages",
    "search_words",
]
exclude_patterns = [
    "gallery",
    "_ext",
    "**/*.ipynb",
    "sg_execution_times.rst",
    "examples/gallery/sg_execution_times.rst",
]
suppress_warnings = [
    "config.cache",
    "codeautolink.match_name",  # sphinx_gallery has linked it already
    "codeautolink.match_block",  # an example whose flags of doctest are not shown
]
nitpicky = False

myst_enable_extensions = [
    "colon_fence",
    "attrs_block",
    "attrs_inline",
    "deflist",
]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_type_aliases = {name: name for name in api_groups.ALIASES}
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 79
python_display_short_literal_types = True
add_module_names = False
toc_object_entries_show_parents = "hide"
viewcode_line_numbers = True

codeautolink_autodoc_inject = False
codeautolink_concat_default = True
codeautolink_search_css_classes = []
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

HAS_GALLERY = any((Path(__file__).parent / "gallery").glob("plot_*.py"))
if HAS_GALLERY:
    extensions.append("sphinx_gallery.gen_gallery")
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "examples/gallery",
    "filename_pattern": r"[\\/]plot_",
    "doc_module": ("seqdata", "seqdata_models"),
    "abort_on_example_error": True,
    "show_memory": False,
    "min_reported_time": 10_000,
    "remove_config_comments": True,
    "within_subsection_order": "gallery_order.ReaderOrder",
}

html_theme = "pydata_sphinx_theme"
html_title = "seqdata"
html_static_path = ["_static"]
html_css_files = ["seqdata.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "seqdata"},
    "show_prev_next": True,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}


def setup(app):
    """Leave the gallery out of the contents where there is none; write llms.txt."""
    if not HAS_GALLERY:
        app.connect("source-read", drop_gallery)
    app.connect("build-finished", write_llms)


def write_llms(app, error):
    """Write llms.txt at the root of the site; its links lead to the pages of the site."""
    if error is None and app.builder.format == "html":
        text = (Path(app.srcdir) / "llms.txt").read_text("utf-8")
        pages = re.sub(r"\]\(([^)]+)\.md\)", r"](\1.html)", text)
        (Path(app.outdir) / "llms.txt").write_text(pages, "utf-8")


def drop_gallery(_app, page, source):
    """Remove the contents of the page of examples."""
    if page == "examples/index":
        source[0] = source[0].partition("```{toctree}")[0]
