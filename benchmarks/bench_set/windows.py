"""Microseconds of a batch of 256 windows of 96 + 24 timesteps, of series of 1,913 days."""

from __future__ import annotations

from bench_set.rows import OURS, Aim, Answer, Bench
from bench_set.server import LeftOut, Room
from bench_set.speed import draw

LEAST = 50.0
SETTING = "windows, in process"


def measure(bench: Bench) -> Answer:
    """Draw windows from each loader in turn."""
    answer, opened = Answer("µs per batch"), {}
    for module, server in bench.prepare("W").items():
        bench.say(f"windows: {server.peer.title}")
        try:
            server.ask(Room.start, SETTING, bench.ask_for("W", module))
            server.ask(draw, SETTING, 0.2)
            opened[module] = server
        except LeftOut as error:
            answer.left_out[server.peer.title] = str(error)
    for _ in range(bench.rounds):
        for module, server in list(opened.items()):
            try:
                taken = server.ask(draw, SETTING, 0.1 if bench.quick else 0.6)
            except LeftOut as error:
                answer.left_out[server.peer.title] = str(error)
                del opened[module]
                continue
            answer.row(SETTING, server.peer.title).values.append(taken)
    for server in opened.values():
        server.stop(SETTING)
    mine = answer.find(SETTING, OURS)
    theirs = answer.find(SETTING, "pytorch-forecasting")
    if mine and theirs:
        text = f"windows: at least {LEAST:g}x as fast as pytorch-forecasting"
        answer.aims.append(Aim(text, f"{theirs / mine:.0f}x", theirs / mine >= LEAST))
    return answer
