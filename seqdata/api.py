"""From what a user names to objects: locations to stores, names to policies and collators.

The one place that composes a plugin host for a process, when a name is first needed; every function
takes another host as an argument. Place in the flow: the first step of every run. Reads: locations
and names. Makes: stores, policies, collators.
"""

from seqdata.default_host import default_host
from seqdata.detect import Location, form_of
from seqdata.open_location import opener_of
from seqdata.required_members import POLICY_MEMBERS, STORE_MEMBERS
from seqdata.resolve import CollatorLike, resolve_collator, resolve_policy
from seqdata.resolve_store import is_map_style, open_store, store_of
from seqdata.resolve_writer import write_store

__all__ = [
    "POLICY_MEMBERS",
    "STORE_MEMBERS",
    "CollatorLike",
    "Location",
    "default_host",
    "form_of",
    "is_map_style",
    "open_store",
    "opener_of",
    "resolve_collator",
    "resolve_policy",
    "store_of",
    "write_store",
]
