"""The run file: the settings of a fit, so that its batches can be replayed elsewhere.

``seqdata-run.yaml`` holds plain scalars, lists and dicts, and is read as such: nothing is imported
until a transform, collator or policy from outside of seqdata is needed. A run file is trusted like
code.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, get_args

import yaml

from seqdata.builtin import POLICIES
from seqdata.errors import ConfigError, must_be
from seqdata.resolve import resolve_policy
from seqdata.runs.bounded_yaml import load_plain
from seqdata.runs.data_refs import (
    CONCAT,
    PATH,
    SPANS,
    VIEW,
    DataRefWriter,
    open_data_ref,
)
from seqdata.runs.locate_batch import FitGeometry
from seqdata.runs.options import DataKind, DataOptions
from seqdata.runs.side_files import Arrays, SideFiles, pack_arrays
from seqdata.runs.to_plain import IMPORT, OBJECT, UNREPLAYABLE, PlainReader, PlainWriter
from seqdata.storage.digest_trailer import add_digest, has_digest, strip_digest
from seqdata.storage.local_files import write_atomically

_logger = logging.getLogger("seqdata.replay")
NAME = "seqdata-run.yaml"
VERSION = 1
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_MAX_BYTES = 1 << 20  # most bytes of a run file
_POLICY, _OPTIONS = "policy", "options"
_KINDS: tuple[DataKind, ...] = get_args(DataKind)
_HEADER = (
    "# Written by seqdata when a fit began. Make one of its batches again with\n"
    "#   seqdata replay {name} --epoch EPOCH --batch BATCH\n"
    "# It names code that is then imported: trust it as you trust code.\n"
)
_REPLAY_OVERRIDES = {"num_workers": 0, "prefetch": 0}
"""Arguments that differ in a replay: one batch needs no process and no thread."""

_LATER_DEFAULTS = {
    "eval_transform": None,
    "dtype": None,
    "check_values": False,
    "persistent_workers": False,
}
"""Arguments that older run files do not have, with their defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """The settings of a fit, as plain data.

    Attributes:
        geometry: How it began, and how it counts.
        data: Arguments of the DataModule.
        fingerprints: Kind -> digest of the data of each loader.
        plan: Fingerprint of the plan of its first epoch.
        versions: Package -> version.
        trainer: Settings of the Trainer that decide which batches are trained.
        missing: Arguments that cannot be replayed from the file: ``argument: why``.
        roots: Folders that modules were imported from.
        side_files: Name -> content of the files next to it.
    """

    geometry: FitGeometry
    data: Mapping[str, Any]
    fingerprints: Mapping[str, list[str]]
    plan: str
    versions: Mapping[str, str]
    trainer: Mapping[str, Any]
    missing: list[str] = field(default_factory=list)
    roots: list[str] = field(default_factory=list)
    side_files: Mapping[str, Arrays] = field(default_factory=dict)

    @classmethod
    def from_options(
        cls, options: DataOptions, geometry: FitGeometry, *, fingerprints: Mapping[str, list[str]],
        plan: str, versions: Mapping[str, str], trainer: Mapping[str, Any],
    ) -> Self:  # fmt: skip
        """Return the run file of a DataModule's options."""
        writer = PlainWriter(side_files=SideFiles(Path(NAME).stem))
        ref_writer = DataRefWriter(writer)
        data: dict[str, Any] = {}
        for option in dataclasses.fields(options):
            value = getattr(options, option.name)
            if option.name in _KINDS:
                data[option.name] = _locations_to_plain(value, option.name, ref_writer)
            elif option.name in ("batching", "eval_batching"):
                data[option.name] = _policy_to_plain(value, option.name, writer)
            elif option.name == "lengths":
                data[option.name] = _lengths_to_plain(value, writer)
            elif isinstance(value, Path):
                data[option.name] = str(value)
            else:
                data[option.name] = writer.to_plain(value, option.name)
        data["seed"] = geometry.seed
        return cls(
            geometry=geometry, data=data, fingerprints=fingerprints, plan=plan, versions=versions,
            trainer={name: _to_scalar(value) for name, value in trainer.items()},
            missing=writer.missing, roots=writer.roots, side_files=writer.side_files.arrays,
        )  # fmt: skip

    def write(self, path: Path) -> None:
        """Write the side files and then the file, each completely or not at all.

        Raises:
            OSError: If a file cannot be written; then no side file of this one stays.
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
        """Return the content of a file of this name."""
        plain = {
            "seqdata_run": VERSION,
            "versions": dict(self.versions),
            "run": {**dataclasses.asdict(self.geometry), "plan": self.plan},
            "trainer": dict(self.trainer),
            "data": dict(self.data),
            "fingerprints": dict(self.fingerprints),
            "not_replayable": list(self.missing),
            "import_from": list(self.roots),
        }
        text = yaml.dump(plain, Dumper=_DUMPER, sort_keys=False, allow_unicode=True, width=100)
        return add_digest((_HEADER.format(name=name) + text).encode(), NAME)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return a saved file; nothing is imported or opened.

        Raises:
            ConfigError: If it does not exist, or is not a run file of this version.
            LimitError: If it expands to more values than a run file has.
        """
        plain = _load_mapping(path)
        if plain.get("seqdata_run") != VERSION:
            raise ConfigError(
                f"{path}: not a run file of version {VERSION} (`seqdata_run` is "
                f"{plain.get('seqdata_run')!r}). Pass the {NAME} of a fit, or use the release "
                "that wrote it"
            )
        try:
            run_values = dict(plain["run"])
            plan = str(run_values.pop("plan"))
            mixture = run_values.pop("mixture", None)  # absent from older run files
            if not all(value is None or isinstance(value, int) for value in run_values.values()):
                raise TypeError(f"`run` must hold integers, but is {run_values!r:.200}")
            _check_counts(run_values)
            if not isinstance(mixture, str | None):
                raise TypeError(f"`mixture` must be a string, but is {mixture!r:.200}")
            return cls(
                geometry=FitGeometry(**run_values, mixture=mixture), plan=plan,
                data=_to_dict(plain["data"]),
                fingerprints=_to_dict(plain["fingerprints"]), versions=_to_dict(plain["versions"]),
                trainer=_to_dict(plain["trainer"]), missing=list(plain["not_replayable"]),
                roots=list(plain["import_from"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{path}: is damaged ({type(error).__name__}: {error}). Restore it"
            ) from error

    def list_missing(self, kind: DataKind, name: str | None = None) -> list[str]:
        """Return why batches of a kind cannot be replayed from the file; empty if they can."""
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
        """Return the names of a kind's locations, in their order; None if it has no name."""
        plain = self.data.get(kind)
        if plain is None:
            return []
        return list(plain["named"]) if "named" in plain and kind != "train" else [None]

    def make_options(
        self, path: Path, kind: DataKind, name: str | None, backend: str | None = None
    ) -> DataOptions:
        """Return the options with a single location: that of a kind, or of a name.

        Args:
            path: Path of the file.
            kind: ``train``, ``val``, ``test`` or ``predict``.
            name: Name of its location, if there are several.
            backend: Name of the backend that opens it; None: found from the location.

        Raises:
            ConfigError: If a needed object has no import path, or cannot be imported.
            DataError: If the data is incomplete.
        """
        reader = PlainReader(self.roots, path.name, path.parent)
        values: dict[str, Any] = dict.fromkeys(_KINDS)
        argument = kind if name is None else f"{kind}.{name}"
        location = _choose_location(self.data.get(kind), kind, name, path)
        if kind == "train" and isinstance(location, Mapping) and "named" in location:
            values[kind] = {  # the parts of a mixture
                part: open_data_ref(plain, f"train.{part}", path.parent, reader, backend)
                for part, plain in location["named"].items()
            }
        else:
            store = open_data_ref(location, argument, path.parent, reader, backend)
            values[kind] = store if name is None else {name: store}
        for option in dataclasses.fields(DataOptions):
            if option.name in values:
                continue
            if option.name in _REPLAY_OVERRIDES:
                values[option.name] = _REPLAY_OVERRIDES[option.name]
            elif option.name in _LATER_DEFAULTS and option.name not in self.data:
                values[option.name] = _LATER_DEFAULTS[option.name]
            elif option.name in self.data:
                plain = self.data[option.name]
                is_evaluation = option.name == "eval_batching"
                is_policy = option.name == "batching" or is_evaluation
                is_evaluation = is_evaluation or option.name == "eval_transform"
                is_unused = (is_evaluation and kind == "train") or option.name == "lengths"
                make = _policy_from_plain if is_policy else PlainReader.from_plain
                values[option.name] = None if is_unused else make(reader, plain, option.name)
            else:
                raise ConfigError(
                    f"{path}: must have all arguments, but has no `data.{option.name}`. It was "
                    f"written by seqdata {self.versions.get('seqdata', 'unknown')}: replay it "
                    "with that release."
                )
        return DataOptions(**values)


def _check_counts(run_values: Mapping[str, int | None]) -> None:
    """Raise if a number of a run is one that no fit has.

    Raises:
        ValueError: If it is.
    """
    for name, value in run_values.items():
        least = 1 if name in ("world_size", "accumulate", "balance_ranks") else 0
        if (value is None and least and name != "balance_ranks") or (
            value is not None and value < least
        ):
            raise ValueError(must_be(f"`run.{name}`", f"at least {least}", repr(value)))


def _to_scalar(value: Any) -> Any:
    return value if value is None or type(value) in (bool, int, float) else str(value)


def _locations_to_plain(value: Any, kind: str, ref_writer: DataRefWriter) -> Any:
    if not isinstance(value, Mapping):
        return ref_writer.to_plain(value, kind)
    return {
        "named": {
            name: ref_writer.to_plain(location, f"{kind}.{name}")
            for name, location in value.items()
        }
    }


def _lengths_to_plain(value: Any, writer: PlainWriter) -> Any:
    """Return the number of lengths of a Dataset, which are not needed again and may be many."""
    if value is None or callable(value):
        return writer.to_plain(value, "lengths")
    if isinstance(value, Mapping):
        return {str(name): _lengths_to_plain(lengths, writer) for name, lengths in value.items()}
    return f"{len(value)} lengths"


def _choose_location(plain: Any, kind: str, name: str | None, path: Path) -> Any:
    """Return the location of a kind, by name where it has names."""
    named = plain.get("named") if isinstance(plain, Mapping) else None
    if plain is None:
        raise ConfigError(f"{path}: the run had no `{kind}` data. Choose another kind.")
    if named is None or (kind == "train" and name is None):
        if name is None:
            return plain
        raise ConfigError(f"{path}: `{kind}` has no names, but `name` is {name!r}. Leave it out.")
    if name not in named:
        raise ConfigError(
            must_be(
                f"{path}: `name`",
                f"one of {', '.join(named)}: the locations of `{kind}`",
                repr(name),
                "Pass it",
            )
        )
    return named[name]


def _policy_to_plain(policy: Any, argument: str, writer: PlainWriter) -> Any:
    """Return a built-in policy by its registered name, and any other as a dataclass."""
    plain = writer.to_plain(policy, argument)
    if not isinstance(plain, dict) or OBJECT not in plain:
        return plain
    kind = type(policy)
    path = f"{kind.__module__}:{kind.__qualname__}"
    registered = {import_path: name for name, import_path in POLICIES.items()}.get(path)
    if registered is None:
        return plain
    return {_POLICY: registered, _OPTIONS: plain["fields"]}


def _policy_from_plain(reader: PlainReader, plain: Any, argument: str) -> Any:
    if isinstance(plain, Mapping) and _POLICY in plain:
        return resolve_policy(
            plain[_POLICY], reader.from_plain(plain.get(_OPTIONS) or {}, argument)
        )
    return reader.from_plain(plain, argument)


def _load_mapping(path: Path) -> Mapping[str, Any]:
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
    if not has_digest(content):
        _logger.warning("%s: has no seal: it is accepted, as an older or edited file", path)
    elif strip_digest(content, NAME) is None:
        raise ConfigError(
            f"{path}: must be as a fit wrote it, but its seal (the last line) does not match its "
            "content: it was damaged or edited. Restore it; if you edited it, remove the last "
            "line"
        )
    try:
        plain = load_plain(content, str(path))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: not a run file, since it is not YAML ({error}). Pass {NAME}"
        ) from error
    if not isinstance(plain, Mapping):
        raise ConfigError(f"{path}: not a run file, since it has no mapping. Pass {NAME}")
    return plain


def _to_dict(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r:.60} is not a mapping")
    return dict(value)


def list_import_paths(plain: Any) -> list[str]:
    """Return the import paths in an argument of a run file, in order."""
    if isinstance(plain, Mapping):
        own_paths = [str(plain[tag]) for tag in (IMPORT, OBJECT) if tag in plain]
        return own_paths + [path for value in plain.values() for path in list_import_paths(value)]
    return (
        [path for item in plain for path in list_import_paths(item)]
        if isinstance(plain, list)
        else []
    )


def list_store_paths(plain: Any) -> list[str]:
    """Return the paths of stores in an argument of a run file, in order."""
    if not isinstance(plain, Mapping) or UNREPLAYABLE in plain:
        return []
    if PATH in plain:
        return [str(plain[PATH])]
    inner_values = [plain[form] for form in (VIEW, SPANS) if form in plain]
    inner_values += [*plain.get(CONCAT, ()), *plain.get("named", {}).values()]
    return [path for value in inner_values for path in list_store_paths(value)]
