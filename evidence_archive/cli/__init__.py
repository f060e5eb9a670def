"""The command line: ``evidence-archive``.

Results go to stdout, errors to stderr as one sentence. With ``--json`` stdout holds exactly one JSON document, also
when the command fails. The exit code is 0, 2 for wrong usage, 130 when interrupted, else that of the error.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evidence_archive.cli.program import app

__all__ = ["app", "main"]

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and give its exit code; nothing is raised and no traceback is printed.

    Args:
        arguments: without the program's name; ``None`` takes those of the process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        from evidence_archive.cli.program import run  # loading it takes long enough to be interrupted

        return run(given)
    except KeyboardInterrupt:
        words = "Interrupted: nothing is half done."
        if "--json" in given:
            print(f'{{"error": {{"type": "Interrupted", "message": "{words}", "exit_code": {INTERRUPTED}}}}}')
        print(f"Error: {words}", file=sys.stderr)
        return INTERRUPTED


def __getattr__(name: str) -> Any:
    if name == "app":
        from evidence_archive.cli import program

        return program.app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
