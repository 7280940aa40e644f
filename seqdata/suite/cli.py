"""LightningCLI for the DataModules of seqdata: short names, and models with sizes of the data."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import yaml
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI

from seqdata.builtin import COLLATORS
from seqdata.errors import ConfigError, PluginError, SeqDataError
from seqdata.host import default_host
from seqdata.suite.config_keys import ConfigKeys
from seqdata.suite.config_sources import check_structure, read_mistake
from seqdata.suite.config_types import list_types

CLASSES = "seqdata.classes"
"""Entry points of classes that have a short name in YAML: DataModules, models, transforms."""
_MODELS = "seqdata_models"  # the reference models, if they are installed
_POLICIES = ("batching", "eval_batching")  # their names are known to the parser
_OWN = (
    "seqdata.lightning.datamodule", "seqdata.suite.forecast", "seqdata.suite.events",
    "seqdata.suite.long_sequences", "seqdata.suite.speech", "seqdata.suite.text",
)  # fmt: skip


_DETAIL = re.compile(
    r"Does not validate against|Subtypes:|Errors:|Given value|Expected a <class 'NoneType'>"
)  # lines of the parser's message


class DeferredModel:
    """Placeholder for a model that is made once its data is known.

    Args:
        model: Class of the model, which has ``for_data``.
        arguments: Arguments of the configuration; ``for_data`` gets the ones that it takes.
    """

    def __init__(self, model: Any, arguments: dict[str, Any]) -> None:
        self._model = model
        self._arguments = arguments

    def make(self, data: Any) -> LightningModule:
        """Return the model with the sizes of a DataModule's data."""
        taken = inspect.signature(self._model.for_data).parameters
        arguments = {name: each for name, each in self._arguments.items() if name in taken}
        made: LightningModule = self._model.for_data(data, **arguments)
        return made


class SeqdataCLI(LightningCLI):
    """LightningCLI whose models may take their sizes from the data, by ``for_data``."""

    def add_arguments_to_parser(self, parser: Any) -> None:
        """Let the parser make placeholders of models with ``for_data``."""
        parser.add_instantiator(_instantiate_model, LightningModule, subclasses=True)

    def parse_arguments(self, parser: Any, args: Any) -> None:
        """Parse the arguments of the command line, and the configuration files that they name.

        Raises:
            ConfigError: If an argument is unknown or invalid; names a misspelt key of a file.
        """
        jsonargparse: Any = importlib.import_module("jsonargparse")
        self._arguments = list(sys.argv[1:] if args is None else args)
        try:
            super().parse_arguments(parser, args)
        except (jsonargparse.ArgumentError, UnicodeDecodeError) as error:
            text = self._find_mistake() or f"seqdata fit: {shorten_error(error)}"
            raise ConfigError(text) from error

    def _find_mistake(self) -> str:
        """Return the message about the first mistake in the arguments; empty if none is found."""
        jsonargparse: Any = importlib.import_module("jsonargparse")
        subcommand, *given = self._arguments
        known = self._subcommand_parsers[subcommand]
        make_keys = functools.partial(
            ConfigKeys, known.get_defaults().keys(), list_names(), list_types(known)
        )
        return read_mistake(given, make_keys, jsonargparse.get_loader("yaml"))

    def instantiate_classes(self) -> None:
        """Make the data, the model and the Trainer.

        Raises:
            ConfigError: If the section of the Trainer is not a mapping or has an invalid value.
            SeqDataError: If an argument of a class is invalid.
        """
        trainer = self._get(self.config, "trainer")
        if not hasattr(trainer, "keys"):
            text = f"seqdata fit: trainer: must have keys, but is {trainer!r}"
            raise ConfigError(self._find_mistake() or text)
        try:
            self.config_init = self.parser.instantiate_classes(self.config)
        except ValueError as error:  # the parser's, about the error of a class in others
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, SeqDataError):
                cause = cause.__cause__
            if cause is None:
                raise
            raise cause from error
        self.datamodule = self._get(self.config_init, "data")
        model = self._get(self.config_init, "model")
        self.model = model.make(self.datamodule) if isinstance(model, DeferredModel) else model
        self._add_configure_optimizers_method_to_model(self.subcommand)
        try:
            self.trainer = self.instantiate_trainer()
        except SeqDataError:
            raise
        except (ValueError, TypeError, MisconfigurationException) as error:
            raise ConfigError(f"seqdata fit: trainer: {error}") from error


