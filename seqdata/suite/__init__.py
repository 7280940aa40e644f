"""DataModules by kind of work: thin, final subclasses of ``SequenceDataModule``.

Each turns arguments in the words of its field into those of ``SequenceDataModule``, which could be
written by hand: every one of them is a value that YAML can hold.
"""
