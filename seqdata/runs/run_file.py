"""The run file: the settings of a fit, so that its batches can be replayed elsewhere.

``seqdata-run.yaml`` holds the arguments of the DataModule as a configuration file of LightningCLI
does, and in a block of comments a record of the fit. Both are plain YAML: nothing is imported until
a transform, collator or policy is needed. A run file is trusted like code.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, get_args

import yaml

from seqdata.errors import ConfigError, LimitError, must_be
from seqdata.runs.class_paths import (
    CLASS_PATH,
    INIT_ARGS,
    ArgumentReader,
    ArgumentWriter,
    NotReplayableError,
    import_object,
    is_call,
    make_call,
)
from seqdata.runs.locate_batch import FitGeometry
from seqdata.runs.locations import list_store_paths, location_from_plain, location_to_plain
from seqdata.runs.options import DataKind, DataOptions
from seqdata.runs.side_files import Arrays, pack_arrays
from seqdata.runs.source import OPENED_WITH, holds_url
from seqdata.storage.digest_trailer import add_digest, has_trailer, strip_digest
from seqdata.storage.local_files import write_atomically
from seqdata.storage.remote.options import Remote

_logger = logging.getLogger("seqdata.replay")
NAME = "seqdata-run.yaml"
VERSION = 2
MAX_VALUES = 50_000
"""Most values of a file: scalars, lists and mappings."""
MAX_DEPTH = 64
"""Deepest nesting of lists and mappings."""
_MAX_BYTES = 1 << 20  # most bytes of a run file
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BEGIN, _END = "# /// seqdata-run", "# ///"
_RECORD = re.compile(rf"^{_BEGIN}\n((?:# .*\n)*?){_END}$", re.MULTILINE)
_KINDS: tuple[DataKind, ...] = get_args(DataKind)
_IMPORTED = (
    "transform",
    "eval_transform",
    "collator",
    "as_batch",
)  # a function is written as its path
_HEADER = (
    "# Written by seqdata when a fit began. Make one of its batches again with\n"
    "#   seqdata replay {name} --epoch EPOCH --batch BATCH\n"
    "# LightningCLI takes its arguments: python train.py fit --config {name}\n"
    "# It names code that is then imported: trust it as you trust code.\n"
)
_ADDED = (
    "group", "order", "id", "backend", "remote", "split", "statistics", "where", "rename",
    "prepare", "missing", "rates", "axes", "whole", "as_batch", "padding",
    "sort_within_batch", "collate_fn",
)  # fmt: skip
"""Arguments that run files of earlier releases lack; they have their defaults."""
_LEFT_OUT = (
    "%s: does not have %s, which may be secret. Credentials are taken from the environment, such "
    "as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
)
_REPLAY_OVERRIDES = {"num_workers": 0, "prefetch": 0}
"""Arguments that differ in a replay: one batch needs neither workers nor threads."""


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """YAML dumper that writes no aliases."""

    def ignore_aliases(self, _data: Any) -> bool:
        """Return True: a value that occurs twice is written twice."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """The settings of a fit, as plain data.

    Attributes:
        geometry: Start and counts of the fit.
        data: Arguments of the DataModule.
        fingerprints: Kind -> fingerprint of the data of each loader.
        plan: Fingerprint of the plan of the first epoch.
        versions: Package -> version.
        trainer: Settings of the Trainer that decide which batches are trained.
        missing: Arguments that cannot be replayed from the file: ``argument: reason``.
        left_out: Options of ``remote`` that are not in the file, since they may be secret.
        roots: Folders that modules were imported from.
        script: Path of the program that trained, if it defines one of the arguments.
        side_files: Name -> content of the files next to the run file.
    """

    geometry: FitGeometry
    data: Mapping[str, Any]
    fingerprints: Mapping[str, list[str]]
    plan: str
    versions: Mapping[str, str]
    trainer: Mapping[str, Any]
    missing: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    roots: list[str] = field(default_factory=list)
    script: str | None = None
    side_files: Mapping[str, Arrays] = field(default_factory=dict)

    @classmethod
    def from_options(
        cls, options: DataOptions, geometry: FitGeometry, folder: Path, *,
        fingerprints: Mapping[str, list[str]], plan: str, versions: Mapping[str, str],
        trainer: Mapping[str, Any],
    ) -> Self:  # fmt: skip
        """Return the run file of a DataModule's options, for a folder."""
        writer = ArgumentWriter(folder / NAME)
        missing = list[str]()
        data = {
            option.name: _option_to_plain(
                option.name, getattr(options, option.name), str(option.type), writer, missing
            )
            for option in _list_options()
        }
        data["seed"] = geometry.seed
        return cls(
            geometry=geometry, data=data, fingerprints=fingerprints, plan=plan, versions=versions,
            trainer={name: _to_scalar(value) for name, value in trainer.items()}, missing=missing,
            left_out=writer.left_out, roots=writer.roots, script=writer.script,
            side_files=writer.arrays,
        )  # fmt: skip

    def write(self, path: Path) -> None:
        """Write the side files, then the file, each completely or not at all.

        Raises:
            OSError: If a file cannot be written; the side files are then removed.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        written: list[Path] = []
        try:
            for name, arrays in self.side_files.items():
                write_atomically(path.parent / name, pack_arrays(arrays, name))
                written.append(path.parent / name)
            write_atomically(path, self._dump(path.name))
        except OSError:
            for side_file in written:
                with suppress(OSError):
                    side_file.unlink()
            raise

    def _dump(self, name: str) -> bytes:
        """Return the content of the file, which names itself."""
        record = {
            "version": VERSION,
            "versions": dict(self.versions),
            "run": {**dataclasses.asdict(self.geometry), "plan": self.plan},
            "trainer": dict(self.trainer),
            "fingerprints": dict(self.fingerprints),
            "not_replayable": list(self.missing),
            "import_from": list(self.roots),
            "script": self.script,
        } | ({"left_out": list(self.left_out)} if self.left_out else {})
        block = "".join(f"# {line}\n" for line in _dump(record).splitlines())
        text = (
            f"{_HEADER.format(name=name)}{_dump({'data': dict(self.data)}, allow_unicode=True)}"
            f"{_BEGIN}\n{block}{_END}\n"
        )
        return add_digest(text.encode(), NAME)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file; nothing is imported, and no store is opened.

        Raises:
            ConfigError: If it cannot be read, is damaged, or is not a run file of this version.
            LimitError: If it has too many values, nests too deeply, or has aliases.
        """
        content, record = _load(path)
        try:
            run_values = dict(record["run"])
            plan = str(run_values.pop("plan"))
            mixture = run_values.pop("mixture", None)
            if not all(value is None or isinstance(value, int) for value in run_values.values()):
                raise TypeError(f"`run` must hold integers, but is {run_values!r:.200}")
            _check_counts(run_values)
            if not isinstance(mixture, str | None):
                raise TypeError(f"`mixture` must be a string, but is {mixture!r:.200}")
            script = record.get("script")
            return cls(
                geometry=FitGeometry(**run_values, mixture=mixture), plan=plan,
                data=_to_dict(content["data"]), fingerprints=_to_dict(record["fingerprints"]),
                versions=_to_dict(record["versions"]), trainer=_to_dict(record["trainer"]),
                missing=list(record["not_replayable"]), roots=list(record["import_from"]),
                left_out=list(record.get("left_out", ())),
                script=None if script is None else str(script),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{path}: is damaged ({type(error).__name__}: {error}). Restore it"
            ) from error

    def make_reader(self, path: Path) -> ArgumentReader:
        """Return the reader of the arguments of the file at a path."""
        return ArgumentReader(path.name, path.parent, self.roots, self.script)

    def get_missing_reason(self, argument: str) -> str | None:
        """Return the reason why an argument cannot be restored; None if it can."""
        reasons = (line.partition(": ") for line in self.missing)
        return next((reason for name, _, reason in reasons if name == argument), None)

    def list_missing(self, kind: DataKind, name: str | None = None) -> list[str]:
        """Return the reasons why batches of a kind cannot be replayed; empty if they can."""
        unused_arguments: set[str] = {
            "lengths",
            *(other_kind for other_kind in _KINDS if other_kind != kind),
        }
        if kind == "train":
            unused_arguments.add("eval_batching")
        missing = []
        for line in self.missing:
            argument, _, location_name = line.partition(":")[0].partition(".")
            is_asked = not location_name or location_name == name or argument == "train"
            if argument not in unused_arguments and is_asked:
                missing.append(line)
        return missing

    def get_fingerprint(self, kind: DataKind, name: str | None) -> str | None:
        """Return the fingerprint of a kind's data; None if the fit did not use it."""
        kind_fingerprints = list(self.fingerprints.get(kind, ()))
        position = list(self.get_names(kind)).index(name)
        return str(kind_fingerprints[position]) if position < len(kind_fingerprints) else None

    def get_names(self, kind: DataKind) -> list[str | None]:
        """Return the name of each location of a kind, in their order; None if it has no name."""
        names = [argument.partition(".")[2] or None for argument in self.list_locations(kind)]
        return names if kind != "train" else names[:1] and [None]

    def list_locations(self, kind: DataKind) -> dict[str, Any]:
        """Return the locations of a kind as plain data, by argument, such as ``val.english``."""
        argument = self.find_argument(kind)
        plain = self.data.get(argument)
        if plain is None:
            return {}
        named = plain.items() if _is_named(plain) else ()
        return {f"{argument}.{name}": part for name, part in named} or {argument: plain}

    def find_argument(self, kind: DataKind) -> DataKind:
        """Return the argument that has the locations of a kind: ``train`` for a part of a split."""
        split = self.data.get("split") or {}
        parts = ("predict", "test", "val") if kind == "predict" else (kind,)
        is_part = self.data.get(kind) is None and any(part in split for part in parts)
        return "train" if is_part else kind

    def list_store_paths(self, kind: DataKind) -> list[str]:
        """Return the paths of a kind's stores, in order."""
        return [
            path
            for argument, plain in self.list_locations(kind).items()
            if self.get_missing_reason(argument) is None
            for path in list_store_paths(plain)
        ]

    def get_plain(self, argument: str) -> Any:
        """Return an argument as plain data, in which a function is a call that imports it."""
        plain = self.data.get(argument)
        is_imported = argument in _IMPORTED and isinstance(plain, str) and "." in plain
        return make_call(import_object, path=plain) if is_imported else plain

    def make_options(
        self, path: Path, kind: DataKind, name: str | None, backend: str | None = None
    ) -> DataOptions:
        """Return the options of the DataModule with one location, of a kind and name.

        Args:
            path: Path of the file.
            kind: ``train``, ``val``, ``test`` or ``predict``.
            name: Name of the location, if there are several.
            backend: Name of the backend that opens it; None: detected from the location.

        Raises:
            ConfigError: If there is no such location, or a needed object could not be saved or
                cannot be imported.
            DataError: If the data is incomplete.
        """
        reader = self.make_reader(path)
        values: dict[str, Any] = dict.fromkeys(_KINDS)
        place = self.find_argument(kind)  # the argument that has the locations
        argument = place if name is None else f"{place}.{name}"
        location = _choose_location(self.data.get(place), place, name, path)
        if place == "train" and _is_named(location):
            values[place] = {  # the parts of a mixture
                part: self.open_location(plain, f"train.{part}", reader, backend)
                for part, plain in location.items()
            }
        else:
            store = self.open_location(location, argument, reader, backend)
            values[place] = store if name is None else {name: store}
        for option in _list_options():
            if option.name in values:
                continue
            if option.name not in self.data and option.name in _ADDED:
                continue
            if option.name not in self.data:
                raise ConfigError(
                    f"{path}: must have all arguments, but has no `data.{option.name}`. It was "
                    f"written by seqdata {self.versions.get('seqdata', 'unknown')}: replay it "
                    "with that release."
                )
            is_unused = option.name.startswith("eval_") and kind == "train"
            if option.name == "backend" and backend is not None:
                values["backend"] = backend if self.is_opened_later else None
            elif option.name == "remote" and not holds_url(values[place]):
                values["remote"] = None
            elif option.name in _REPLAY_OVERRIDES:
                values[option.name] = _REPLAY_OVERRIDES[option.name]
            elif is_unused or option.name == "lengths":
                values[option.name] = None
            else:
                self._check_replayable(option.name, reader.file)
                values[option.name] = reader.from_plain(self.get_plain(option.name), option.name)
        if self.left_out:
            _logger.warning(_LEFT_OUT, path, ", ".join(self.left_out))
        return DataOptions(**values)

    def open_location(
        self, plain: Any, argument: str, reader: ArgumentReader, backend: str | None
    ) -> Any:
        """Open a location of the file; return the path if ``is_opened_later``.

        Raises:
            ConfigError: If it could not be saved, or is not a location.
            DataError: If the data is incomplete.
        """
        self._check_replayable(argument, reader.file)
        if not self.is_opened_later or isinstance(plain, Mapping):
            return location_from_plain(plain, argument, reader, backend)
        if isinstance(plain, list):
            return [self.open_location(part, argument, reader, backend) for part in plain]
        return plain  # a path, opened with these arguments

    def read_remote(self, path: Path) -> Remote | str | None:
        """Return the access to URLs, if it is a class of this package: no other code is imported.

        Args:
            path: Path of the file.

        Raises:
            ConfigError: If it is invalid.
        """
        plain = self.data.get("remote")
        is_own = isinstance(plain, Mapping) and plain.get(CLASS_PATH) == "seqdata.Remote"
        if not is_own and not isinstance(plain, str):
            return None
        found: Remote | str = self.make_reader(path).from_plain(plain, "remote")
        return found

    def make_opening_options(self, location: Any, reader: ArgumentReader) -> dict[str, Any]:
        """Return the arguments of ``open_store`` with which the run opened a location.

        Raises:
            ConfigError: If one cannot be restored.
        """
        names = [name for name in OPENED_WITH if self.data.get(name) is not None]
        if not holds_url(location):
            names = [name for name in names if name != "remote"]
        for name in names:
            self._check_replayable(name, reader.file)
        return {name: reader.from_plain(self.get_plain(name), name) for name in names}

    @property
    def is_opened_later(self) -> bool:
        """Whether locations are opened with arguments of the file."""
        return any(self.data.get(name) is not None for name in OPENED_WITH)

    def _check_replayable(self, argument: str, file: str) -> None:
        reason = self.get_missing_reason(argument)
        if reason is not None:
            raise ConfigError(
                f"{file}: `{argument}` cannot be restored: {reason}. In the program that trains, "
                "call data.replay(epoch=, batch=)"
            )


