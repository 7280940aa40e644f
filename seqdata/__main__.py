"""``python -m seqdata`` is the ``seqdata`` command."""

from seqdata.cli.app import main

if __name__ == "__main__":
    main()
