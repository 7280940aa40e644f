"""Reading what others wrote: Arrow, Feather and Parquet files, as they lie."""
