"""All commands as one program, and what becomes of whatever they raise."""

import contextlib
import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from evidence_archive.cli import (
    backup,
    custody,
    demo,
    evidence,
    faults,
    inspect,
    keys,
    ledger,
    policy,
    proofs,
    replay,
    trace,
    verify,
)
from evidence_archive.cli.render import NotDone, emit_json, one_line
from evidence_archive.errors import EvidenceArchiveError

__all__ = ["app", "run"]

INTERRUPTED = 130
BROKEN_PIPE = 141
UNEXPECTED = 70
DEBUG_VARIABLE = "EVIDENCE_ARCHIVE_DEBUG"
USAGE = 2

_ARGUMENT = re.compile(r"(?<!, )\bobjects=(?!\.\.\.)")
"""How a sentence names the argument of ``Archive.open`` that is an option here."""

_MAKING = ", or let a program create it"
"""What a sentence says to programs; no command makes a database in passing."""

_UsageProblem: type[Exception] = typer.BadParameter.__mro__[2]  # click's root, wherever this typer keeps click

app = typer.Typer(
    name="evidence-archive",
    help="A reversible archive for the tool results of LLM agents.",
    epilog="Start with: evidence-archive demo",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"evidence-archive {version('evidence-archive')}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """A reversible archive for the tool results of LLM agents."""
    if context.invoked_subcommand is None:
        print(context.get_help())


for _module in (
    demo,
    replay,
    inspect,
    trace,
    proofs,
    verify,
    evidence,
    ledger,
    custody,
    keys,
    backup,
    policy,
    faults,
):
    _module.register(app)


def run(given: Sequence[str]) -> int:
    """Run one command and give its exit code.

    Args:
        given: the arguments, without the program's name.

    Raises:
        KeyboardInterrupt: somebody pressed Ctrl-C.
    """
    if sys.stdout is None:
        return USAGE  # nowhere to put a result: nothing is done, and nothing is granted
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(list(given), prog_name="evidence-archive", standalone_mode=False)
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # typer turns the first into the second
        # Whoever read our output went away; nothing more can be said, not even by the interpreter's own flush.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception as error:
        kind, message, code = _problem(error)
        if code == UNEXPECTED and os.environ.get(DEBUG_VARIABLE):
            raise
        if "--json" in given:
            with contextlib.suppress(OSError, ValueError):  # perhaps it is stdout that cannot be written
                emit_json({"error": {"type": kind, "message": message, "exit_code": code}})
                sys.stdout.flush()
        print(f"Error: {one_line(message)}", file=sys.stderr)
        return code
    if code == INTERRUPTED:
        raise KeyboardInterrupt  # typer turned it into its exit code
    return code if isinstance(code, int) else 0


def _problem(error: Exception) -> tuple[str, str, int]:
    """What to call an error, the sentence for it, and the exit code."""
    kind = type(error).__name__
    if isinstance(error, EvidenceArchiveError):
        words = str(error).replace(_MAKING, "")
        return kind, _ARGUMENT.sub("--objects", words), error.exit_code
    if isinstance(error, _UsageProblem):
        return "UsageError", _words_of(error), USAGE
    if isinstance(error, NotDone):
        return kind, str(error), INTERRUPTED
    if isinstance(error, OSError):
        reason = error.strerror or kind
        return "OSError", f"The system refused: {reason}. Check paths, permissions and space.", 1
    return kind, f"Unexpected {kind}: set {DEBUG_VARIABLE}=1 to see where, and report it.", UNEXPECTED


def _words_of(problem: Exception) -> str:
    """What is wrong with the usage, and whose help says what is right."""
    say = getattr(problem, "format_message", None)
    words = str(say() if callable(say) else problem).strip()
    words = words if words.endswith((".", "?")) else f"{words}."
    command = getattr(getattr(problem, "ctx", None), "command_path", "evidence-archive")
    return f"{words} See '{command} --help'."
