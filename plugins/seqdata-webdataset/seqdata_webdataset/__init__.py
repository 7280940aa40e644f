"""WebDataset tar shards for seqdata: indexed once, then samples and slices are read in place."""

from seqdata_webdataset.backend import WebDataset as WebDataset
from seqdata_webdataset.backend import index_shards as index_shards
from seqdata_webdataset.backend import open_webdataset as open_webdataset
from seqdata_webdataset.backend import write_webdataset as write_webdataset
