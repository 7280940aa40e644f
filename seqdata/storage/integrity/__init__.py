"""Checksums: how they are made, when they are looked at, and a look at all of them."""
