"""Checksums: computed while writing, compared while reading, audited as a whole."""
