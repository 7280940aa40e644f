"""Malicious servers: endless bodies, decompression bombs, redirects to another server.

They must not make the client use much memory, or send a secret to another server. Neither would
show in the data, so both are measured here.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from seqdata.storage.remote.options import Remote
from seqdata_testing.faults import network
from seqdata_testing.faults import outcome as outcomes
from seqdata_testing.faults.outcome import Outcome
from seqdata_testing.faults.reading import play_through
from seqdata_testing.faults.targets import FaultTarget
from seqdata_testing.faults.try_damage import loader_of
from seqdata_testing.faults.try_remote import open_served

BODY, BOMB, SENT_ON, SECRET = "endless body", "bomb", "request sent on", "cookie at its server"
"""Events that show that a fault happened."""
_SECRET = "token99"
_PIECE = 1 << 20
_PADDING = bytes(1 << 18)
_UNPACKED = 1 << 29  # bytes of a bomb
_TAKEN = 1 << 27  # bytes that a body or memory may take


class Endless:
    """Send bodies that do not end. Implements ``network.Fault``.

    Expected: an error with the number of requested bytes; the client reads at most some network
    buffers more.

    Args:
        most: Size in bytes after which a body does end, if the client reads it all.

    Attributes:
        bodies: Number of bodies that were begun.
        taken: Number of bytes of the longest body that the client, or the network, has accepted.
    """

    def __init__(self, most: int = 64 << 20) -> None:
        self._most = most
        self.bodies = 0
        self.taken = 0

    def __call__(self, answer: network.Answer, handler: BaseHTTPRequestHandler) -> None:
        """Send the answer, followed by padding without end."""
        if not answer.body:
            network.send(answer, handler)
            return
        self.bodies += 1
        handler.close_connection = True
        network.send(replace(answer, size=None), handler, length=None)
        taken = len(answer.body)
        while taken < self._most:
            try:
                handler.wfile.write(_PADDING)
            except OSError:  # the client has gone
                break
            taken += len(_PADDING)
        self.taken = max(self.taken, taken)


def play_endless(target: FaultTarget, mode: str) -> list[Outcome]:
    """Play a dataset whose shards never end.

    Args:
        target: Dataset to play.
        mode: ``cache`` or ``ranges``.
    """
    fault = Endless(4 * _TAKEN)
    (found,) = _play_with_fault(target, mode, fault)
    left = [f"{fault.taken} bytes of a body taken"] if fault.taken > _TAKEN else []
    return [replace(found, happened={BODY: fault.bodies}, left=(*found.left, *left))]


class Bomb:
    """Send a decompression bomb in place of each body. Implements ``network.Fault``.

    Expected: an error, and no use of much memory.

    Attributes:
        sent: Number of bombs that were sent.
    """

    def __init__(self) -> None:
        packer = zlib.compressobj(9, zlib.DEFLATED, 15)
        head = packer.compress(bytes(_PIECE)) + packer.flush(zlib.Z_FULL_FLUSH)
        piece = packer.compress(bytes(_PIECE)) + packer.flush(zlib.Z_FULL_FLUSH)
        self._body = head + piece * (_UNPACKED // _PIECE)  # alike: nothing before is referred to
        self.sent = 0

    def __call__(self, answer: network.Answer, handler: BaseHTTPRequestHandler) -> None:
        """Send the bomb."""
        if answer.body:
            self.sent += 1
            headers = (*answer.headers, ("Content-Encoding", "deflate"))
            answer = replace(answer, headers=headers, body=self._body)
        network.send(answer, handler)


def play_bomb(target: FaultTarget, mode: str) -> list[Outcome]:
    """Play a dataset whose shards are decompression bombs.

    Args:
        target: Dataset to play.
        mode: ``cache`` or ``ranges``.
    """
    fault = Bomb()
    before = _most_memory()
    (found,) = _play_with_fault(target, mode, fault)
    taken = _most_memory() - before
    left = [f"{taken} bytes of memory taken"] if taken > _TAKEN else []
    return [replace(found, happened={BOMB: fault.sent}, left=(*found.left, *left))]


def _play_with_fault(target: FaultTarget, mode: str, fault: network.Fault) -> list[Outcome]:
    with open_served(target, mode) as (sequences, _, server, store):
        server.fault, server.hits = fault, target.hits
        return [play_through(partial(loader_of, lambda: store, 0), sequences)]


def _most_memory() -> int:
    """Return the peak memory of this process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def play_redirected(target: FaultTarget, mode: str) -> list[Outcome]:
    """Play a dataset whose server requires a cookie, and redirects every request to another one.

    Args:
        target: Dataset to play.
        mode: ``cache`` or ``ranges``.
    """
    root, sequences, open_it = Path("data").resolve(), target.dataset(), target.served
    if open_it is None:
        return [Outcome(what=outcomes.UNAVAILABLE, text=f"{target.name!r} has no `served`")]
    target.write(root, sequences)
    # How often each server was asked, and told the secret.
    first_counts, second_counts = [0, 0], [0, 0]

    def count_request(
        counts: list[int], then: network.Source, request: network.HttpRequest
    ) -> network.Answer:
        counts[0] += 1
        counts[1] += any(_SECRET in value for _, value in request.headers)
        return then(request)

    options = {"client_kwargs": {"cookies": {"key": _SECRET}}}
    far = Remote(how=mode, cache_dir=Path("cache").resolve(), storage_options=options)
    with network.served(partial(count_request, second_counts, network.folder_of(root))) as second:

        def send_on(request: network.HttpRequest) -> network.Answer:
            return network.Answer(302, (("Location", second.url + request.path),))

        with network.served(partial(count_request, first_counts, send_on)) as first:
            opens = partial(open_it, first.url, "first_read", far)
            found = play_through(partial(loader_of, opens, 0), sequences)
    if second_counts[1]:
        text = f"{second_counts[1]} requests told another server the secret"
        found = Outcome(what=outcomes.WRONG, text=text)
    return [replace(found, happened={SENT_ON: second_counts[0], SECRET: first_counts[1]})]
