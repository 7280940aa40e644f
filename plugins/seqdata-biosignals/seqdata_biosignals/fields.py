"""The fields of recordings: their channels, rates and axes.

Reads: recordings. Makes: signal fields, with the layout by which each sequence is decoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, did_you_mean
from seqdata_biosignals.decoding import Layout, Part, find_runs
from seqdata_biosignals.recording import Channel, Recording

Names = str | Sequence[str]
SIGNAL, TIME, STORED = "signal", "time", "stored"
_VOLTS = {"V": 1.0, "mV": 1e-3, "uV": 1e-6, "µV": 1e-6, "μV": 1e-6, "nV": 1e-9}
_TWO_STORES = "Open them as two stores"
_MOST_SHOWN = 12


@dataclass(slots=True, eq=False)
class SignalField:
    """One field of samples over all recordings.

    Attributes:
        name: Its name.
        axis: Its axis.
        dtype: Dtype of a sample.
        shape: ``()`` or (channels,).
        lengths: int64 (n,), number of samples of each sequence.
        rates: Samples per second of each sequence.
        layouts: The distinct layouts in which sequences are stored.
        layout_of: int32 (n,), the index of the layout of each sequence.
        rows: int64 (n, files), the rows of the files of each sequence in the store of bytes.
    """

    name: str
    axis: str
    dtype: str
    shape: tuple[int, ...]
    lengths: NDArray[np.int64]
    rates: Sequence[Fraction]
    layouts: Sequence[Layout]
    layout_of: NDArray[np.int32]
    rows: NDArray[np.int64]


@dataclass(slots=True, eq=False)
class _Chosen:
    """The channels of one field in each recording.

    Attributes:
        name: Name of the field.
        is_scalar: Whether it has one channel and no dimension for channels.
        channels: The channels of each recording, in the order of the field.
    """

    name: str
    is_scalar: bool
    channels: list[Sequence[Channel]] = field(default_factory=list)


def make_fields(
    recordings: Sequence[Recording],
    channels: Names | Mapping[str, Names] | None,
    dtype: str,
    unit: str | None,
    may_differ: bool,
) -> list[SignalField]:
    """Return the fields of samples, the first of which runs along ``time``.

    Args:
        recordings: All recordings.
        channels: Names of channels for the field ``signal``, or field -> names; None: all.
        dtype: Dtype of samples; ``"stored"``: integers as they are stored.
        unit: The unit of voltages; None: the units of the headers.
        may_differ: Whether rates may differ between recordings.

    Raises:
        ConfigError: If a channel does not exist, or channels differ in rate or unit.
    """
    chosen = _choose_all(recordings) if channels is None else _choose(recordings, channels)
    fields: list[SignalField] = []
    for each in chosen:
        _check_together(recordings, each, may_differ)
        if dtype != STORED:
            _check_scales(recordings, each, unit)
        made = _make_field(recordings, each, dtype, unit)
        same = [other.axis for other in fields if _have_one_axis(other, made)]
        made.axis = same[0] if same else f"{TIME}_{made.name}" if fields else TIME
        fields.append(made)
    return fields


def _have_one_axis(one: SignalField, other: SignalField) -> bool:
    return one.rates == other.rates and np.array_equal(one.lengths, other.lengths)


def _choose_all(recordings: Sequence[Recording]) -> list[_Chosen]:
    """Return a field for each rate of the first recording, the highest first.

    Raises:
        ConfigError: If recordings differ in the channels of a rate.
    """
    groups: dict[Fraction, list[str]] = {}
    for channel in recordings[0].channels:
        groups.setdefault(channel.rate, []).append(channel.name)
    if not groups:
        raise _make_error(recordings[0], "must have a channel of samples, but has only annotations."
        " Exclude it, e.g. with a glob")  # fmt: skip
    rates = sorted(groups, reverse=True)
    chosen = [
        _Chosen(f"{SIGNAL}_{float(rate):g}hz" if number else SIGNAL, is_scalar=False)
        for number, rate in enumerate(rates)
    ]
    for recording in recordings:
        _check_names(recording, recordings[0])
        own = sorted({channel.rate for channel in recording.channels}, reverse=True)
        by_rate = [[c for c in recording.channels if c.rate == rate] for rate in own]
        names = [sorted(channel.name for channel in those) for those in by_rate]
        if names != [sorted(groups[rate]) for rate in rates]:
            raise _make_error(
                recording,
                f"must group its channels by rate like {recordings[0].name!r}, but has "
                f"{_format_rates(recording)}. Name the channels of a field: "
                "Biosignals(channels=[...])",
            )
        for each, rate, those in zip(chosen, rates, by_rate, strict=True):
            each.channels.append(_order(those, groups[rate]))
    return chosen


def _check_names(recording: Recording, first: Recording) -> None:
    mine = [channel.name for channel in recording.channels]
    due = [channel.name for channel in first.channels]
    if sorted(mine) == sorted(due):
        return
    lost = [name for name in due if name not in mine]
    more = [name for name in mine if name not in due]
    raise _make_error(
        recording,
        f"must have the channels of {first.name!r}, but lacks {_format(lost)} and has "
        f"{_format(more)} in addition. Name those that all have: Biosignals(channels=[...])",
    )


def _order(channels: Sequence[Channel], names: Sequence[str]) -> Sequence[Channel]:
    """Return channels in the order of names; channels of the same name stay in their order."""
    if [channel.name for channel in channels] == names:
        return channels
    rest = list(channels)
    return [rest.pop([channel.name for channel in rest].index(name)) for name in names]


def _choose(
    recordings: Sequence[Recording], channels: Names | Mapping[str, Names]
) -> list[_Chosen]:
    given = channels if isinstance(channels, Mapping) else {SIGNAL: channels}
    wanted = {name: [names] if isinstance(names, str) else list(names)
              for name, names in given.items()}  # fmt: skip
    chosen = [_Chosen(name, isinstance(given[name], str)) for name in wanted]
    for recording in recordings:
        by_name: dict[str, Channel] = {}
        repeated = set[str]()
        for channel in recording.channels:
            if channel.name in by_name:
                repeated.add(channel.name)
            by_name[channel.name] = channel
        for each in chosen:
            for name in wanted[each.name]:
                _check_has(recording, name, by_name, repeated)
            each.channels.append([by_name[name] for name in wanted[each.name]])
    return chosen


def _check_has(
    recording: Recording, name: str, by_name: Mapping[str, Channel], repeated: set[str]
) -> None:
    if name in repeated:
        raise _make_error(
            recording,
            f"must have the channel {name!r} once, but has it several times. Leave `channels` out, "
            "or correct the header",
        )
    if name not in by_name:
        hint = did_you_mean(name, by_name)
        raise _make_error(
            recording,
            f"must have the channel {name!r}, but has {_format(list(by_name))}"
            f"{f' ({hint})' if hint else ''}. Choose channels that all recordings have, or leave "
            "this one out",
        )


def _check_together(recordings: Sequence[Recording], chosen: _Chosen, may_differ: bool) -> None:
    first = chosen.channels[0]
    for recording, channels in zip(recordings, chosen.channels, strict=True):
        rates = {channel.rate for channel in channels}
        if len(rates) > 1:
            raise _make_error(
                recording,
                f"field {chosen.name!r}: channels of a field must have one rate, but have "
                f"{_format_rates(recording, channels)}. Make a field for each rate: "
                "Biosignals(channels={'eeg': [...], 'emg': [...]})",
            )
        if channels[0].rate != first[0].rate and not may_differ:
            raise _make_error(
                recording,
                f"field {chosen.name!r}: must have {float(first[0].rate):g} samples per second, "
                f"like {recordings[0].name!r}, but has {float(channels[0].rate):g}. {_TWO_STORES}, "
                "or "
                "pass Biosignals(facts=['rate']), which adds the rate of each sequence",
            )


def _check_scales(recordings: Sequence[Recording], chosen: _Chosen, unit: str | None) -> None:
    first = chosen.channels[0]
    for recording, channels in zip(recordings, chosen.channels, strict=True):
        for channel, due in zip(channels, first, strict=True):
            if channel.problem:
                raise _make_error(
                    recording,
                    f"channel {channel.name!r} cannot be converted to its physical unit: "
                    f"{channel.problem}. Correct the header, leave the channel out, or pass "
                    "Biosignals(dtype='stored')",
                )
            if unit is None and channel.unit != due.unit:
                raise _make_error(
                    recording,
                    f"channel {channel.name!r} must be in {due.unit!r} as in "
                    f"{recordings[0].name!r}, but is in {channel.unit!r}. Pass "
                    f"Biosignals(unit='uV'), or open them as two stores",
                )
            if unit is not None and channel.unit not in _VOLTS:
                raise _make_error(
                    recording,
                    f"channel {channel.name!r} must be in volts for `unit={unit!r}`, but is in "
                    f"{channel.unit!r}. Leave `unit` or the channel out",
                )


def check_unit(unit: object) -> None:
    """Raise if a unit is not one that voltages can be converted to.

    Raises:
        ConfigError: If ``unit`` is not V, mV, uV or None.
    """
    if unit is not None and unit not in ("V", "mV", "uV"):
        raise ConfigError(
            f"Biosignals: `unit` must be 'V', 'mV', 'uV' or None, but is {unit!r}. Leave it out "
            "for the units of the headers"
        )


def _make_field(
    recordings: Sequence[Recording], chosen: _Chosen, dtype: str, unit: str | None
) -> SignalField:
    numbers: dict[Layout, int] = {}
    which, lengths = [], []
    slots = max(len(recording.files) for recording in recordings)
    rows = np.zeros((len(recordings), slots), dtype=np.int64)
    for at, (recording, channels) in enumerate(zip(recordings, chosen.channels, strict=True)):
        layout = _make_layout(recording, channels, unit, dtype)
        which.append(numbers.setdefault(layout, len(numbers)))
        rows[at, : len(recording.rows)] = recording.rows
        lengths.append(recording.files[channels[0].file].blocks * channels[0].per_block)
    layouts = list(numbers)
    stored = {part.encoding.dtype for layout in layouts for part in layout.parts}
    widest = np.result_type(*stored).name
    count = len(chosen.channels[0])
    return SignalField(
        chosen.name, TIME, widest if dtype == STORED else dtype,
        () if chosen.is_scalar else (count,), np.array(lengths, np.int64),
        [channels[0].rate for channels in chosen.channels], layouts, np.array(which, np.int32),
        rows,
    )  # fmt: skip


def _make_layout(
    recording: Recording, channels: Sequence[Channel], unit: str | None, dtype: str
) -> Layout:
    parts = []
    for number in sorted({channel.file for channel in channels}):
        file = recording.files[number]
        columns = [at for at, channel in enumerate(channels) if channel.file == number]
        firsts = [channels[at].first for at in columns]
        per_block = channels[columns[0]].per_block
        parts.append(Part(
            number, file.encoding, file.begin, file.block, per_block, file.is_by_channel,
            find_runs(firsts, columns, per_block),
        ))  # fmt: skip
    if dtype == STORED:
        return Layout(tuple(parts), (), ())
    scale = 1.0 if unit is None else 1 / _VOLTS[unit]
    factors = [scale if unit is None else scale * _VOLTS[channel.unit] for channel in channels]
    pairs = list(zip(channels, factors, strict=True))
    gains = tuple(channel.gain * factor for channel, factor in pairs)
    return Layout(tuple(parts), gains, tuple(channel.offset * factor for channel, factor in pairs))


def _make_error(recording: Recording, problem: str) -> ConfigError:
    return ConfigError.at(f"{recording.name}: {problem}", file=recording.name)


def _format(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return ", ".join(map(repr, names[:_MOST_SHOWN])) + more if names else "none"


def _format_rates(recording: Recording, channels: Sequence[Channel] | None = None) -> str:
    found: dict[float, list[str]] = {}
    for channel in recording.channels if channels is None else channels:
        found.setdefault(float(channel.rate), []).append(channel.name)
    return "; ".join(f"{rate:g}: {_format(names)}" for rate, names in sorted(found.items()))