def _option_to_plain(
    name: str, value: Any, annotation: str, writer: ArgumentWriter, missing: list[str]
) -> Any:
    """Return an argument as plain data; if it cannot be saved, add the reason to ``missing``."""
    if name in _KINDS and isinstance(value, Mapping):
        return {
            part: _option_to_plain(f"{name}.{part}", location, "", writer, missing)
            for part, location in value.items()
        }
    if name == "lengths" and not callable(value):
        return None  # they are not needed again, and may be many
    try:
        if name.partition(".")[0] in _KINDS:
            return location_to_plain(value, name, writer)
        if isinstance(value, Path):
            return str(value)
        plain = writer.to_plain(value, name, annotation)
    except NotReplayableError as error:
        missing.append(f"{name}: {error}")
        return f"<{error}>"
    is_imported = name in _IMPORTED and is_call(plain, import_object)
    return plain[INIT_ARGS]["path"] if is_imported else plain


def _list_options() -> list[dataclasses.Field[Any]]:
    """Return the arguments of the DataModule, with locations and policies first."""
    first = (*_KINDS, "batching", "eval_batching")
    return sorted(dataclasses.fields(DataOptions), key=lambda option: option.name not in first)


def _is_named(plain: Any) -> bool:
    return isinstance(plain, Mapping) and not is_call(plain)


