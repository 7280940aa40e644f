"""Worker processes that read and transform the columns of batches."""