def shorten_error(error: Exception) -> str:
    """Return the parser's message about a value in one line, without the details of each type."""
    lines = [line.strip().removeprefix("- ") for line in str(error).split("\n")]
    return " ".join(line for line in lines if line and not _DETAIL.match(line))


def _instantiate_model(model: Any, *arguments: Any, **named: Any) -> Any:
    if hasattr(model, "for_data") and not arguments:
        return DeferredModel(model, named)
    return model(*arguments, **named)


def expand_names(value: Any, names: Mapping[str, str]) -> Any:
    """Return a configuration with import paths in place of short names, except for policies.

    Args:
        value: Scalars, lists and dicts.
        names: Short name of a ``class_path`` -> import path.
    """
    if isinstance(value, list):
        return [expand_names(item, names) for item in value]
    if not isinstance(value, dict):
        return value
    expanded = {
        key: item if key in _POLICIES else expand_names(item, names) for key, item in value.items()
    }
    path = expanded.get("class_path")
    if isinstance(path, str) and path in names:
        expanded["class_path"] = names[path]
    return expanded


def list_names() -> dict[str, str]:
    """Return short name -> import path, of collators and of the classes of installed packages."""
    host, found = default_host(), {"Remote": "seqdata.Remote"}
    for name in host.names("collator"):
        factory = None if name in COLLATORS else host.find("collator", name)
        if name in COLLATORS:
            path = COLLATORS[name]
            found[name] = found[path.rpartition(":")[2]] = path.replace(":", ".")
        elif inspect.isclass(factory):
            found[name] = f"{factory.__module__}.{factory.__qualname__}"
    for point in find_classes():
        found[point.name] = point.value.replace(":", ".")
    return found


def find_classes() -> list[Any]:
    """Return the entry points of classes that have short names."""
    return list(metadata.entry_points(group=CLASSES))


def import_classes() -> None:
    """Import the classes that have short names, so that the parser knows them.

    Raises:
        PluginError: If a package's class cannot be imported.
    """
    for name in _OWN:
        importlib.import_module(name)
    if importlib.util.find_spec(_MODELS) is not None:
        importlib.import_module(_MODELS)
    for point in find_classes():
        try:
            point.load()
        except Exception as error:  # the code of a package may raise anything
            raise PluginError(
                f"seqdata: the class {point.name!r} ({point.value}) cannot be imported "
                f"({type(error).__name__}: {error}). Repair, update or uninstall its package"
            ) from error


def run_cli(arguments: Sequence[str]) -> SeqdataCLI:
    """Run ``fit``, ``validate``, ``test`` or ``predict`` with arguments of the command line.

    Args:
        arguments: The subcommand and its arguments.

    Raises:
        SeqDataError: If jsonargparse is not installed, or as of the classes of ``SeqdataCLI``.
    """
    if importlib.util.find_spec("jsonargparse") is None:
        raise ConfigError(
            "seqdata fit: jsonargparse is not installed. pip install 'jsonargparse[signatures]'"
        )
    import_classes()
    jsonargparse: Any = importlib.import_module("jsonargparse")
    load, names = jsonargparse.get_loader("yaml"), list_names()

    def load_checked(text: str, **more: Any) -> Any:
        check_structure(text)
        return expand_names(load(text, **more), names)

    jsonargparse.set_loader("yaml", load_checked, (yaml.YAMLError,))
    is_own_command = sys.argv[1:] == list(arguments)
    return SeqdataCLI(
        LightningModule,
        LightningDataModule,
        subclass_mode_model=True,
        subclass_mode_data=True,
        save_config_kwargs={"overwrite": True},
        parser_kwargs={"exit_on_error": False},
        args=None if is_own_command else list(arguments),
    )