def _check_counts(run_values: Mapping[str, int | None]) -> None:
    """Raise if a count of a run is below its minimum.

    Raises:
        ValueError: If it is; the message names the count.
    """
    for name, value in run_values.items():
        least = 1 if name in ("world_size", "accumulate", "balance_ranks") else 0
        if (value is None and least and name != "balance_ranks") or (
            value is not None and value < least
        ):
            raise ValueError(must_be(f"`run.{name}`", f"at least {least}", repr(value)))


def _to_scalar(value: Any) -> Any:
    return value if value is None or type(value) in (bool, int, float) else str(value)


def _choose_location(plain: Any, kind: str, name: str | None, path: Path) -> Any:
    """Return the location of a kind; if locations have names, the one of a name."""
    if plain is None:
        raise ConfigError(
            f"{path}: `kind` must be of data that the run had, but {kind!r} had none. Choose "
            "another kind."
        )
    if not _is_named(plain) or (kind == "train" and name is None):
        if name is None:
            return plain
        raise ConfigError(
            f"{path}: `name` must be left out, since `{kind}` has one location, but is {name!r}."
        )
    if name not in plain:
        raise ConfigError(
            must_be(
                f"{path}: `name`",
                f"one of {', '.join(plain)}, the locations of `{kind}`",
                repr(name),
            )
        )
    return plain[name]


