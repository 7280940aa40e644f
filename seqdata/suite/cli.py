"""LightningCLI for the DataModules of seqdata: short names, and models with sizes of the data."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import yaml
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI

from seqdata.builtin import COLLATORS
from seqdata.errors import ConfigError, PluginError, SeqDataError
from seqdata.host import default_host
from seqdata.suite.config_keys import ConfigKeys, read_mistake

CLASSES = "seqdata.classes"
"""Entry points of classes that have a short name in YAML: DataModules, models, transforms."""
_MODELS = "seqdata_models"  # the reference models, if they are installed
_POLICIES = ("batching", "eval_batching")  # their names are known to the parser
_OWN = (
    "seqdata.lightning.datamodule", "seqdata.suite.forecast", "seqdata.suite.events",
    "seqdata.suite.long_sequences", "seqdata.suite.speech", "seqdata.suite.text",
)  # fmt: skip


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
        try:
            super().parse_arguments(parser, args)
        except jsonargparse.ArgumentError as error:
            given = sys.argv[1:] if args is None else args
            parsers = self._subcommand_parsers
            command = next((each for each in given if each in parsers), "fit")
            keys = ConfigKeys(parsers.get(command, parser).get_defaults().keys(), list_names())
            mistake = read_mistake(given, keys, jsonargparse.get_loader("yaml"))
            raise ConfigError(mistake or f"seqdata {command}: {error}") from error

    def instantiate_classes(self) -> None:
        """Make the data, the model and the Trainer.

        Raises:
            ConfigError: If the section of the Trainer is not a mapping.
            SeqDataError: If an argument of a class is invalid.
        """
        trainer = self._get(self.config, "trainer")
        if not hasattr(trainer, "keys"):
            raise ConfigError(
                f"seqdata {self.subcommand}: `trainer` must have keys, such as max_epochs, but is "
                f"{'empty' if trainer is None else repr(trainer)}. Add one, or leave it out"
            )
        try:
            self.config_init = self.parser.instantiate_classes(self.config)
        except ValueError as error:  # the parser's, about the error of a class
            if isinstance(error.__cause__, SeqDataError):
                raise error.__cause__ from error
            raise
        self.datamodule = self._get(self.config_init, "data")
        model = self._get(self.config_init, "model")
        self.model = model.make(self.datamodule) if isinstance(model, DeferredModel) else model
        self._add_configure_optimizers_method_to_model(self.subcommand)
        self.trainer = self.instantiate_trainer()


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
            f"seqdata {arguments[0]}: jsonargparse is not installed. "
            "pip install 'jsonargparse[signatures]'"
        )
    import_classes()
    jsonargparse: Any = importlib.import_module("jsonargparse")
    load, names = jsonargparse.get_loader("yaml"), list_names()
    jsonargparse.set_loader(
        "yaml", lambda text, **more: expand_names(load(text, **more), names), (yaml.YAMLError,)
    )
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
