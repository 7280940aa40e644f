"""From what a user writes for ``--model`` to a module, or to the weights of a checkpoint."""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqdata.errors import ConfigError, did_you_mean, must_be

if TYPE_CHECKING:
    from torch import Tensor, nn

_WHERE = "doctor: `model`"
_FORM = re.compile(r"(?P<module>[\w.]+):(?P<name>[\w.]+)(?P<call>\(.*\))?", re.DOTALL)
_FILES = (".ckpt", ".pt", ".pth")
_EXAMPLE = "seqdata_models:StatefulLM(256, hidden=512, layers=4)"


def load_model(text: str) -> nn.Module | dict[str, Tensor]:
    """Return the module that a text names, or the tensors of a checkpoint.

    Args:
        text: ``package.module:Class``, a function or a module object in its place, with arguments
            as ``package.module:Class(256, layers=2)``, which are literals; or the path of a
            checkpoint (``.ckpt``, ``.pt``, ``.pth``), of which only weights are read.

    Raises:
        ConfigError: If the text has another form, or names nothing that is a module.
    """
    if text.endswith(_FILES):
        return _load_weights(Path(text))
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise ConfigError(
            must_be(
                _WHERE, f"'package.module:Class(arguments)' or a checkpoint {'/'.join(_FILES)}",
                repr(text), f"Write e.g. --model '{_EXAMPLE}'",
            )
        )  # fmt: skip
    value = _import_object(found["module"], found["name"])
    return _make_module(value, found["name"], found["call"])


def _import_object(module: str, name: str) -> Any:
    if os.getcwd() not in sys.path:  # as `python` does for a script there
        sys.path.append(os.getcwd())
    try:
        value: Any = importlib.import_module(module)
    except Exception as error:  # code of a user may raise anything
        raise ConfigError(
            must_be(
                _WHERE, "importable", f"not: {module!r} ({type(error).__name__}: {error})",
                "Run this where it can be imported, or put its folder on PYTHONPATH",
            )
        ) from error  # fmt: skip
    for part in name.split("."):
        if not hasattr(value, part):
            hint = did_you_mean(
                part, [member for member in dir(value) if not member.startswith("_")]
            )
            raise ConfigError(
                must_be(_WHERE, f"a name of {module!r}", repr(name), hint.rstrip("?") and hint)
            )
        value = getattr(value, part)
    return value


def _make_module(value: Any, name: str, call: str | None) -> nn.Module:
    from torch import nn

    if isinstance(value, nn.Module) and call is None:
        return value
    if not callable(value):
        raise ConfigError(must_be(_WHERE, "a class, function or module", repr(value)[:100]))
    positional, keywords = _parse_arguments(call or "()")
    try:
        module = value(*positional, **keywords)
    except Exception as error:  # code of a user may raise anything
        raise ConfigError(
            must_be(
                _WHERE, "called with its arguments",
                f"called as {name}{call or '()'} ({type(error).__name__}: {error})",
                f"Write them as in --model '{_EXAMPLE}', or name a function without any",
            )
        ) from error  # fmt: skip
    if not isinstance(module, nn.Module):
        raise ConfigError(must_be(_WHERE, "a torch.nn.Module", f"a {type(module).__name__}"))
    return module


def _parse_arguments(call: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the literals of ``(256, layers=2)``; nothing is evaluated."""
    try:
        parsed: Any = ast.parse(f"f{call}", mode="eval").body
        keywords = {keyword.arg: ast.literal_eval(keyword.value) for keyword in parsed.keywords}
        return [ast.literal_eval(argument) for argument in parsed.args], keywords
    except (SyntaxError, ValueError, AttributeError) as error:
        raise ConfigError(
            must_be(
                f"{_WHERE}: the arguments", "numbers, strings and other literals", call,
                "Name a function without arguments that makes the model",
            )
        ) from error  # fmt: skip


def _load_weights(path: Path) -> dict[str, Tensor]:
    import torch

    if not path.is_file():
        raise ConfigError(must_be(_WHERE, "a file that exists", repr(str(path))))
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch raises what pickle, zipfile and it itself have
        raise ConfigError(
            must_be(
                f"{_WHERE}: {path}", "a checkpoint of tensors",
                f"one that torch.load(weights_only=True) refuses ({type(error).__name__})",
                "Name the class instead: --model 'package.module:Class(arguments)'",
            )
        ) from error  # fmt: skip
    weights = content.get("state_dict", content) if isinstance(content, dict) else {}
    return {name: value for name, value in weights.items() if isinstance(value, torch.Tensor)}
