"""``python -m fuse``: the command line, where the ``fuse`` command is not on the path."""

from fuse.cli.main import main

main()
