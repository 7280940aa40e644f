"""What the torture set is made of: its truth, its judge, its cases, and a reader per library."""
