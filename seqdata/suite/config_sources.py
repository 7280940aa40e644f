"""The files and options of a command line: read once more, to say what is wrong with them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from seqdata.errors import ConfigError, did_you_mean
from seqdata.suite.config_keys import ConfigKeys, Source

_CONFIG = "--config"
_SUFFIXES = (".yaml", ".yml")
Load = Callable[[str], Any]


class ConfigStructureError(yaml.MarkedYAMLError):  # type: ignore[misc]  # it has no types
    """A dict of a YAML file with a key twice, or one that holds itself."""


def check_structure(text: str) -> None:
    """Check what YAML readers let pass: no dict has a key twice, none holds itself.

    Raises:
        ConfigStructureError: If one does.
        YAMLError: If the text is not YAML.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    node = yaml.compose(text, Loader=loader)
    if node is not None:
        _look_at(node, "", {})


def _look_at(node: yaml.Node, path: str, seen: dict[int, bool]) -> None:
    """Look for repeated keys in a node.

    Args:
        node: The node.
        path: Its key.
        seen: Nodes that were looked at -> whether all in them was.
    """
    if not seen.get(id(node), True):
        raise ConfigStructureError(
            problem=f"{path}: must not hold itself, but has an alias of a dict or list around it",
            problem_mark=node.start_mark,
        )
    if id(node) in seen:
        return
    seen[id(node)] = False
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _look_at(item, f"{path}[{index}]", seen)
    elif isinstance(node, yaml.MappingNode):
        _look_at_keys(node, path, seen)
    seen[id(node)] = True


def _look_at_keys(node: yaml.MappingNode, path: str, seen: dict[int, bool]) -> None:
    lines: dict[Any, int] = {}
    for key, value in node.value:
        inner = f"{path}.{key.value}" if path else str(key.value)
        is_plain = isinstance(key, yaml.ScalarNode) and key.value != "<<"  # which merges dicts
        if is_plain and key.value in lines:
            line = lines[key.value] + 1
            raise ConfigStructureError(
                problem=f"{inner}: must be given once, but is in line {line}, too. Remove one",
                problem_mark=key.start_mark,
            )
        if is_plain:
            lines[key.value] = key.start_mark.line
        _look_at(value, inner, seen)


def read_mistake(arguments: Sequence[str], make_keys: Callable[..., ConfigKeys], load: Load) -> str:
    """Return the message about what is wrong with a command line; empty if nothing is found.

    Args:
        arguments: The arguments after the subcommand.
        make_keys: Makes the keys that a configuration may have, with a reader of files.
        load: Returns the contents of a YAML text.

    Raises:
        ConfigError: If a file cannot be read, or is not YAML.
    """
    keys, files = make_keys(read=functools.partial(_read_inner, load)), list[str]()
    for name, value in _iter_options(arguments):
        if name == _CONFIG:
            if value is None:
                return f"{_CONFIG}: must have a file, but has none"
            files.append(_CONFIG if value.lstrip().startswith("{") else value)
        found = _find_mistake(keys, name, value, load)
        if found:
            return found
    return keys.find_missing(" ".join(files) or f"seqdata fit without {_CONFIG} FILE")


def _find_mistake(keys: ConfigKeys, name: str, value: str | None, load: Load) -> str:
    """Return the message about an option, or the file that it names."""
    if not name.startswith("-"):
        if Path(name).is_file():
            return f"seqdata fit: a file must come after {_CONFIG}: seqdata fit {_CONFIG} {name}"
        return f"seqdata fit: must have options (--KEY VALUE), but has {name!r}"
    if name == _CONFIG:
        return keys.find_mistake(read_config(str(value), load))
    if name in ("--help", "-h") or name.startswith("--print_config"):
        return ""
    key = name.lstrip("-").removesuffix("+")
    if value is None:
        unknown = keys.find_mistake(Source(name, None, key, text=""))
        return unknown or f"{name}: must have a value, but has none"
    try:
        values = load(value) if value else value
    except yaml.YAMLError:
        values = value
    return keys.find_mistake(Source(name, values, key, value))


def read_config(name: str, load: Load) -> Source:
    """Return what is in a configuration file, or in YAML that stands in place of its name.

    Raises:
        ConfigError: If it cannot be read, or is not YAML with keys.
    """
    if name.lstrip().startswith("{"):  # YAML
        return Source(_CONFIG, load(name))
    return _read_file(name, Path(name), load, "")


def _read_inner(load: Load, name: str, source: Source, key: str) -> Source:
    """Return what is in a file that stands in place of the value of a key.

    Args:
        load: Returns the contents of a YAML text.
        name: The file, relative to the folder of the file that names it.
        source: The part that names it.
        key: The key.

    Raises:
        ConfigError: If it cannot be read, or is not YAML with keys.
    """
    path = Path(source.name).parent / name if source.text is None else Path(name)
    return _read_file(str(path), path, load, key)


def _read_file(name: str, path: Path, load: Load, key: str) -> Source:
    start = f"{name}: must be a YAML file"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        hint = did_you_mean(path.name, _list_files(path.parent))
        raise ConfigError(f"{start}, but does not exist{f'; {hint}' if hint else ''}") from error
    except OSError as error:
        raise ConfigError(f"{start}, but cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(
            f"{start} in UTF-8, but line {line} is not UTF-8. Save it as UTF-8"
        ) from error
    try:
        values = load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: {describe_yaml_error(error)}") from error
    if not isinstance(values, dict):
        is_such = "is empty" if values is None else f"is {str(values)[:60]!r}"
        raise ConfigError(f"{start} with keys (data, model, trainer), but {is_such}")
    return Source(name, values, key)


def _list_files(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(each.name for each in folder.iterdir() if each.suffix in _SUFFIXES)


def describe_yaml_error(error: yaml.YAMLError) -> str:
    """Return the text about YAML that cannot be read, with its line."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"must be YAML, but {' '.join(str(error).split())}"
    mark, problem = error.problem_mark, str(error.problem)
    where = f"line {mark.line + 1}"
    if isinstance(error, ConfigStructureError):
        return f"{where}: {problem}"
    if "tab" in problem or "'\\t'" in problem:
        return f"{where}: must be indented by spaces, but has a tab. Replace it by spaces"
    first = error.context_mark
    begun = f", {error.context} of line {first.line + 1}" if error.context and first else ""
    text = f"must be YAML, but {problem.removeprefix('but ')}{begun}"
    return f"{where}, column {mark.column + 1}: {text}"


def _iter_options(arguments: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield the options of a command line with their values, and other arguments with None.

    The name of ``-c``, also without a blank before its file, and of abbreviations is ``--config``.
    """
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        position += 1
        name, separator, value = argument.partition("=")
        if argument.startswith("-c") and argument != "-c" and not Path(argument[2:]).is_file():
            raise ConfigError(f"{argument}: must be -c FILE or {_CONFIG} FILE")
        if argument.startswith("-c") and argument != "-c":
            yield _CONFIG, argument[2:].removeprefix("=")
            continue
        if name == "-c" or (name.startswith("--c") and _CONFIG.startswith(name)):
            name = _CONFIG
        follows = arguments[position] if position < len(arguments) else "--"
        takes_value = name.startswith("-") and name not in ("--help", "-h", "--print_config")
        if separator and name.startswith("-"):
            yield name, value
        elif takes_value and not _is_option(follows):
            position += 1
            yield name, follows
        else:
            yield name, None


def _is_option(argument: str) -> bool:
    """Return whether an argument is an option; a negative number is none."""
    is_number = argument[1:].replace(".", "", 1).replace("e", "", 1).isdigit()
    return argument.startswith("-") and not is_number
