"""Names sequences of a run: their keys, and where they are stored.

A run's records have numbers of sequences in their store. The run file says which stores these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from seqdata.errors import SeqDataError
from seqdata.protocols import Store, SupportsParts
from seqdata.runs.replay import open_unplanned
from seqdata.runs.run_file import NAME, RunFile
from seqdata.storage.data_location import DataLocation
from seqdata.storage.views import locate_sequence


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunSequences:
    """The training sequences of a run, by part and number.

    Attributes:
        stores: Part -> store; None for a run without parts. Empty if the data cannot be opened.
        run_file: The path of the run file; None if there is none.
        problem: Why the data cannot be opened; empty if it can.
    """

    stores: Mapping[str | None, Store] = field(default_factory=dict)
    run_file: Path | None = None
    problem: str = ""

    @classmethod
    def open(cls, folders: list[Path], backend: str | None = None) -> Self:
        """Return the sequences of the first folder with a run file; nothing is read of them.

        Args:
            folders: Folders of run files.
            backend: Name of the backend that opens the data; None: found from its location.
        """
        path = next((folder / NAME for folder in folders if (folder / NAME).is_file()), None)
        if path is None:
            return cls(problem=f"{folders[0] / NAME} does not exist")
        try:
            store = open_unplanned(RunFile.read(path), path, "train", None, backend).store
        except (SeqDataError, OSError) as error:
            return cls(run_file=path, problem=str(error).partition("\n")[0])
        if isinstance(store, SupportsParts):
            return cls(stores=dict(store.parts.items()), run_file=path)
        return cls(stores={None: store}, run_file=path)

    def find_key(self, part: str | None, number: int) -> str | None:
        """Return the key of a sequence; None if it is unknown."""
        store = self.stores.get(part)
        return None if store is None else store.keys([number])[0]

    def find_location(self, part: str | None, number: int) -> DataLocation | None:
        """Return where a sequence is stored; None if it is unknown."""
        store = self.stores.get(part)
        return None if store is None else locate_sequence(store, number)
