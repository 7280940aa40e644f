"""Mesh of processes with the axes data and model, which sends values between them.

Values are sent over ``torch.distributed``; the link announces each of them first. Place in the
flow: below the engines. Reads: the default process group. Makes: groups, sends and receives.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from seqdata import ConfigError
from seqdata_models.parallel.link import Link, LinkTimeouts


class Mesh:
    """The processes of the default group as ``data`` replicas of ``size`` stages or parts.

    Processes of one replica have adjacent ranks. Without a process group, the mesh is a single
    process.

    Args:
        size: Number of stages or parts of a replica.
        data: Number of replicas; None: the number of processes divided by ``size``.
        timeouts: Limits of the time that processes wait for each other; None: the defaults.

    Attributes:
        data: Number of replicas.
        replica: Index of the replica of this process, which is its data-parallel coordinate.
        size: Number of stages or parts of a replica.
        position: Index of the stage or part of this process.
        rank: Rank of this process.
        world: Number of processes.

    Raises:
        ConfigError: If ``size`` or ``data`` is not a positive integer, or the number of processes
            is not ``data * size``.
    """

    def __init__(
        self, size: int, data: int | None = None, *, timeouts: LinkTimeouts | None = None
    ) -> None:
        world = dist.get_world_size() if dist.is_initialized() else 1
        rank = dist.get_rank() if dist.is_initialized() else 0
        check_mesh(size, data, world)
        self.data, self.size = world // size, size
        self.replica, self.position = divmod(rank, size)
        self.rank, self.world = rank, world
        self._works: list[tuple[Any, Tensor]] = []
        self._counts: dict[str, int] = {}
        self._place = "start"
        if world == 1:
            return
        kind = "cuda" if dist.get_backend() == "nccl" else "cpu"
        mesh = init_device_mesh(kind, (self.data, size), mesh_dim_names=("data", "model"))
        self._groups = {"data": mesh.get_group("data"), "model": mesh.get_group("model")}
        self._link = Link(rank, world, timeouts or LinkTimeouts())

    @property
    def group(self) -> Any:
        """Process group of the stages of this replica."""
        return self._groups["model"]

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Report an exception in the block to every process, which then raises it too.

        Raises:
            BaseException: The error of this process, with a note that names the place, or the error
                of another process that failed first.
        """
        try:
            with self.computing(is_computing=True):
                yield
        except BaseException as error:
            if self.world > 1:
                self._link.fail(error, f"{self.describe()}, {self._place}")
            raise

    @contextmanager
    def computing(self, *, is_computing: bool) -> Iterator[None]:
        """Note whether this process computes in the block or waits for other processes.

        A process that should compute but uses no processor time stands still; all processes end.
        """
        with contextlib.ExitStack() as stack:
            if self.world > 1:
                stack.enter_context(self._link.computing(is_computing=is_computing))
            yield

    def describe(self, rank: int | None = None) -> str:
        """Return the name of a process, with its rank, replica and stage, for errors.

        Args:
            rank: Rank of the process; None: this process.
        """
        replica, position = divmod(self.rank if rank is None else rank, self.size)
        number = self.rank if rank is None else rank
        return f"rank {number} (replica {replica}, stage {position})"

    def at(self, place: str) -> None:
        """Note the current work of this process, for errors.

        Args:
            place: A few words, such as ``forward of chunk 3``.

        Raises:
            BaseException: The error of another process, if one has failed.
        """
        self._place = place
        if self.world > 1:
            self._link.place = f"{self.describe()}, {place}"
            self._link.raise_failure()

    def send(self, value: Tensor, position: int, kind: str) -> None:
        """Send a tensor to a stage of this replica, without waiting.

        Args:
            value: Tensor whose shape and dtype the receiver knows.
            position: Position of the receiver.
            kind: Name of a kind of values; values of one kind arrive in the order of sending.

        Raises:
            PeerFailedError: If rank 0 is gone.
            BaseException: The error of another process, if one has failed.
        """
        target = self.replica * self.size + position
        value = value.detach().contiguous()
        self._works = [(work, tensor) for work, tensor in self._works if not work.is_completed()]
        work = dist.isend(value, target, group=self._groups["model"], tag=_tag(kind))
        self._works.append((work, value))
        self._link.notify(self._key(self.rank, target, kind))

    def receive(self, value: Tensor, position: int, kind: str) -> Tensor:
        """Fill a tensor with the next value of a stage of this replica, and return it.

        Args:
            value: Contiguous tensor of the shape and dtype of the sent value.
            position: Position of the sender.
            kind: Name of the kind of values, as in ``send``.

        Raises:
            PeerFailedError: If the sender is gone, or sends nothing in time.
            BaseException: The error of another process, if one has failed.
        """
        source = self.replica * self.size + position
        key = self._key(source, self.rank, kind)
        event = f"{self.describe(source)} to send {kind}; at {self._place}"
        self._link.wait(key, event, source)
        self._link.forget(key)  # nobody else reads it
        with self.computing(is_computing=False):
            dist.recv(value, source, group=self._groups["model"], tag=_tag(kind))
        return value

    def flush(self) -> None:
        """Wait until all sends of this process are complete."""
        with self.computing(is_computing=False):
            for work, _ in self._works:
                work.wait()  # ends: within the group's timeout
        self._works.clear()

    def barrier(
        self, name: str, patience: float = math.inf, ranks: Sequence[int] | None = None
    ) -> None:
        """Wait until all processes, or those of ``ranks``, are here.

        Args:
            name: Name of the next collective operation, for errors.
            patience: Seconds after which a warning names the process that is not here.
            ranks: Ranks of the participating processes, always the same for a name; None: all.

        Raises:
            PeerFailedError: If a process is gone, or does not come in time.
            BaseException: The error of another process, if one has failed.
        """
        if self.world == 1:
            return
        number = self._count(name)
        self._link.notify(f"{name}/{number}/{self.rank}")
        if number > 2:  # all have come to the barrier before this one, so all have left that one
            self._link.forget(f"{name}/{number - 2}/{self.rank}")
        for rank in range(self.world) if ranks is None else ranks:
            event = f"{self.describe(rank)} to come to: {name}"
            self._link.wait(f"{name}/{number}/{rank}", event, rank, patience)

    def all_reduce(self, value: Tensor, axis: str) -> Tensor:
        """Sum a tensor in place over an axis of the mesh, and return it.

        All processes along the axis must call it: for ``data``, the processes with the same
        position in each replica; for ``model``, the processes of one replica.

        Args:
            value: Tensor, of the same shape on all these processes.
            axis: ``data`` or ``model``.
        """
        ranks = range(self.position, self.world, self.size)
        if axis == "model":
            ranks = range(self.replica * self.size, (self.replica + 1) * self.size)
        if self.world > 1 and len(ranks) > 1:
            self.barrier(f"sum over {axis}", ranks=ranks)
            with self.computing(is_computing=False):
                dist.all_reduce(value, group=self._groups[axis])
        return value

    def broadcast(self, value: Tensor, position: int) -> Tensor:
        """Copy a tensor from one stage of each replica to the others, in place, and return it.

        All processes must call it.

        Args:
            value: Contiguous tensor, of the same shape on all processes.
            position: Position of the stage that has the values.
        """
        if self.size > 1:
            self.barrier("broadcast")
            source = self.replica * self.size + position
            with self.computing(is_computing=False):
                dist.broadcast(value, source, group=self._groups["model"])
        return value

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all stages of this replica in order; all processes must call it.

        Args:
            value: Value of this process, any picklable object.
        """
        if self.size == 1:
            return [value]
        self.barrier("gather")
        values = [value] * self.size
        with self.computing(is_computing=False):
            dist.all_gather_object(values, value, group=self._groups["model"])
        return values

    def leave(self, error: BaseException) -> None:
        """Report an exception that ends this process to all, unless another was reported before."""
        if self.world > 1:
            self._link.leave(error, f"{self.describe()}, {self._place}")

    def close(self) -> None:
        """End the thread of this process; rank 0 waits until the others have closed or are gone."""
        if self.world > 1:
            self._link.close()

    def _key(self, source: int, target: int, kind: str) -> str:
        name = f"{source}>{target}/{kind}"
        return f"{name}/{self._count(name)}"

    def _count(self, name: str) -> int:
        self._counts[name] = self._counts.get(name, 0) + 1
        return self._counts[name]


def check_mesh(size: int, data: int | None, world: int) -> None:
    """Raise if a number of processes does not make a mesh.

    Args:
        size: Number of stages or parts of a replica.
        data: Number of replicas; None: as many as the processes allow.
        world: Number of processes.

    Raises:
        ConfigError: If ``size`` or ``data`` is not a positive integer, or their product is not the
            number of processes.
    """
    for name, value in (("stages or parts", size), ("data", 1 if data is None else data)):
        if type(value) is not int or value < 1:
            raise ConfigError(
                f"parallel: `{name}` must be an integer of at least 1, but is {value!r}."
            )
    needed = size * (data or max(1, world // size))
    if needed != world:
        replicas = "" if data is None else f"{data} x "
        raise ConfigError(
            f"parallel: the number of processes must be a multiple of {replicas}{size}, but is "
            f"{world}. Start {needed} processes."
            if data is None
            else f"parallel: the number of processes must be {replicas}{size} (data x stages or "
            f"parts), but is {world}. Start {needed} processes."
        )


def _tag(kind: str) -> int:
    return sum(kind.encode())
