"""The former name of the conformance kit, which is the distribution ``seqdata-testing``."""

raise ModuleNotFoundError(
    "`seqdata.testing` is a distribution of its own, `seqdata-testing`. Run "
    '`pip install "lightning-seqdata[testing]"`, then import `seqdata_testing` instead, or run '
    "`python -m seqdata_testing.faults`.",
    name="seqdata.testing",
)
