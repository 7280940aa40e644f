"""The run file: what a fit was started with, so that its batches can be made again elsewhere.

``seqdata-run.yaml`` holds plain scalars, lists and dicts, and is read as such: nothing is imported
until a transform, collator or policy of another's is needed. A run file is trusted as code is.
Place in the flow: rank 0 writes it at the start of a fit; ``seqdata replay`` and ``doctor`` read
it. Reads: options, a file. Makes: a file, options.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, get_args

import yaml

from seqdata.builtin import POLICIES
from seqdata.errors import ConfigError
from seqdata.resolve import resolve_policy
from seqdata.runs.bounded_yaml import load_plain
from seqdata.runs.data_refs import PATH, VIEW, Arrays, Locations, content_of, opened
from seqdata.runs.locate_batch import Course
from seqdata.runs.options import DataOptions, Kind
from seqdata.runs.to_plain import IMPORT, NOTHING, OBJECT, Names, Objects
from seqdata.storage.digest_trailer import has_seal, sealed, unsealed
from seqdata.storage.writing.staging_dir import write_whole

_logger = logging.getLogger("seqdata.replay")
NAME = "seqdata-run.yaml"
VERSION = 1
_MOST = 1 << 20  # bytes of a run file
_POLICY, _OPTIONS = "policy", "options"
_KINDS: tuple[Kind, ...] = get_args(Kind)
_HEAD = (
    "# Written by seqdata when a fit began. Make one of its batches again with\n"
    "#   seqdata replay {name} --epoch EPOCH --batch BATCH\n"
    "# It names code that is then imported: trust it as you trust code.\n"
)
_ALONE = {"num_workers": 0, "prefetch": 0}
"""What replaying does otherwise: one batch needs no process and no thread."""

_LATER = {"eval_transform": None, "dtype": None, "check_values": False}
"""Arguments that came after run files had been written, with their defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """What a fit was started with, as plain data.

    Attributes:
        course: How it began, and counts.
        data: Arguments of the DataModule.
        fingerprints: Kind -> digest of the data of each loader.
        plan: Fingerprint of the plan of the epoch that it began with.
        versions: Package -> version.
        trainer: Settings of the Trainer that decide which batches are trained.
        missing: What cannot be replayed from the file: ``argument: why``.
        roots: Folders that modules were imported from.
        beside: Name -> what the files hold that lie beside it.
    """

    course: Course
    data: Mapping[str, Any]
    fingerprints: Mapping[str, list[str]]
    plan: str
    versions: Mapping[str, str]
    trainer: Mapping[str, Any]
    missing: list[str] = field(default_factory=list)
    roots: list[str] = field(default_factory=list)
    beside: Mapping[str, Arrays] = field(default_factory=dict)

    @classmethod
    def of(
        cls, options: DataOptions, course: Course, *, fingerprints: Mapping[str, list[str]],
        plan: str, versions: Mapping[str, str], trainer: Mapping[str, Any],
    ) -> Self:  # fmt: skip
        """Describe the options of a DataModule."""
        names = Names()
        places = Locations(names, Path(NAME).stem)
        data: dict[str, Any] = {}
        for one in dataclasses.fields(options):
            value = getattr(options, one.name)
            if one.name in _KINDS:
                data[one.name] = _locations(value, one.name, places)
            elif one.name in ("batching", "eval_batching"):
                data[one.name] = _policy(value, one.name, names)
            elif one.name == "lengths":
                data[one.name] = _lengths(value, names)
            elif isinstance(value, Path):
                data[one.name] = str(value)
            else:
                data[one.name] = names.plain(value, one.name)
        data["seed"] = course.seed
        return cls(
            course=course, data=data, fingerprints=fingerprints, plan=plan, versions=versions,
            trainer={name: _simple(value) for name, value in trainer.items()},
            missing=names.missing, roots=names.roots, beside=places.beside,
        )  # fmt: skip

    def write(self, path: Path) -> None:
        """Write the file and what lies beside it, each whole or not at all.

        Raises:
            OSError: If that cannot be done.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        for name, arrays in self.beside.items():
            write_whole(path.parent / name, sealed(content_of(arrays), name))
        plain = {
            "seqdata_run": VERSION,
            "versions": dict(self.versions),
            "run": {**dataclasses.asdict(self.course), "plan": self.plan},
            "trainer": dict(self.trainer),
            "data": dict(self.data),
            "fingerprints": dict(self.fingerprints),
            "not_replayable": list(self.missing),
            "import_from": list(self.roots),
        }
        text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)
        write_whole(path, sealed((_HEAD.format(name=path.name) + text).encode(), NAME))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file back; nothing is imported or opened.

        Raises:
            ConfigError: If it is not there, or no run file of this version.
            LimitError: If it stands for more than a run file does.
        """
        plain = _loaded(path)
        if plain.get("seqdata_run") != VERSION:
            raise ConfigError(
                f"{path}: is no run file of version {VERSION} (`seqdata_run` is "
                f"{plain.get('seqdata_run')!r}), must be what a fit wrote; pass its {NAME}, or use "
                "the release that wrote it"
            )
        try:
            run = dict(plain["run"])
            plan = str(run.pop("plan"))
            if not all(value is None or isinstance(value, int) for value in run.values()):
                raise TypeError(f"`run` is {run!r:.200}, must hold whole numbers")
            return cls(
                course=Course(**run), data=_kept(plain["data"]), plan=plan,
                fingerprints=_kept(plain["fingerprints"]), versions=_kept(plain["versions"]),
                trainer=_kept(plain["trainer"]), missing=list(plain["not_replayable"]),
                roots=list(plain["import_from"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{path}: is damaged ({type(error).__name__}: {error}), must be as a fit wrote it; "
                "restore it"
            ) from error

    def missing_for(self, kind: Kind, name: str | None = None) -> list[str]:
        """Give what keeps the batches of a kind from being replayed from the file."""
        others: set[str] = {"lengths", *(one for one in _KINDS if one != kind)}
        if kind == "train":
            others.add("eval_batching")
        found = []
        for line in self.missing:
            argument, _, of = line.partition(":")[0].partition(".")
            if argument not in others and (not of or of == name):
                found.append(line)
        return found

    def fingerprint_of(self, kind: Kind, name: str | None) -> str | None:
        """Give the digest that the data of a kind had; None: the fit did not use it."""
        known = list(self.fingerprints.get(kind, ()))
        place = list(self.names_of(kind)).index(name)
        return str(known[place]) if place < len(known) else None

    def names_of(self, kind: Kind) -> list[str | None]:
        """Give the names of a kind's locations, in their order; None: there is one without."""
        plain = self.data.get(kind)
        if plain is None:
            return []
        return list(plain["named"]) if "named" in plain else [None]

    def options(
        self, path: Path, kind: Kind, name: str | None, backend: str | None = None
    ) -> DataOptions:
        """Make the options again, with one location: that of a kind, or of one of its names.

        Args:
            path: Where the file lies.
            kind: ``train``, ``val``, ``test`` or ``predict``.
            name: Of its location, where there are several.
            backend: Name of the backend that opens it; None: by the location's form.

        Raises:
            ConfigError: If something that is needed has no import path, or cannot be imported.
            DataError: If the data is not whole.
        """
        objects = Objects(self.roots, path.name)
        values: dict[str, Any] = dict.fromkeys(_KINDS)
        argument = kind if name is None else f"{kind}.{name}"
        place = _chosen(self.data.get(kind), kind, name, path)
        store = opened(place, argument, path.parent, objects, backend)
        values[kind] = store if name is None else {name: store}
        for one in dataclasses.fields(DataOptions):
            if one.name in values:
                continue
            if one.name in _ALONE:
                values[one.name] = _ALONE[one.name]
            elif one.name in _LATER and one.name not in self.data:
                values[one.name] = _LATER[one.name]
            elif one.name in self.data:
                plain = self.data[one.name]
                evaluates = one.name == "eval_batching"
                policy = one.name == "batching" or evaluates
                evaluates = evaluates or one.name == "eval_transform"
                unused = (evaluates and kind == "train") or one.name == "lengths"
                make = _policy_again if policy else Objects.of
                values[one.name] = None if unused else make(objects, plain, one.name)
            else:
                raise ConfigError(
                    f"{path}: has no `data.{one.name}`, must have all arguments; it is of seqdata "
                    f"{self.versions.get('seqdata', 'unknown')}: replay it with that release"
                )
        return DataOptions(**values)


def _simple(value: Any) -> Any:
    return value if value is None or type(value) in (bool, int, float) else str(value)


def _locations(value: Any, kind: str, places: Locations) -> Any:
    if not isinstance(value, Mapping):
        return places.plain(value, kind)
    return {"named": {name: places.plain(one, f"{kind}.{name}") for name, one in value.items()}}


def _lengths(value: Any, names: Names) -> Any:
    """Say how many lengths of a Dataset there are: they are never used again, and may be many."""
    if value is None or callable(value):
        return names.plain(value, "lengths")
    if isinstance(value, Mapping):
        return {str(name): _lengths(one, names) for name, one in value.items()}
    return f"{len(value)} lengths"


def _chosen(plain: Any, kind: str, name: str | None, path: Path) -> Any:
    """Give the location of a kind, by name where it has names."""
    named = plain.get("named") if isinstance(plain, Mapping) else None
    if plain is None:
        raise ConfigError(f"{path}: the run had no `{kind}` data, must have some; choose another")
    if named is None:
        if name is None:
            return plain
        raise ConfigError(f"{path}: `{kind}` has no names, but one is given ({name!r}); drop it")
    if name not in named:
        raise ConfigError(
            f"{path}: `name` is {name!r}, must be one of {', '.join(named)}: the locations of "
            f"`{kind}`; pass it"
        )
    return named[name]


def _policy(policy: Any, argument: str, names: Names) -> Any:
    """Give a policy of ours by its registered name, and any other as the dataclass that it is."""
    plain = names.plain(policy, argument)
    if not isinstance(plain, dict) or OBJECT not in plain:
        return plain
    kind = type(policy)
    path = f"{kind.__module__}:{kind.__qualname__}"
    registered = {place: name for name, place in POLICIES.items()}.get(path)
    if registered is None:
        return plain
    return {_POLICY: registered, _OPTIONS: plain["fields"]}


def _policy_again(objects: Objects, plain: Any, argument: str) -> Any:
    if isinstance(plain, Mapping) and _POLICY in plain:
        return resolve_policy(plain[_POLICY], objects.of(plain.get(_OPTIONS) or {}, argument))
    return objects.of(plain, argument)


def _loaded(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST + 1)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}), must be the {NAME} of a fit; it lies in "
            "the Trainer's log folder"
        ) from error
    if len(content) > _MOST:
        raise ConfigError(f"{path}: has more than {_MOST} bytes, must be a run file; pass {NAME}")
    if not has_seal(content):
        _logger.warning("%s: has no seal: it is believed, as an older or edited file", path)
    elif unsealed(content, NAME) is None:
        raise ConfigError(
            f"{path}: must be as a fit wrote it, but its seal (the last line) is that of another "
            "content: it was damaged or edited. Restore it; if you edited it, remove the last line"
        )
    try:
        plain = load_plain(content, str(path))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: is no YAML ({error}), must be a run file; pass {NAME}"
        ) from error
    if not isinstance(plain, Mapping):
        raise ConfigError(f"{path}: holds no mapping, must be a run file; pass {NAME}")
    return plain


def _kept(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r:.60} is no mapping")
    return dict(value)


def code_of(plain: Any) -> list[str]:
    """Give the import paths that an argument of a run file names, in order."""
    if isinstance(plain, Mapping):
        own = [str(plain[tag]) for tag in (IMPORT, OBJECT) if tag in plain]
        return own + [path for value in plain.values() for path in code_of(value)]
    return [path for item in plain for path in code_of(item)] if isinstance(plain, list) else []


def paths_of(plain: Any) -> list[str]:
    """Give the paths of the stores that an argument of a run file names, in order."""
    if not isinstance(plain, Mapping) or NOTHING in plain:
        return []
    if PATH in plain:
        return [str(plain[PATH])]
    inner = [plain[VIEW]] if VIEW in plain else plain.get("named", {}).values()
    return [path for value in inner for path in paths_of(value)]