def _load(path: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the arguments and the record of a file."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}). Pass the {NAME} of a fit, which is in "
            "the Trainer's log folder"
        ) from error
    if len(content) > _MAX_BYTES:
        raise ConfigError(
            f"{path}: has more than {_MAX_BYTES} bytes and is not a run file. Pass {NAME}"
        )
    if not has_trailer(content):
        _logger.warning("%s has no checksum; it is accepted as an older or edited file", path)
    elif strip_digest(content, NAME) is None:
        raise ConfigError(
            f"{path}: must be as a fit wrote it, but its checksum (the last line) does not match "
            "its content: it was damaged or edited. Restore it; if you edited it, remove the last "
            "line"
        )
    try:
        text = content.decode()
        block = _RECORD.search(text)
        record = {} if block is None else _load_plain(block[1].replace("\n# ", "\n")[2:], path)
        plain = _load_plain(text, path)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: not a run file, since it is not YAML ({error}). Pass the {NAME} of a fit, or "
            "undo your changes"
        ) from error
    if not isinstance(plain, Mapping) or not isinstance(record, Mapping):
        raise ConfigError(f"{path}: not a run file, since it has no mapping. Pass {NAME}")
    version = plain.get("seqdata_run") if block is None else record.get("version")
    if version != VERSION:
        raise ConfigError(
            f"{path}: not a run file of version {VERSION} (its version is {version!r}). Pass the "
            f"{NAME} of a fit, or use the release that wrote it"
        )
    return plain, record


