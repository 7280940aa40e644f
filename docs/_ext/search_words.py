"""Words by which users search, as entries of the index of the page that they need."""

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

WORDS = {
    "get-started/install": "pip install",
    "get-started/quickstart": "variable length, tutorial",
    "guides/data/dataset-collate-fn": "collate_fn, torch dataset, dataloader",
    "guides/data/event-logs": "clickstream, patients",
    "guides/data/hdf5-zarr": "h5py, hdf5, zarr, netcdf, xarray",
    "guides/data/numpy": "npy, npz, numpy, memmap, mmap_mode, savez",
    "guides/data/lists-arrays-dataframes": "pandas, polars, numpy",
    "guides/data/parquet-hugging-face": "huggingface, hugging face, parquet, datasets",
    "guides/data/s3-gcs-http": "s3, gcs, azure, bucket, streaming",
    "guides/data/remote-settings": "minio, cache, retry, endpoint",
    "guides/data/text": "tokenizer, jsonl",
    "guides/data/token-files": "megatron, nanogpt, mosaicml, litdata",
    "guides/data/webdataset": "webdataset, tar",
    "guides/batching/bucketing": "bucketing, bucket, padding, variable length, batch sampler, "
    "dynamic batching, max tokens, token budget",
    "guides/batching/forecasting": "time series, forecasting",
    "guides/batching/layouts": "packedsequence, pack_padded_sequence, nested tensor, varlen",
    "guides/batching/speech": "asr, ctc, speech",
    "guides/batching/transformers": "transformer, attention mask, flash attention, packing, "
    "cu_seqlens",
    "guides/batching/windows": "sliding window, random crop",
    "guides/sampling/class-imbalance": "class imbalance, weightedrandomsampler, oversampling",
    "guides/sampling/curriculum": "curriculum learning",
    "guides/sampling/mix-datasets": "interleave, mixture, concatdataset, combinedloader",
    "guides/sampling/sample-by-loss": "hard example mining, importance sampling",
    "guides/sampling/two-datasets": "semi-supervised, combinedloader",
    "guides/training/lightning": "lightning, pytorch lightning, datamodule",
    "guides/training/multi-gpu": "ddp, multi-gpu, distributedsampler, gradient accumulation",
    "guides/training/many-machines": "ray, torchrun, fsdp, multi-node",
    "guides/training/normalize": "normalize, standardize, mean and std",
    "guides/training/predict": "predict, inference",
    "guides/training/resume": "resume mid-epoch, resume, checkpoint, stateful dataloader",
    "guides/training/stateful-rnn": "tbptt, truncated bptt, hidden state, stateful lstm",
    "guides/training/transforms": "augmentation, tokenize",
    "guides/training/workers": "num_workers, slow dataloader",
    "guides/trouble/bad-samples": "corrupt, checksum, bad samples, skip",
    "guides/trouble/ddp-hangs": "ddp hang, ddp hangs, nccl timeout, deadlock",
    "guides/trouble/errors": "error message, exception",
    "guides/trouble/error-details": "error details, which sample",
    "guides/trouble/loss-spikes": "loss spike, nan, nan loss",
    "guides/trouble/out-of-memory": "out of memory, oom, cuda out of memory",
    "guides/trouble/preemption": "slurm, preemption, sigterm, spot instance",
    "guides/trouble/replay": "debug, reproduce a batch",
    "benchmarks/index": "benchmark, benchmarks, performance, throughput",
    "about/shuffling": "shuffle, shuffling",
}  # page -> words, separated by commas


def add_words(_app: Sphinx, page: str, source: list[str]) -> None:
    """Add the words of a page to the index, at its title."""
    if page in WORDS:
        entries = ", ".join(
            f"! {word.strip()}" for word in WORDS[page].split(",")
        )
        title, _, rest = source[0].partition("\n")
        source[0] = f"{title}\n\n```{{index}} {entries}\n```\n{rest}"


def write_again(_app: Sphinx, _env: BuildEnvironment) -> list[str]:
    """Return the pages with words: the index of a page that is not written again loses them."""
    return list(WORDS)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("source-read", add_words)
    app.connect("env-updated", write_again)
    return {"parallel_read_safe": True}
