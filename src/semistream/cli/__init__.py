"""The command `semistream`: one file per command, `render.py` alone prints.

Exit codes: 0 all is well, 1 a check failed, 2 the call or its input was wrong. Results go to
standard output, progress and errors to standard error.
"""

from semistream.cli.app import main

__all__ = ["main"]
