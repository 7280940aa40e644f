"""Small datasets for first steps, docs and tests: one call each, offline.

A function whose name begins with "load" returns real data that comes with the package; one whose
name begins with "make" generates data, the same for the same seed. Sequences are returned as a
store, tables as a pandas DataFrame.
"""

from seqdata.datasets.generate import make_documents, make_flip_flops, make_speech
from seqdata.datasets.japanese_vowels import load_japanese_vowels
from seqdata.datasets.sensors import make_recordings
from seqdata.datasets.tables import make_events, make_series

__all__ = [
    "load_japanese_vowels",
    "make_documents",
    "make_events",
    "make_flip_flops",
    "make_recordings",
    "make_series",
    "make_speech",
]
