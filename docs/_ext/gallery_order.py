"""The order of the gallery: first what a new reader asks, then what fewer need."""

ORDER = (
    "padding_by_policy",
    "your_lengths",
    "batch_layouts",
    "resume",
    "equal_steps",
    "same_run",
    "carried_state",
    "tbptt_lanes",
    "packed_documents",
    "forecast",
    "speech",
    "sampling_rates",
    "rare_class",
    "mix_datasets",
    "curriculum",
    "loss_spike",
    "flipped_bit",
)


class ReaderOrder:
    """A sort key of sphinx-gallery, which makes one for each folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, name: str) -> int:
        """Return the place of a file.

        Raises:
            ValueError: If ``ORDER`` lacks the file.
        """
        return ORDER.index(name.removeprefix("plot_").removesuffix(".py"))
