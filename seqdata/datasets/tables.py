"""Generated tables: time series of several sites, and events of users."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from seqdata.datasets.arguments import check_number, draw_lengths, make_generator
from seqdata.errors import ConfigError, check_count

if TYPE_CHECKING:
    import pandas as pd

_START = np.datetime64("2024-01-01T00:00:00", "us")
_HOUR = np.timedelta64(3600, "s")
_ACTIONS = ("login", "search", "payment", "transfer", "logout")
_USUAL = (0.25, 0.35, 0.2, 0.05, 0.15)  # probability of each action
_OF_FRAUD = (0.3, 0.1, 0.2, 0.35, 0.05)


def make_series(count: int = 8, *, days: int = 60, seed: int = 0) -> pd.DataFrame:
    """Return hourly loads of several sites, with the season of days and weeks, and a trend.

    The load follows the hour, the weekday and the temperature. Licence: generated, free to use.
    Needs pandas.

    Args:
        count: Number of sites.
        days: Number of days of each site, from 1 January 2024.
        seed: Another seed gives other series.

    Returns:
        A row for each site and hour, sorted by both: ``site`` (str), ``time`` (datetime64[us]),
        ``load`` (float64, kW), ``temperature`` (float64, degrees Celsius) and ``region`` (str,
        ``"north"`` or ``"south"``, the same in all rows of a site).

    Raises:
        ConfigError: If an argument is out of its range, or pandas is not installed.

    Examples:
        >>> table = make_series(2, days=3)
        >>> table.columns.tolist(), len(table)
        (['site', 'time', 'load', 'temperature', 'region'], 144)
    """
    check_count("make_series", count=count, days=days)
    rng = make_generator("make_series", seed)
    hours = np.arange(24 * days)
    columns: dict[str, list[Any]] = {}
    for number in range(count):
        is_north = number % 2 == 0
        day = np.sin(2 * np.pi * (hours - 9) / 24)
        weather = 0.3 * np.cumsum(rng.normal(0, 0.25, len(hours)))
        temperature = (4 if is_north else 12) + 3 * day + weather
        working = np.where(hours // 24 % 7 < 5, 1.0, 0.65)  # 1 January 2024 is a Monday
        evening = np.exp(-(((hours % 24 - 19) / 2.5) ** 2))
        level = float(rng.lognormal(3.5, 0.7))
        trend = 1 + float(rng.uniform(-0.1, 0.3)) * hours / max(len(hours), 1)
        shape = 1 + 0.35 * day + 0.4 * evening + 0.02 * (15 - temperature)
        noise = rng.normal(1, 0.04, len(hours))
        one = {
            "site": np.full(len(hours), f"site-{number}"),
            "time": _START + hours * _HOUR,
            "load": level * trend * working * shape * noise,
            "temperature": temperature,
            "region": np.full(len(hours), "north" if is_north else "south"),
        }
        for name, values in one.items():
            columns.setdefault(name, []).append(values)
    return _make_frame("make_series", columns)


def make_events(
    count: int = 400, *, rare: float = 0.05, median: float = 30.0, seed: int = 0
) -> pd.DataFrame:
    """Return events of users, a few of whom are fraudulent: a table with a row per event.

    Fraudulent users transfer more often, pay larger amounts, and act in quicker succession.
    Licence: generated, free to use. Needs pandas.

    Args:
        count: Number of users.
        rare: Fraction of fraudulent users, in [0, 1], rounded to whole users.
        median: Median number of events of a user, in [2, 1e9]; each user has at least 2.
        seed: Another seed gives other events.

    Returns:
        Events of one user after the other, sorted by time: ``user`` (str), ``time``
        (datetime64[us]), ``action`` (str, one of five), ``amount`` (float64, euros; 0 where nothing
        is paid) and ``label`` (str, ``"ok"`` or ``"fraud"``, the same in all rows of a user).

    Raises:
        ConfigError: If an argument is out of its range, or pandas is not installed.

    Examples:
        >>> table = make_events(100, rare=0.1)
        >>> table.groupby("user")["label"].first().value_counts().to_dict()
        {'ok': 90, 'fraud': 10}
    """
    check_count("make_events", count=count)
    check_number("make_events", 0, 1, rare=rare)
    check_number("make_events", 2, 1e9, median=median)
    rng = make_generator("make_events", seed)
    is_fraud = np.zeros(count, dtype=np.bool_)
    is_fraud[rng.permutation(count)[: round(rare * count)]] = True
    columns: dict[str, list[Any]] = {}
    for number, length in enumerate(draw_lengths(rng, count, median, 0.7, 2)):
        fraud = bool(is_fraud[number])
        action = rng.choice(_ACTIONS, length, p=_OF_FRAUD if fraud else _USUAL)
        seconds = np.cumsum(rng.exponential(600 if fraud else 7_200, length))
        begun = np.timedelta64(int(rng.integers(30 * 86_400)), "s")
        amount = np.round(rng.lognormal(4.2 if fraud else 3.3, 0.8, length), 2)
        one = {
            "user": np.full(length, f"user-{number}"),
            "time": _START + begun + (seconds * 1e6).astype("timedelta64[us]"),
            "action": action,
            "amount": np.where(np.isin(action, ("payment", "transfer")), amount, 0.0),
            "label": np.full(length, "fraud" if fraud else "ok"),
        }
        for name, values in one.items():
            columns.setdefault(name, []).append(values)
    return _make_frame("make_events", columns)


def _make_frame(owner: str, columns: dict[str, list[Any]]) -> pd.DataFrame:
    """Return the DataFrame of the pieces of each column."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ConfigError(
            f"{owner}: pandas must be installed, but is not: the result is a DataFrame. Install it "
            "with `pip install pandas`"
        ) from error
    return pd.DataFrame({name: np.concatenate(pieces) for name, pieces in columns.items()})
