"""One page per public object, written when the site is built; links from its names to its page.

``GROUPS`` of ``api_groups.py`` says which objects there are.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

from api_groups import ALIASES, ATTRIBUTES, GROUPS, Group
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.nodes import make_refnode

FOLDER = Path("api") / "generated"
ERRORS = "guides/trouble/errors"  # the page that explains each error


def find(name: str) -> Any:
    """Return the object of a full name."""
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def summary(name: str) -> str:
    """Return the first sentence of the docstring of an object, in reStructuredText."""
    text = ATTRIBUTES.get(name) or inspect.getdoc(find(name)) or ""
    return " ".join(text.partition("\n\n")[0].split())


def page(name: str) -> str:
    """Return the page of an object."""
    module, _, last = name.rpartition(".")
    value = find(name)
    lines = [last, "=" * len(last), "", f".. currentmodule:: {module}", ""]
    if name in ATTRIBUTES:
        lines += [f".. py:data:: {name}", "", f"   {ATTRIBUTES[name]}", ""]
    elif inspect.isclass(value):
        lines += [f".. autoclass:: {name}", "   :members:"]
        if issubclass(value, BaseException):
            lines += ["   :show-inheritance:"]
        lines += [""]
        if callable(getattr(value, "plan", None)) and "plan" not in vars(
            value
        ):
            lines += ["   .. automethod:: plan", ""]
        if issubclass(value, Exception | Warning) and module == "seqdata":
            anchor = value.__name__.lower()
            lines += [
                f"`Cause and remedy <../../{ERRORS}.html#{anchor}>`__",
                "",
            ]
    else:
        lines += [f".. autofunction:: {name}", ""]
    lines += [
        ".. rubric:: Pages that use it",
        "",
        f".. autolink-examples:: {name}",
        "   :collapse:",
    ]
    return "\n".join([*lines, ""])


def group_page(one: Group) -> str:
    """Return the page of a group: a table and a toctree."""
    lines = [one.title, "=" * len(one.title), "", one.intro, ""]
    lines += [".. list-table::", "   :widths: 30 70", ""]
    for name in one.names:
        lines += [f"   * - :py:obj:`~{name}`", f"     - {summary(name)}"]
    lines += ["", ".. toctree::", "   :hidden:", ""]
    return "\n".join([*lines, *(f"   {name}" for name in one.names), ""])


def types_page() -> str:
    """Return the page of type aliases."""
    title = "Type aliases"
    lines = [
        title,
        "=" * len(title),
        "",
        "Names that stand for a type in signatures.",
        "",
    ]
    for name, (stands_for, words) in ALIASES.items():
        lines += [
            f".. py:type:: {name}",
            f"   :canonical: {stands_for}",
            "",
            f"   {words}",
            "",
        ]
    return "\n".join(lines)


def write_pages(app: Sphinx) -> None:
    """Write the pages that changed, and remove those of objects that are gone."""
    folder = Path(app.srcdir) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    pages = {f"{name}.rst": page(name) for one in GROUPS for name in one.names}
    pages |= {f"{one.slug}.rst": group_page(one) for one in GROUPS} | {
        "types.rst": types_page()
    }
    for path in folder.glob("*.rst"):
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


def find_public(app: Sphinx) -> dict[str, str]:
    """Return the full names of where objects are defined, and their last parts -> public names."""
    if not hasattr(app, "_seqdata_public"):
        found: dict[str, str] = {}
        for name in (name for one in reversed(GROUPS) for name in one.names):
            value = find(name)
            defined = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
            found |= {defined: name, name.rpartition(".")[2]: name}
        app._seqdata_public = found  # type: ignore[attr-defined]
    return app._seqdata_public  # type: ignore[attr-defined, no-any-return]


def resolve(
    app: Sphinx, env: Any, node: Any, content: nodes.Element
) -> nodes.Element | None:
    """Resolve a reference to where an object is defined as one to its public name."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    domain, public = env.domains["py"], find_public(app)
    name = public.get(target) or public.get(target.rpartition(".")[2])
    if name is None and "." in target:  # a member
        owner, _, member = target.rpartition(".")
        owner = public.get(owner) or public.get(owner.rpartition(".")[2])
        name = f"{owner}.{member}" if owner else None
    if name is None or name not in domain.objects:
        return None
    found = domain.objects[name]
    from_page = node.get("refdoc", env.docname)
    return make_refnode(
        app.builder, from_page, found.docname, found.node_id, content, name
    )


TITLED = re.compile(r'^( *)```(\w+) +title="([^"]+)"', re.MULTILINE)
NOT_RUN = re.compile(r"^( *```\w+) no-run$", re.MULTILINE)


def read_page(_app: Sphinx, name: str, source: list[str]) -> None:
    """Caption blocks that are files with their name; what the tests skip is coloured alike.

    The contents of the API name its groups.
    """
    text = NOT_RUN.sub(r"\1", source[0])
    if name == "api/index":
        text = text.replace(
            "GROUPS", "\n".join(f"{FOLDER.name}/{one.slug}" for one in GROUPS)
        )
    source[0] = TITLED.sub(r"\1```{code-block} \2\n\1:caption: \3\n", text)


def mark_code(
    _app: Sphinx,
    _kind: str,
    _name: str,
    _value: Any,
    _options: Any,
    lines: list[str],
) -> None:
    """Mark an example without prompts as a block of code."""
    if "Examples:" not in lines:
        return
    begin = lines.index("Examples:") + 1
    end = next(
        (at for at in range(begin, len(lines)) if lines[at][:1].strip()),
        len(lines),
    )
    if not any(line.lstrip().startswith(">>>") for line in lines[begin:end]):
        code = [f"    {line}" for line in lines[begin:end]]
        lines[begin:end] = ["    .. code-block:: python", "", *code, ""]


STARS = re.compile(r"``.*?``|`[^`]*`|\\\*|\*\*|\*(?=\w)[^*]+(?<=\S)\*|\*")


def escape_stars(
    _app: Sphinx,
    _kind: str,
    _name: str,
    _value: Any,
    _options: Any,
    lines: list[str],
) -> None:
    """Escape a star that emphasizes nothing, such as that of ``(T, *shape)`` without quotes."""
    for number, line in enumerate(lines):
        if "*" in line and not line.lstrip().startswith(">>>"):
            lines[number] = STARS.sub(
                lambda found: "\\*" if found[0] == "*" else found[0], line
            )


BACK = re.compile(r"(generated/([\w.]+)\.html)#([\w.]+)")


def mend_back_links(
    _app: Sphinx,
    name: str,
    _template: str,
    context: dict[str, Any],
    _tree: Any,
) -> None:
    """Let pages of source code link to names as they are public, not as they are defined."""
    if name.startswith("_modules/"):
        context["body"] = BACK.sub(_name_anchor, context["body"])


def _name_anchor(found: re.Match[str]) -> str:
    link, public, anchor = found.groups()
    last = public.rpartition(".")[2]
    _, _, member = f"{anchor}.".partition(f".{last}.")
    return f"{link}#{f'{public}.{member}'.rstrip('.')}"


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("builder-inited", write_pages)
    app.connect("source-read", read_page)
    app.connect("missing-reference", resolve)
    app.connect("html-page-context", mend_back_links)
    app.connect(
        "autodoc-process-docstring", mark_code, priority=400
    )  # before napoleon
    app.connect("autodoc-process-docstring", escape_stars, priority=600)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