def _load_plain(text: str, path: Path) -> Any:
    """Return the values of YAML; their number is checked before they are made.

    Raises:
        LimitError: If it has too many values, nests too deeply, or has aliases, by which a few
            lines can expand to billions of values.
        yaml.YAMLError: If it is not YAML.
    """
    values = depth = 0
    for event in yaml.parse(text, _LOADER):
        is_start = isinstance(event, yaml.CollectionStartEvent)
        values += is_start or isinstance(event, yaml.ScalarEvent)
        depth += is_start - isinstance(event, yaml.CollectionEndEvent)
        for is_exceeded, rule, problem in (
            (isinstance(event, yaml.AliasEvent), "have no aliases", "has one"),
            (depth > MAX_DEPTH, f"nest {MAX_DEPTH} levels at most", "nests deeper"),
            (values > MAX_VALUES, f"have at most {MAX_VALUES} values", "has more"),
        ):
            if is_exceeded:
                raise LimitError(f"{path}: must {rule}, but {problem}. Pass the file of a fit")
    return yaml.load(text, _LOADER)


def _dump(plain: Any, *, allow_unicode: bool = False) -> str:
    text: str = yaml.dump(
        plain, Dumper=_Dumper, sort_keys=False, allow_unicode=allow_unicode, width=100
    )
    return text


def _to_dict(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r:.60} is not a mapping")
    return dict(value)
