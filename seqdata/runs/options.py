"""Options of a SequenceDataModule, as one frozen object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from seqdata.arguments import to_plain
from seqdata.code_digest import Description, describe_code
from seqdata.errors import ConfigError, did_you_mean, must_be
from seqdata.fitting.field_chunk import Estimator
from seqdata.fitting.statistics import Statistics
from seqdata.loading.error_log import MAX_ERRORS, ErrorLog
from seqdata.loading.options import LoaderOptions, OnChanged, check_on_changed
from seqdata.planning.build import describe_policy
from seqdata.planning.policy import as_policy, find_base_policy
from seqdata.protocols import Policy, Store, Transform
from seqdata.readers.missing import Missing
from seqdata.resolve import are_locations, is_collate_fn, takes_lengths
from seqdata.storage.dataset import MapStyle
from seqdata.storage.linking import split_clocks
from seqdata.storage.remote.options import Remote, resolve_remote

Location = str | Path | Store | MapStyle | Iterable[Any]
"""A path, an opened store or view, sequences in memory, or a torch Dataset."""

Locations = Location | Mapping[str, Location]
"""A location, or name -> location: for ``train`` the parts of a mixture, else one loader each."""

_COMPARED = (
    "batches_per_update", "rates", "axes", "whole", "fields", "as_tuple", "as_dict", "dtype",
    "check_values", "padding", "shift", "sort_within_batch", "tail",
    "on_error", "max_errors", "on_changed", "group", "order", "id", "backend", "split", "rename",
    "missing",
)  # fmt: skip
SPLIT_OPTIONS = ("seed", "by", "exact", "stratify", "along", "context", "unit")
"""Arguments of ``seqdata.split`` that the ``split`` of a DataModule may have next to its parts."""
StatisticsFor = Callable[[Store], Mapping[str, Estimator]]
"""``statistics(store) -> {field: estimator}``, of the training data."""
Shift = int | Mapping[str, int]
DataKind = Literal["train", "val", "test", "predict"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DataOptions(LoaderOptions):
    """Arguments of a ``SequenceDataModule``, which documents them.

    Raises:
        ConfigError: If an argument is invalid.
    """

    train: Locations | None = None
    val: Locations | None = None
    test: Locations | None = None
    predict: Locations | None = None
    batching: Policy | str
    eval_batching: Policy | str | None = None
    batches_per_update: int | None = None
    lengths: Any = None
    rates: Mapping[str, Any] | None = None
    axes: Mapping[str, Any] | None = None
    eval_transform: Transform | None = None
    max_errors: int = MAX_ERRORS
    on_changed: OnChanged = "error"
    group: str | None = None
    order: str | None = None
    id: str | None = None
    backend: Any = None
    remote: Remote | str | None = None
    split: Mapping[str, Any] | None = None
    statistics: Statistics | Mapping[str, Estimator] | StatisticsFor | None = None
    where: Mapping[str, Any] | Callable[[Any], bool] | None = None
    rename: Mapping[str, str] | None = None
    prepare: Callable[[Store], Any] | None = None
    missing: Missing | None = None

    def describe(self) -> Description:
        """Describe the options that ranks compare and that engines do not describe."""
        description = Description({}, {})
        for name in _COMPARED:
            value: Any = getattr(self, name)
            if isinstance(value, Mapping):
                value = dict(sorted(value.items()))
            value = tuple(value) if isinstance(value, list) else value
            is_plain = isinstance(value, str | int | None)
            description.fixed[name] = value if is_plain else repr(value)
        for name in ("transform", "eval_transform", "collator", "as_batch", "where", "prepare"):
            value = getattr(self, name)
            if callable(value):
                described = describe_code(name, value)
                description.fixed.update(described.fixed)
                description.changing.update(described.changing)
            else:
                is_mapping = isinstance(value, Mapping)
                description.fixed[name] = repr(value) if is_mapping else value  # None, or a name
        if isinstance(self.statistics, Statistics):
            description.fixed["statistics"] = self.statistics.digest
        else:
            description.fixed["statistics"] = repr(self.statistics)
        for kind in get_args(DataKind):
            description.fixed[f"names of {kind}"] = repr(self.get_names(kind))
        return description

    def __post_init__(self) -> None:
        for name in ("rates", "axes", "lengths", "split", "where", "rename"):
            object.__setattr__(self, name, to_plain(getattr(self, name)))
        for kind in get_args(DataKind):
            object.__setattr__(self, kind, _to_plain_locations(getattr(self, kind)))
        check_on_changed(self.on_changed, "datamodule")
        self._check_numbers()
        self._check_lengths()
        self._check_split()
        self._check_statistics()
        split_clocks(self.rates, self.axes)  # raises
        resolve_remote(self.remote)  # raises
        ErrorLog(self.max_errors)  # raises
        LoaderOptions.__post_init__(self)
        if isinstance(self.train, Mapping):
            policy = self.batching
            base = policy if isinstance(policy, str) else find_base_policy(policy)
            if not isinstance(base, str) and not as_policy(base).policies:
                raise ConfigError(
                    f"datamodule: `train` must be one location, but has {len(self.train)} named "
                    f"location{'s' * (len(self.train) != 1)}. Pass batching=Mix("
                    "{name: weight, ...}, policy) to draw from them, or `concat` them to one store."
                )
        if self.batches_per_update is not None and self.tail != "fill":
            raise ConfigError(
                must_be(
                    "datamodule: `tail`",
                    "'fill' with `batches_per_update`",
                    repr(self.tail),
                    "Leave one of them out",
                )
            )

    def _check_numbers(self) -> None:
        batches_per_update = self.batches_per_update
        if batches_per_update is not None and (
            not isinstance(batches_per_update, int) or batches_per_update < 1
        ):
            raise ConfigError(
                must_be(
                    "datamodule: `batches_per_update`",
                    "an integer of at least 1",
                    repr(batches_per_update),
                )
            )

    def _check_lengths(self) -> None:
        if isinstance(self.lengths, Mapping) and not self.lengths.keys() <= set(get_args(DataKind)):
            raise ConfigError(
                f"datamodule: the keys of `lengths` must be {', '.join(get_args(DataKind))}, but "
                f"are {', '.join(map(str, self.lengths))}. Name the argument that each Dataset "
                "is passed as."
            )

    @property
    def split_parts(self) -> dict[DataKind, Any]:
        """Kind -> its fraction or range of the training source; empty without a split."""
        split = self.split or {}
        return {kind: split[kind] for kind in get_args(DataKind) if kind in split}

    @property
    def split_options(self) -> dict[str, Any]:
        """Arguments of ``seqdata.split`` besides the parts."""
        return {name: value for name, value in (self.split or {}).items() if name in SPLIT_OPTIONS}

    def find_part(self, kind: DataKind) -> DataKind | None:
        """Return the part of the split that is the data of a kind; None if no part is."""
        if getattr(self, kind) is not None and kind != "train":
            return None
        parts = self.split_parts
        order: tuple[DataKind, ...] = ("predict", "test", "val") if kind == "predict" else (kind,)
        return next((part for part in order if part in parts), None)

    def get_given(self, kind: DataKind) -> Locations | None:
        """Return the locations of a kind; of a part of the split those of ``train``."""
        given: Locations | None = getattr(self, kind)
        return given if self.find_part(kind) is None else self.train

    def _check_split(self) -> None:
        if self.split is None:
            return
        check_split("datamodule", self.split)
        kinds = get_args(DataKind)
        for name in self.split:
            if name not in (*kinds, *SPLIT_OPTIONS):
                known = (*kinds, *SPLIT_OPTIONS)
                hint = did_you_mean(str(name), known)
                raise ConfigError(
                    f"datamodule: the keys of `split` must be parts ({', '.join(kinds)}) or "
                    f"options ({', '.join(SPLIT_OPTIONS)}), but {name!r} is neither"
                    f"{'; ' + hint if hint else '. Leave it out'}"
                )
        if self.train is None:
            raise ConfigError(
                "datamodule: `split` splits `train`, but it is None. Pass the source as `train`"
            )
        for kind in kinds[1:]:
            if kind in self.split and getattr(self, kind) is not None:
                raise ConfigError(
                    f"datamodule: `{kind}` is given, and `split` has a part {kind!r}. Leave one of "
                    "them out"
                )

    def _check_statistics(self) -> None:
        value = self.statistics
        if value is None or isinstance(value, Statistics) or callable(value):
            return
        if not isinstance(value, Mapping) or not all(
            hasattr(estimator, "start") and not isinstance(estimator, type)
            for estimator in value.values()
        ):
            raise ConfigError(
                must_be(
                    "datamodule: `statistics`",
                    "field -> estimator, or what `fit` returned",
                    f"{value!r:.200}",
                    "Write e.g. {'x': MeanStd()}",
                )
            )

    def get_locations(self, kind: DataKind) -> list[Location]:
        """Return the locations of a kind, in the order of their loaders; a mixture is one."""
        kind_locations = self.get_given(kind)
        if kind_locations is None:
            return []
        if isinstance(kind_locations, Mapping) and kind != "train":
            return list(kind_locations.values())
        return [cast(Location, kind_locations)]

    def get_names(self, kind: DataKind) -> list[str | None]:
        """Return the name of each location of a kind, in their order; None if it has no name."""
        kind_locations = self.get_given(kind)
        if isinstance(kind_locations, Mapping) and kind != "train":
            return list(kind_locations)
        return [None] * len(self.get_locations(kind))

    def get_lengths(self, kind: DataKind) -> list[Any]:
        """Return the lengths of each location of a kind; None for a store, which has lengths.

        Raises:
            ConfigError: If locations have names, and lengths have none or unknown ones.
        """
        locations, given_lengths = self.get_locations(kind), self.lengths
        if self.find_part(kind) is not None:
            kind = "train"
        if callable(given_lengths):
            as_items = is_collate_fn(self.collator)
            return [
                given_lengths
                if isinstance(location, Mapping) or takes_lengths(location, as_items=as_items)
                else None
                for location in locations
            ]
        if isinstance(given_lengths, Mapping):
            given_lengths = given_lengths.get(kind)
        elif kind != "train":
            given_lengths = None
        if given_lengths is None or not self.is_named(kind):
            return [given_lengths] * len(locations)
        names: Any = self.get_given(kind)
        if not isinstance(given_lengths, Mapping) or not given_lengths.keys() <= names.keys():
            found = f"is a {type(given_lengths).__name__}"
            if isinstance(given_lengths, Mapping):
                found = f"has the names {', '.join(map(str, given_lengths))}"
            raise ConfigError(
                f"datamodule: `lengths` of {kind!r} must be a mapping from names of its "
                f"locations ({', '.join(names)}), but {found}."
            )
        return [given_lengths.get(name) for name in names]

    def is_named(self, kind: DataKind) -> bool:
        """Return whether a kind has named locations, and so a list of loaders."""
        return kind != "train" and isinstance(self.get_given(kind), Mapping)


def _to_plain_locations(given: Any) -> Any:
    """Return named locations as a dict, and several locations as a list."""
    if isinstance(given, Mapping):
        return {name: _to_plain_locations(location) for name, location in given.items()}
    return to_plain(given) if are_locations(given) else given


def check_split(owner: str, split: Any) -> dict[str, Any]:
    """Return a split as a dict.

    Args:
        owner: First word of an error.
        split: Name of a part -> fraction or range, and options.

    Raises:
        ConfigError: If it is not a mapping with a part ``train``.
    """
    if isinstance(split, Mapping) and "train" in split:
        return dict(split)
    example = "{'train': 0.8, 'val': 0.2}"
    if isinstance(split, Mapping) and any(isinstance(value, str) for value in split.values()):
        example = "{'train': '..2024-01-15', 'val': '2024-01-15..'}"
    raise ConfigError(
        must_be(
            f"{owner}: `split`",
            "a mapping with a part 'train'",
            repr(split),
            f"Write e.g. {example}",
        )
    )


def choose_eval_policy(policy: Policy, kind: DataKind, name: str | None) -> Policy:
    """Return the policy that evaluates data of a training policy.

    For a mixture it is the policy of the part of the same name, or the only one of all parts.

    Args:
        policy: The training policy.
        kind: Kind of the data.
        name: Name of the location, if there are several.

    Raises:
        ConfigError: If the parts of a mixture have several policies and no part has the name.
    """
    policies = as_policy(find_base_policy(policy)).policies
    if not policies:
        return policy
    if name is not None and name in policies:
        return policies[name]
    distinct = {describe_policy(part_policy): part_policy for part_policy in policies.values()}
    if len(distinct) > 1:
        raise ConfigError(
            f"datamodule: `eval_batching` must be given for `{kind}`, but is None, and the parts of"
            f" the mixture have {len(distinct)} policies. Pass the one that evaluates."
        )
    return next(iter(distinct.values()))
