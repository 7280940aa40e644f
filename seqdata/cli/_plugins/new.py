"""A new package of a plugin: its names, and its files."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from pathlib import Path
from string import Template

from seqdata.cli._plugins.templates import KINDS, PYPROJECT, README, WORKFLOW
from seqdata.detect import is_core_form
from seqdata.errors import ConfigError, must_be
from seqdata.hookspecs import SEQDATA_API
from seqdata.host import core_version, default_host
from seqdata.plugin_source import NAME_PATTERN, normalize_name
from seqdata.storage.local_files import open_atomically

_HOST_KINDS = {"format": "backend", "store": "backend", "transform": ""}  # others: the same


def write_plugin(name: str, kind: str, folder: Path | None) -> list[Path]:
    """Write the package of a new plugin; return its files, none of which existed before.

    Args:
        name: Name of the plugin, by which it is used.
        kind: One of ``KINDS``.
        folder: Folder of the package; None: ``seqdata-NAME`` in the current one.

    Raises:
        ConfigError: If the name is invalid or taken, a file is there already, or the folder cannot
            be a folder.
    """
    names = make_names(name, kind)
    root = Path(names["distribution"]) if folder is None else folder
    texts = {root / path: text for path, text in make_files(names, kind).items()}
    for path in texts:
        if os.path.lexists(path):
            raise ConfigError(
                f"plugins new: {str(path)!r} must not exist, but does, and is never overwritten. "
                "Choose another folder."
            )
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with open_atomically(path) as file:
                file.write(text.encode())
    except (NotADirectoryError, FileExistsError) as error:
        raise ConfigError(
            must_be(
                f"plugins new: {str(root)!r}", "a folder", "a file, or below one", "Choose another"
            )
        ) from error
    return list(texts)


def make_names(name: str, kind: str) -> dict[str, str]:
    """Return the replacement of each placeholder of the templates.

    Raises:
        ConfigError: If the name is invalid or taken.
    """
    if not NAME_PATTERN.fullmatch(name) or not name[-1].isalnum():
        raise ConfigError(
            must_be(
                "plugins new: the name",
                f"of the form {NAME_PATTERN.pattern}, with a letter or digit at its end",
                repr(name),
                "Choose another name",
            )
        )
    entry = normalize_name(name)
    module, suffix = f"seqdata_{entry.replace('-', '_')}", f".{entry}"
    _refuse_taken(name, kind, module, suffix)
    camel = "".join(part.capitalize() for part in re.split("[-_.]+", name))
    found = re.match(r"(\d+)\.(\d+)", core_version())
    template = KINDS[kind]
    names = {
        "name": name, "entry": entry, "module": module, "suffix": suffix, "camel": camel,
        "distribution": f"seqdata-{entry}", "level": str(SEQDATA_API),
        "core": f">={found[0]},<{found[1]}.{int(found[2]) + 1}" if found else "",
    }  # fmt: skip
    for word, text in (
        ("cls", template.cls), ("about", template.about), ("points", template.points),
        ("use", template.use),
    ):  # fmt: skip
        names[word] = Template(text).substitute(names)
    return names


def make_files(names: Mapping[str, str], kind: str) -> dict[str, str]:
    """Return path -> text of the files of a package."""
    template, module = KINDS[kind], names["module"]
    texts = {
        "pyproject.toml": PYPROJECT,
        "README.md": README,
        f"{module}.py": template.module,
        f"tests/test_{module}.py": template.tests,
        ".github/workflows/test.yml": WORKFLOW,
    }
    return {path: Template(text).substitute(names) for path, text in texts.items()}


def _refuse_taken(name: str, kind: str, module: str, suffix: str) -> None:
    if importlib.util.find_spec(module) is not None:
        raise ConfigError(
            f"plugins new: the name {name!r} must be free, but there is a module {module!r} "
            "already. Choose another name"
        )
    host, offered = default_host(), _HOST_KINDS.get(kind, kind)
    if offered and normalize_name(name) in map(normalize_name, host.names(offered)):
        raise ConfigError(
            f"plugins new: the name {name!r} must be free, but names a {offered} of seqdata or a "
            "plugin. Choose another name"
        )
    claimed = {claim.suffix: claim.label for claim in host.claims()}
    if offered == "backend" and (is_core_form(f"a{suffix}") or suffix in claimed):
        raise ConfigError(
            f"plugins new: the suffix {suffix!r} of the files must be free, but is opened by "
            f"{claimed.get(suffix, 'seqdata itself')}. Choose another name"
        )
