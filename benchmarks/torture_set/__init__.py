"""Parts of the torture set: its truth, its judge, its cases, and a reader per library."""
