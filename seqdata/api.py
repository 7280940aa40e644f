"""From what a user names to objects: locations to stores, names to policies and collators.

The one place that composes a plugin host for a process, when a name is first needed; every function
takes another host as an argument. Place in the flow: the first step of every run. Reads: locations
and names. Makes: stores, policies, collators.
"""

from seqdata.default_host import default_host
from seqdata.detect import LocationLike, detect_backend
from seqdata.open_location import find_opener
from seqdata.required_members import POLICY_MEMBERS, STORE_MEMBERS
from seqdata.resolve import CollatorLike, resolve_collator, resolve_policy
from seqdata.resolve_store import is_map_style, open_store, resolve_store
from seqdata.resolve_writer import write_store

__all__ = [
    "POLICY_MEMBERS",
    "STORE_MEMBERS",
    "CollatorLike",
    "LocationLike",
    "default_host",
    "detect_backend",
    "find_opener",
    "is_map_style",
    "open_store",
    "resolve_collator",
    "resolve_policy",
    "resolve_store",
    "write_store",
]
