"""The backend as an object: it opens, and makes indexes.

Place in the flow: the plugin offers one, the user may make others with options. Reads: locations.
Makes: stores.
"""

from __future__ import annotations

from dataclasses import dataclass

from seqdata_webdataset.opening import open_webdataset
from seqdata_webdataset.schema import Schema
from seqdata_webdataset.shards import Location
from seqdata_webdataset.store import WebDatasetStore


@dataclass(frozen=True, slots=True, kw_only=True)
class WebDataset:
    """Tar shards as the webdataset library writes them.

    Attributes:
        schema: Extension -> what it holds; see ``open_webdataset``.
        index: ``"build"``: make the index of shards that have none.
        keys: ``unique`` or ``by_shard``.
    """

    schema: Schema | None = None
    index: str | None = None
    keys: str = "unique"

    def __call__(self, location: Location, *, verify: str | None = None) -> WebDatasetStore:
        """Open shards; see ``open_webdataset``."""
        return open_webdataset(
            location, verify=verify, schema=self.schema, index=self.index, keys=self.keys
        )
