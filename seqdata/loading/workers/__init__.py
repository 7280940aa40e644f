"""Worker processes: make columns elsewhere, lose nothing, leave nothing behind."""
