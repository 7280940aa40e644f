"""Milliseconds from a saved state to the next batch, and whether it is the right one."""

from __future__ import annotations

import time
from collections import Counter
from itertools import islice
from typing import Any

from peers.asking import Ask
from samples import BATCH

from bench_set.rows import OURS, Aim, Answer, Bench
from bench_set.server import LeftOut, Room

SHARES = (1, 50, 99)
COMPARED = 3  # batches after the state


def save(room: Room, ask: Ask, total: int) -> list[tuple[Any, list[Any]]] | None:
    """Return states at the shares of an epoch, each with the batches that come next."""
    reading = room.peer.read(ask)
    if reading.save is None:
        return None
    batches, found, taken = iter(reading.loader), [], 0
    try:
        for share in SHARES:
            at = max(1, total * share // 100)
            for _ in islice(batches, at - taken):
                pass
            state = reading.save()
            found.append((state, [_keep(batch) for batch in islice(batches, COMPARED)]))
            taken = at + COMPARED
    finally:
        reading.close()
    return found


def _keep(batch: Any) -> tuple[Any, Any]:
    values, lengths = batch
    return values[:, 0].tolist(), lengths.tolist()  # begin and length of each row


def load(room: Room, ask: Ask, expected: list[Any]) -> tuple[float, bool]:
    """Return milliseconds to the first batch, and whether the next batches are those expected."""
    began = time.perf_counter()
    reading = room.peer.read(ask)
    batches = iter(reading.loader)
    first = next(batches)
    taken = (time.perf_counter() - began) * 1e3
    found = [_keep(first), *(_keep(batch) for batch in islice(batches, COMPARED - 1))]
    reading.close()
    return taken, found == expected


def measure(bench: Bench) -> Answer:
    """Save and load with each loader that can."""
    answer = Answer("ms to the first batch")
    saved: dict[str, Any] = {}
    servers = bench.prepare("S")
    count = len(bench.samples("S").offsets) - 1
    for module, server in servers.items():
        bench.say(f"resume: {server.peer.title}")
        try:
            found = server.ask(save, bench.ask_for("S", module, seed=1), count // BATCH - COMPARED)
        except LeftOut as error:
            answer.left_out[server.peer.title] = str(error)
            continue
        if found is None:
            answer.left_out[server.peer.title] = "does not offer it"
        else:
            saved[module] = found
    for _ in range(bench.rounds):
        for share_at, share in enumerate(SHARES):
            for module, states in saved.items():
                _load_once(bench, answer, module, share, states[share_at])
    mine = [answer.find(f"at {share} %", OURS) or 0.0 for share in SHARES]
    found = ", ".join(f"{value:.0f}" for value in mine) + " ms"
    is_met = max(mine) <= 100
    answer.aims.append(Aim("resume within 100 ms at 1, 50 and 99 %", found, is_met))
    answer.aims.append(_resume_on_two_ranks(bench))
    return answer


def _load_once(bench: Bench, answer: Answer, module: str, share: int, saved: Any) -> None:
    server, (state, expected) = bench.servers[module], saved
    row = answer.row(f"at {share} %", server.peer.title)
    try:
        ask = bench.ask_for("S", module, seed=1, state=state)
        taken, is_right = server.ask(load, ask, expected)
    except LeftOut as error:
        answer.left_out[f"{server.peer.title}: at {share} %"] = str(error)
        return
    row.values.append(taken)
    if not is_right:
        row.note = "continues with other batches than the run that was not stopped"


def _resume_on_two_ranks(bench: Bench) -> Aim:
    """Stop one process in the middle of an epoch, continue with two, count what came."""
    from seqdata import Bucketed, Loader, World

    def make(rank: int, size: int) -> Loader:
        store, policy = str(bench.folder("S", "ours")), Bucketed(BATCH, balance_ranks=2)
        return Loader(store, policy, world=World(rank, size), seed=1)

    whole = make(0, 1)
    half = len(whole) // 2
    came: Counter[str] = Counter()
    for batch in islice(whole, half):
        came.update(batch.ids)
    state = whole.state_dict()
    for rank in range(2):
        loader = make(rank, 2)
        loader.load_state_dict(state)
        for batch in loader:
            weights = batch.weight.tolist()
            came.update(name for name, weight in zip(batch.ids, weights, strict=True) if weight)
    count = len(bench.samples("S").offsets) - 1
    twice = sum(times > 1 for times in came.values())
    found = f"{count - len(came)} lost, {twice} repeated, of {count:,}"
    text = "stopped at 50 % on 1 rank, continued on 2: every sequence once"
    return Aim(text, found, len(came) == count and not twice)
