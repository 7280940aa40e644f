"""The stores and players of a DataModule: opened once, and made again only for another world.

Place in the flow: options in, players out. Reads: stores. Makes: players.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from seqdata.default_host import default_host
from seqdata.errors import ConfigError
from seqdata.loading.engine import Player
from seqdata.loading.error_log import Tally
from seqdata.loading.options import PlayOptions
from seqdata.protocols import Policy, Store
from seqdata.resolve import resolve_collator, resolve_policy
from seqdata.resolve_store import store_of
from seqdata.runs.options import DataOptions, Kind, unshuffled
from seqdata.world import World

Command = Callable[[Kind, str | None, int, int], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What players are made for.

    Attributes:
        world: Who we are.
        seed: Of order and transforms.
        frozen: Whether a small part is being overfitted: epoch 0 for ever, not shuffled.
        folder: Where errors in the data are listed; None: nowhere.
        cuda: Whether batches go to a CUDA device.
    """

    world: World
    seed: int
    frozen: bool
    folder: Path | None = None
    cuda: bool = False


class Stock:
    """Stores and players by kind.

    Args:
        options: What the DataModule was asked for.
        see: Says what shows a batch, by kind, name of its location, epoch and number; None: nothing
            does.
    """

    def __init__(self, options: DataOptions, see: Command | None = None) -> None:
        self._options = options
        self._see = see
        self._stores: dict[Kind, list[Store]] = {}
        self._players: dict[Kind, list[Player]] = {}
        self._made_for: Circumstances | None = None
        self._tally: Tally | None = None  # of all players of this process

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs: players have threads, and are made again there."""
        return {**self.__dict__, "_players": {}, "_made_for": None, "_tally": None}

    def keep(self, kind: Kind, circumstances: Circumstances) -> list[Player]:
        """Give the players of a kind, and keep them for as long as the circumstances last."""
        if circumstances != self._made_for:
            self.shutdown()
            self._players.clear()
            self._made_for = circumstances
        if kind not in self._players:
            self._players[kind] = self.make(kind, circumstances)
        return self._players[kind]

    def kept(self, kind: Kind) -> list[Player]:
        """Give the players that are kept; none before ``setup``."""
        return self._players.get(kind, [])

    def make(self, kind: Kind, circumstances: Circumstances) -> list[Player]:
        """Make the players of a kind, one per location."""
        policy, play = self._policy(kind, circumstances), self._playing(kind, circumstances)
        play = replace(
            play, tally=self._counting(circumstances), plan_ready=default_host().plan_ready
        )
        return [
            Player(store, policy, self._named(play, kind, name))
            for store, name in zip(self._opened(kind), self._options.names(kind), strict=True)
        ]

    def lone(self, kind: Kind, name: str | None, circumstances: Circumstances) -> Player:
        """Make a player that makes single batches again, in this process and unnoticed.

        Args:
            kind: What its data is for.
            name: Of its location, where there are several.
            circumstances: What it is made for.

        Raises:
            ConfigError: If there is no such location.
        """
        names = self._options.names(kind) if kind in get_args(Kind) else []
        if name not in names:
            raise ConfigError(
                f"replay: `kind` is {kind!r} and `name` is {name!r}, must be of data that was "
                f"given; {kind} has {', '.join(map(repr, names)) or 'none'}"
            )
        play = self._playing(kind, circumstances)
        play = replace(play, num_workers=0, prefetch=0, pin_memory=False)
        store = self._opened(kind)[names.index(name)]
        play = replace(play, name=_loader_of(kind, name))
        return Player(store, self._policy(kind, circumstances), play)

    def _named(self, play: PlayOptions, kind: Kind, name: str | None) -> PlayOptions:
        see = None if self._see is None else functools.partial(self._see, kind, name)
        return replace(play, see=see, name=_loader_of(kind, name))

    def _policy(self, kind: Kind, circumstances: Circumstances) -> Policy:
        options, evaluates = self._options, kind != "train"
        batching = options.batching
        if evaluates and options.eval_batching is not None:
            batching = options.eval_batching
        policy = resolve_policy(batching)
        if evaluates or circumstances.frozen:
            policy = unshuffled(policy)
        return policy

    def _playing(self, kind: Kind, circumstances: Circumstances) -> PlayOptions:
        options = self._options
        transform = options.transform
        if kind != "train" and options.eval_transform is not None:
            transform = options.eval_transform
        play = replace(
            options.playing(circumstances.world, circumstances.seed),
            transform=transform,
            collator=None if options.collator is None else resolve_collator(options.collator),
            frozen_epoch=circumstances.frozen,
            pin_memory=circumstances.cuda if options.pin_memory is None else options.pin_memory,
        )
        return replace(play, tail="fill") if kind != "train" and play.tail == "repeat" else play

    def _counting(self, circumstances: Circumstances) -> Tally:
        name = f"seqdata-errors-rank{circumstances.world.rank}.jsonl"
        folder = circumstances.folder
        path = None if folder is None else folder / name
        if self._tally is None or self._tally.path != path:
            self._tally = Tally(self._options.max_errors, path, listed_count=False)
        return self._tally

    def shutdown(self) -> None:
        """End all threads."""
        for players in self._players.values():
            for player in players:
                player.shutdown()

    def _opened(self, kind: Kind) -> list[Store]:
        if kind not in self._stores:
            options = self._options
            self._stores[kind] = [
                store_of(place, lengths=lengths, names=options.fields)
                for place, lengths in zip(
                    options.locations(kind), options.lengths_of(kind), strict=True
                )
            ]
        return self._stores[kind]


def _loader_of(kind: Kind, name: str | None) -> str:
    return kind if name is None else f"{kind}/{name}"
