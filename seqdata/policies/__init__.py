"""Batching policies, one file each: frozen dataclasses that see lengths and values per sequence."""
