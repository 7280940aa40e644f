"""The batches of one epoch, one after the other; an error takes the place of one batch.

A generator that has raised is at its end: a loop that catches the error and asks again would take
what it had for the whole epoch. Here the next ``next()`` goes on with the batch behind. Place in
the flow: what makes batches below, the iterations of loaders above. Makes: batches.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

from seqdata.errors import ConfigError, IncompleteEpochError, PlanError
from seqdata.sharing import RankPlan

_OF_ALL = (ConfigError, PlanError)  # what would fail in every batch is raised again


class Played(Iterator[Any]):
    """The batches of a rank's share of one epoch.

    Nothing happens before the first ``next()``. After an error the next ``next()`` goes on with the
    batch behind the one that could not be made. An error that is not of one batch is raised again,
    and a batch that Ctrl-C interrupted is made again.

    Args:
        share: Returns the share.
        source: Makes the batches of a share from a step on.
        epoch: For messages.

    Attributes:
        step: The step whose batch comes next; -1 before the first ``next()``.
    """

    def __init__(
        self,
        share: Callable[[], RankPlan],
        source: Callable[[RankPlan, int], Iterator[Any]],
        epoch: int,
    ) -> None:
        self.step = -1
        self._share_of = share
        self._source_of = source
        self._epoch = epoch
        self._share: RankPlan | None = None
        self._source: Iterator[Any] | None = None
        self._failed: IncompleteEpochError | None = None  # there is nothing to go on with

    def __next__(self) -> Any:
        """Return the next batch.

        Raises:
            IncompleteEpochError: If the batches end before the plan does.
            Exception: What making the batch has raised.
        """
        try:
            source = self._source
            batch = next(self._begun() if source is None else source)
        except StopIteration:
            self._check_end()
            raise
        except BaseException as error:
            self._source = None
            self._pass(error)
            raise
        self.step += 1
        return batch

    def close(self) -> None:
        """End the thread and the workers that make batches; there is nothing to ask for then."""
        source, self._source = self._source, None
        if isinstance(source, Generator):
            source.close()

    def _begun(self) -> Iterator[Any]:
        if self._failed is not None:
            raise self._failed.with_traceback(None)
        if self._share is None:
            self._share = self._share_of()
            self.step = self._share.first_step
        self._source = self._source_of(self._share, self.step)
        return self._source

    def _pass(self, error: BaseException) -> None:
        """Take note of an error in place of a batch."""
        if isinstance(error, IncompleteEpochError):
            self._failed = error
        elif isinstance(error, Exception) and not isinstance(error, _OF_ALL):
            self.step += 1

    def _check_end(self) -> None:
        """Raise IncompleteEpochError if batches are missing at the end."""
        share = self._share
        if share is None or self.step == len(share):
            return
        self._source = None
        self._failed = IncompleteEpochError(
            f"loader: {self.step - share.first_step} batches of epoch {self._epoch} were "
            f"delivered, {len(share) - share.first_step} were planned; it was shut down while it "
            "played"
        )
        raise self._failed
