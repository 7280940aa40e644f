"""Layout of sequences in a tree of arrays: which arrays are fields, and where sequences are.

Reads: names, shapes, dtypes and attributes of arrays, of HDF5 as of Zarr. Makes: a layout.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from seqdata.backends import NUMBER_DTYPES
from seqdata.errors import ConfigError, DecodeError, must_be

PER = ("group", "array", "file")
TEXT_BYTES = 256
"""Maximum size in bytes of an attribute, and of a string of a file that is read in place."""
MOST_VALUE_BYTES = 64 << 20
"""Maximum size in bytes of the values per sequence of one field, which the index stores."""
_SHOWN = 8  # names in a message
_MISSING = 4  # indices of recordings without an attribute: for messages
_NO_FIELDS = {"CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "id"}
_NO_VARIABLE = "This is a netCDF dimension but not a netCDF variable"
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True, kw_only=True)
class ArrayOptions:
    """Options that define which arrays are fields, and what a sequence is.

    Attributes:
        fields: Names of the arrays that become fields, or field -> name, each below the group of a
            recording; None: all arrays. With ``per="array"``: the name of the one field.
        per: A sequence is a ``"group"``, an ``"array"`` or a ``"file"``; None: a group, but an
            error if the arrays of the only group could be fields or sequences.
        lengths: Name of the array of lengths, integers (n,), if sequences are concatenated in long
            arrays.
        offsets: Name of the array of offsets, integers (n+1,), in place of ``lengths``.
        ids: Name of the array of ids (n,), strings or integers, with ``lengths`` or ``offsets``.
        attributes: Names of the attributes of a recording that become fields; None: all numbers
            and short strings of all recordings. Not read with ``lengths`` or ``offsets``.
        axes: Field -> its axis; None as an axis: a value per sequence. Other fields run along
            ``time``, or, if their lengths differ, an axis with the name of the first such field.
        raw: Whether packed numbers (``scale_factor``, ``add_offset``) are read as stored; otherwise
            they raise an error.
        cache_bytes: Maximum size in bytes of the decoded chunks that a process keeps.

    Raises:
        ConfigError: If an option is invalid.
    """

    fields: Sequence[str] | Mapping[str, str] | None = None
    per: str | None = None
    lengths: str | None = None
    offsets: str | None = None
    ids: str | None = None
    attributes: Sequence[str] | None = None
    axes: Mapping[str, str | None] | None = None
    raw: bool = False
    cache_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        where = type(self).__name__
        for name in ("fields", "attributes"):
            value = getattr(self, name)
            if isinstance(value, str | bytes):
                needed = "a list of names"
                raise ConfigError(must_be(f"{where}: `{name}`", needed, repr(value), "Pass a list"))
        if self.per not in (None, *PER):
            needed = f"one of {', '.join(PER)}, or None"
            raise ConfigError(must_be(f"{where}: `per`", needed, repr(self.per), "Leave it out"))
        if self.lengths is not None and self.offsets is not None:
            raise ConfigError(
                f"{where}: one of `lengths` and `offsets` must be given, but both are: "
                f"{self.lengths!r} and {self.offsets!r}. Leave one out"
            )
        if self.is_long and self.per is not None:
            raise ConfigError(
                f"{where}: `per` must be left out with `lengths` or `offsets`, but is {self.per!r}"
            )
        if self.ids is not None and not self.is_long:
            raise ConfigError(
                f"{where}: `ids` requires `lengths` or `offsets`, but is {self.ids!r} without "
                "them. Pass one of them, or leave `ids` out"
            )
        if type(self.cache_bytes) is not int or self.cache_bytes < 0:
            needed = "an integer of at least 0"
            found = repr(self.cache_bytes)
            raise ConfigError(must_be(f"{where}: `cache_bytes`", needed, found, "Leave it out"))

    @property
    def is_long(self) -> bool:
        """Whether sequences are concatenated in long arrays."""
        return self.lengths is not None or self.offsets is not None

    @property
    def names(self) -> dict[str, str] | None:
        """Field -> name of its array below a recording; None: all arrays."""
        if self.fields is None:
            return None
        named = self.fields if isinstance(self.fields, Mapping) else {n: n for n in self.fields}
        return {str(name): str(path).strip("/") for name, path in named.items()}


@dataclass(frozen=True, slots=True, eq=False)
class ArrayNode:
    """An array of a file.

    Attributes:
        path: Its path from the root, without a slash at the ends.
        shape: Its shape.
        dtype: Dtype as stored; None: it does not hold numbers.
        kind: Type of its values, for messages.
        attributes: Its attributes.
        read: Function that returns all of its values, an array or a string.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    kind: str
    attributes: Mapping[str, Any]
    read: Callable[[], Any]

    @property
    def is_text(self) -> bool:
        """Whether it holds strings."""
        return self.kind == "strings"


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """The arrays and groups of a file.

    Attributes:
        arrays: Path -> array.
        groups: Path -> attributes; the root is "".
    """

    arrays: Mapping[str, ArrayNode]
    groups: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class LaidField:
    """A field along an axis: timesteps ``firsts[i]:stops[i]`` of an array are sequence i.

    Attributes:
        arrays: The arrays of the field.
        which: int64 (n,), sequence -> index of its array in ``arrays``.
        firsts: int64 (n,), its first timestep in the array.
        stops: int64 (n,), one past the last.
        axis: Name of the axis.
    """

    arrays: Sequence[ArrayNode]
    which: NDArray[np.int64]
    firsts: NDArray[np.int64]
    stops: NDArray[np.int64]
    axis: str = "time"

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype as stored in the first array."""
        return self.arrays[0].dtype or np.dtype(object)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a timestep."""
        return self.arrays[0].shape[1:]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The sequences of one file.

    Attributes:
        ids: Their ids; None: the name of the file.
        fields: Field along an axis -> positions of its sequences.
        values: Field of numbers per sequence -> (n, *shape).
        texts: Field of strings per sequence -> n strings.
        missing: Attribute that only some recordings have -> number and some indices of the others.
    """

    ids: Sequence[str] | None
    fields: Mapping[str, LaidField]
    values: dict[str, NDArray[Any]] = field(default_factory=dict)
    texts: dict[str, Sequence[str]] = field(default_factory=dict)
    missing: dict[str, tuple[int, Sequence[int]]] = field(default_factory=dict)


def find_layout(tree: Tree, options: ArrayOptions) -> Layout:
    """Return the sequences of a file.

    Raises:
        DecodeError: If the arrays do not match the options, or have more than one interpretation.
    """
    arrays = {
        path: node
        for path, node in tree.arrays.items()
        if not _as_text(node.attributes.get("NAME", "")).startswith(_NO_VARIABLE)
    }
    if not arrays:
        _refuse("must hold at least one array, but holds none. Check the program that wrote it")
    tree = Tree(arrays, tree.groups)
    layout = _lay_long(tree, options) if options.is_long else _lay_recordings(tree, options)
    if not layout.fields:
        _refuse(
            "must hold an array of numbers with a dimension for time, but holds "
            f"{_list(arrays)}. Name others with `fields`"
        )
    _check_packed(layout, options)
    return _assign_axes(layout, options)


def _lay_recordings(tree: Tree, options: ArrayOptions) -> Layout:
    """Return a layout whose sequences are groups, arrays, or the file."""
    if options.per == "array":
        return _lay_arrays(tree, options)
    groups = _find_groups(tree, options)
    names = sorted(groups, key=natural_order)
    ids = None if names == [""] or options.per == "file" else names
    first = groups[names[0]]
    static = {name for name, axis in (options.axes or {}).items() if axis is None}
    values: dict[str, NDArray[Any]] = {}
    texts: dict[str, Sequence[str]] = {}
    fields: dict[str, LaidField] = {}
    for name, example in first.items():
        nodes = [groups[group][name] for group in names]
        if example.is_text and not example.shape:
            texts[name] = [_as_text(node.read()) for node in nodes]
            continue
        _check_numbers(example)
        _check_alike(name, nodes, is_whole=name in static or not example.shape)
        if name in static or not example.shape:
            _check_value_bytes(name, example, len(nodes))
            values[name] = np.stack([np.asarray(node.read()) for node in nodes])
            continue
        lengths = np.array([node.shape[0] for node in nodes], dtype=np.int64)
        fields[name] = LaidField(nodes, np.arange(len(nodes)), np.zeros_like(lengths), lengths)
    layout = Layout(ids, fields, values, texts)
    _add_attributes(layout, [tree.groups.get(name, {}) for name in names], options)
    return layout


def _find_groups(tree: Tree, options: ArrayOptions) -> dict[str, dict[str, ArrayNode]]:
    """Return group of a recording -> field -> array.

    Raises:
        DecodeError: If the groups do not hold arrays of the same names.
    """
    names = options.names
    if names is not None:
        return _find_named(tree, names, per_file=options.per == "file")
    if options.per == "file":
        return {"": dict(tree.arrays)}
    below: dict[str, dict[str, ArrayNode]] = {}
    for path, node in tree.arrays.items():
        group, _, name = path.rpartition("/")
        below.setdefault(group, {})[name] = node
    if len(below) == 1 and options.per is None:
        _check_one_reading(below)
    if len({frozenset(found) for found in below.values()}) == 1:
        return below
    tops: dict[str, dict[str, ArrayNode]] = {}
    for path, node in tree.arrays.items():
        group, _, name = path.partition("/")
        tops.setdefault(group if name else "", {})[name or group] = node
    if "" not in tops and len({frozenset(found) for found in tops.values()}) == 1:
        return tops
    held = "; ".join(
        f"{group or '/'}: {_list(found)}" for group, found in list(below.items())[:_SHOWN]
    )
    _refuse(
        f"must have groups that hold arrays of the same names, but holds {held}. Name the arrays "
        "of a recording with `fields`, or pass per='file' if all of them are one recording"
    )


def _check_one_reading(below: Mapping[str, Mapping[str, ArrayNode]]) -> None:
    """Raise a DecodeError if the arrays of the only group may be fields or sequences."""
    nodes = [node for node in next(iter(below.values())).values() if node.shape]
    kinds = {(node.kind, node.shape[1:]) for node in nodes}
    if len(nodes) > 1 and len(kinds) == 1 and len({node.shape[0] for node in nodes}) > 1:
        shown = ", ".join(f"{node.path} {list(node.shape)}" for node in nodes[:_SHOWN])
        _refuse(
            f"holds {len(nodes)} arrays of one kind and several lengths ({shown}), which may be "
            "sequences or fields. Pass per='array' if each is a sequence, per='file' if each is a "
            "field of one"
        )


def _find_named(
    tree: Tree, names: Mapping[str, str], *, per_file: bool
) -> dict[str, dict[str, ArrayNode]]:
    groups: dict[str, dict[str, ArrayNode]] = {}
    for name, path in names.items():
        for found, node in tree.arrays.items():
            group = "" if found == path else found.removesuffix(f"/{path}")
            if found == path or (group != found and not per_file):
                groups.setdefault(group, {})[name] = node
    for group, found_fields in groups.items() or {"": {}}.items():
        for name, path in names.items():
            if name not in found_fields:
                inside = [
                    each for each in tree.arrays if each.startswith(f"{group}/" * bool(group))
                ]
                _refuse(
                    f"must have the array {path!r} of field {name!r} in group {group or '/'!r}, "
                    f"but has {_list(inside)}. Correct `fields`"
                )
    return groups


def _lay_arrays(tree: Tree, options: ArrayOptions) -> Layout:
    """Return a layout whose sequences are arrays of one field."""
    names = list(options.names or {"x": ""})
    if len(names) != 1:
        _refuse(
            f"per='array' requires one name in `fields`, but has {_list(names)}. Name one field"
        )
    nodes = [tree.arrays[path] for path in sorted(tree.arrays, key=natural_order)]
    _check_numbers(nodes[0])
    _check_alike(names[0], nodes, is_whole=False)
    if not nodes[0].shape:
        _refuse(f"per='array' needs a dimension for time, but {nodes[0].path!r} is one number")
    lengths = np.array([node.shape[0] for node in nodes], dtype=np.int64)
    laid = LaidField(nodes, np.arange(len(nodes)), np.zeros_like(lengths), lengths)
    layout = Layout([node.path for node in nodes], {names[0]: laid})
    _add_attributes(layout, [node.attributes for node in nodes], options)
    return layout


def _lay_long(tree: Tree, options: ArrayOptions) -> Layout:
    """Return a layout whose sequences are concatenated in long arrays."""
    offsets = _read_offsets(tree, options)
    count, total = len(offsets) - 1, int(offsets[-1])
    index = {options.lengths, options.offsets, options.ids}
    names = options.names or {
        path: path for path, node in tree.arrays.items() if path not in index and node.shape
    }
    layout = Layout(_read_ids(tree, options, count), {})
    fields = dict(layout.fields)
    for name, path in names.items():
        node = _get_array(tree, path, "fields")
        rows = node.shape[0] if node.shape else -1
        if rows == total and not node.is_text and (options.axes or {}).get(name, "") is not None:
            _check_numbers(node)
            which = np.zeros(count, dtype=np.int64)
            fields[name] = LaidField([node], which, offsets[:-1], offsets[1:])
        elif rows == count and (texts := _read_texts(node)) is not None:
            layout.texts[name] = texts
        elif rows == count:
            _check_numbers(node)
            _check_value_bytes(name, node, 1)
            layout.values[name] = np.asarray(node.read())
        else:
            _refuse(
                f"array {path!r} must have {total} rows of numbers (timesteps), or {count} rows "
                f"(sequences), but has {node.kind} {list(node.shape)}. Leave it out with `fields`"
            )
    return replace(layout, fields=fields)


def _read_offsets(tree: Tree, options: ArrayOptions) -> NDArray[np.int64]:
    """Return the offsets of sequences, int64 (n+1,)."""
    name = "lengths" if options.lengths is not None else "offsets"
    path = str(getattr(options, name)).strip("/")
    node = _get_array(tree, path, name)
    if node.dtype is None or node.dtype.kind not in "iu" or len(node.shape) != 1:
        _refuse(
            f"array {path!r} of `{name}` must hold integers of one dimension, but holds "
            f"{node.kind} {list(node.shape)}. Correct `{name}`"
        )
    numbers = np.asarray(node.read()).astype(np.int64)
    if name == "lengths":
        numbers = np.concatenate(([0], np.cumsum(numbers)))
    if not len(numbers) or numbers[0] != 0 or (np.diff(numbers) < 0).any():
        needed = "be at least 0" if name == "lengths" else "begin at 0 and not decrease"
        _refuse(f"`{name}` in array {path!r} must {needed}, but do not. Write the array again")
    return numbers


def _read_ids(tree: Tree, options: ArrayOptions, count: int) -> list[str]:
    if options.ids is None:
        return [str(number) for number in range(count)]
    node = _get_array(tree, options.ids.strip("/"), "ids")
    ids = _read_texts(node) if node.shape[:1] == (count,) else None
    if ids is None and node.shape == (count,) and node.dtype is not None:
        ids = [_as_text(value) for value in node.read()] if node.dtype.kind in "iu" else None
    if ids is None:
        _refuse(
            f"array {options.ids!r} of `ids` must hold {count} strings or integers, but holds "
            f"{node.kind} {list(node.shape)}. Correct `ids`"
        )
    return ids


def _read_texts(node: ArrayNode) -> list[str] | None:
    """Return a string per row of an array; None if it does not hold strings.

    NetCDF may store a string as a row of characters.
    """
    if not node.is_text or len(node.shape) not in (1, 2):
        return None
    values = np.asarray(node.read())
    if values.ndim > 1:
        if values.dtype != "S1" or not values.shape[1]:
            return None
        values = np.ascontiguousarray(values).view(f"S{values.shape[1]}")[:, 0]
    return [_as_text(value) for value in values]


def _get_array(tree: Tree, path: str, option: str) -> ArrayNode:
    node = tree.arrays.get(path)
    if node is None:
        _refuse(
            f"must have the array {path!r} of `{option}`, but has {_list(tree.arrays)}. Correct "
            f"`{option}`"
        )
    return node


def _add_attributes(
    layout: Layout, groups: Sequence[Mapping[str, Any]], options: ArrayOptions
) -> None:
    """Add the attributes of recordings as fields.

    Raises:
        DecodeError: If an attribute of ``options.attributes`` cannot be a field.
    """
    named = options.attributes
    names = [name for name in groups[0] if _is_public(name)] if named is None else list(named)
    taken = {*layout.fields, *layout.values, *layout.texts}
    if named is None:
        layout.missing.update(_find_missing(groups, taken))
    for name in names:
        missing = [number for number, group in enumerate(groups) if name not in group]
        if named is None and (missing or name in taken):
            continue
        if missing:
            which = "the file" if layout.ids is None else repr(layout.ids[missing[0]])
            _refuse(
                f"attribute {name!r} must be in every recording, but {which} has none. Leave it "
                "out of `attributes`"
            )
        if name in taken:
            _refuse(f"attribute {name!r} has the name of a field. Leave it out of `attributes`")
        values = [group[name] for group in groups]
        if all(isinstance(value, str | bytes) for value in values):
            try:
                found = [_as_text(value) for value in values]
            except UnicodeDecodeError:  # of another encoding, which the file does not name
                if named is None:
                    continue
                _refuse(
                    f"attribute {name!r} must be UTF-8, but has other bytes. Leave it out of "
                    "`attributes`"
                )
            longest = max(len(text.encode()) for text in found)
            if longest <= TEXT_BYTES:
                layout.texts[name] = found
            elif named is not None:
                _refuse(
                    f"attribute {name!r} must have at most {TEXT_BYTES} bytes, but has {longest}. "
                    "Leave it out of `attributes`"
                )
            continue
        numbers = [np.asarray(value) for value in values]
        dtypes = {each.dtype.name for each in numbers}
        is_number = len(dtypes) == 1 and dtypes <= set(NUMBER_DTYPES)
        shapes = {each.shape for each in numbers}
        if is_number and (shapes == {()} or (named is not None and len(shapes) == 1)):
            layout.values[name] = np.stack(numbers)
        elif named is not None:
            _refuse(
                f"attribute {name!r} must be a string, or numbers of one dtype and shape, in every "
                f"recording, but is {_list(dtypes)} {sorted(map(list, shapes))}. Leave it out of "
                "`attributes`"
            )


def _find_missing(
    groups: Sequence[Mapping[str, Any]], taken: Collection[str]
) -> dict[str, tuple[int, Sequence[int]]]:
    """Return the attributes that only some recordings have; see ``Layout.missing``."""
    found: dict[str, tuple[int, Sequence[int]]] = {}
    counts = Counter(name for group in groups for name in group if _is_public(name))
    for name, count in counts.items():
        if count < len(groups) and name not in taken:
            without = (number for number, group in enumerate(groups) if name not in group)
            found[name] = len(groups) - count, tuple(itertools.islice(without, _MISSING))
    return found


def _assign_axes(layout: Layout, options: ArrayOptions) -> Layout:
    """Return the layout with an axis for each field; fields of equal lengths share an axis.

    Raises:
        DecodeError: If ``axes`` does not match the fields.
    """
    given = dict(options.axes or {})
    known = {*layout.fields, *layout.values, *layout.texts}
    for name in given:
        if name not in known:
            _refuse(f"`axes` names {name!r}, but the fields are {_list(known)}. Correct `axes`")
    lengths: dict[str, NDArray[np.int64]] = {}
    axes: dict[str, str] = {}
    for name, laid in layout.fields.items():
        mine, axis = laid.stops - laid.firsts, given.get(name)
        if axis is None:
            alike = (each for each, other in lengths.items() if np.array_equal(other, mine))
            axis = next(alike, None) or ("time" if "time" not in lengths else name)
        if not np.array_equal(lengths.setdefault(axis, mine), mine):
            at = int(np.argmax(lengths[axis] != mine))
            which = "" if layout.ids is None else f" of {layout.ids[at]!r}"
            _refuse(
                f"field {name!r} must have {lengths[axis][at]} timesteps{which}, like the other "
                f"fields along axis {axis!r}, but has {mine[at]}. Correct `axes`"
            )
        axes[name] = axis
    fields = {name: replace(laid, axis=axes[name]) for name, laid in layout.fields.items()}
    return replace(layout, fields=fields)


def _check_packed(layout: Layout, options: ArrayOptions) -> None:
    for name, laid in layout.fields.items():
        packing = {"scale_factor", "add_offset"} & set(laid.arrays[0].attributes)
        if packing and not options.raw:
            _refuse(
                f"field {name!r} holds packed numbers ({', '.join(sorted(packing))}), which are "
                "not unpacked. Pass raw=True to read them as they are stored, or leave it out with "
                "`fields`"
            )


def _check_numbers(node: ArrayNode) -> None:
    if node.dtype is None or node.dtype.newbyteorder("=").name not in NUMBER_DTYPES:
        _refuse(
            f"array {node.path!r} must hold real numbers in each timestep, but holds {node.kind} "
            f"{list(node.shape)}. Name the arrays to read with `fields`, without per='array'"
        )


def _check_alike(name: str, nodes: Sequence[ArrayNode], *, is_whole: bool) -> None:
    first, skipped, per = nodes[0], *((0, "") if is_whole else (1, " per timestep"))

    def describe(node: ArrayNode) -> tuple[Any, ...]:
        dtype = None if node.dtype is None else node.dtype.newbyteorder("=")
        return dtype, len(node.shape), node.shape[skipped:]

    for node in nodes:
        if node.dtype is None or describe(node) != describe(first):
            _refuse(
                f"field {name!r} must be {first.kind} {list(first.shape[skipped:])}{per} as in "
                f"{first.path!r}, but {node.path!r} is {node.kind} {list(node.shape)}. Name other "
                "arrays with `fields`, without per='array'"
            )


def _check_value_bytes(name: str, node: ArrayNode, count: int) -> None:
    size = count * int(np.prod(node.shape)) * (0 if node.dtype is None else node.dtype.itemsize)
    if size > MOST_VALUE_BYTES:
        _refuse(
            f"field {name!r} must have at most {MOST_VALUE_BYTES} bytes in a file, since it has a "
            f"value per sequence, but has {size}. Leave it out with `fields`"
        )


def natural_order(path: str) -> list[Any]:
    """Return a sort key that puts ``rec2`` before ``rec10``."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in _DIGITS.split(path)]


def _is_public(name: str) -> bool:
    return not name.startswith("_") and name not in _NO_FIELDS


def _as_text(value: Any) -> str:
    value = value.item() if isinstance(value, np.ndarray) and value.shape == () else value
    return value.decode() if isinstance(value, bytes) else str(value)


def _list(names: Iterable[str]) -> str:
    """Return names for a message."""
    shown = sorted(names)
    rest = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return (", ".join(map(repr, shown[:_SHOWN])) or "nothing") + rest


def _refuse(text: str) -> NoReturn:
    """Raise a DecodeError about a file, to which the caller adds the location."""
    raise DecodeError.at(text)
