"""``evidence-archive keys``: make the keys that everything else rests on."""

from pathlib import Path
from typing import Annotated

import typer

from evidence_archive.cli.options import Json
from evidence_archive.cli.render import emit_json, say

__all__ = ["register"]

WARNING = (
    "Losing this file loses everything sealed with it: nobody can recover it, not even we. "
    "Copy it to a safe place now, apart from the database."
)


def register(app: typer.Typer) -> None:
    """Add the ``keys`` commands."""
    group = typer.Typer(
        help="Make key files.", epilog="Example: evidence-archive keys new evidence.keys", rich_markup_mode=None
    )
    group.callback()(_keys)
    group.command("new", epilog="Example: evidence-archive keys new evidence.keys")(_new)
    app.add_typer(group, name="keys")


def _keys() -> None:
    """Make key files."""


def _new(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="File to create; it must not exist yet.", show_default=False)
    ],
    as_json: Json = False,
) -> None:
    """Create a key file (mode 0600) with fresh random keys.

    Losing the file loses everything that was sealed with it.
    """
    from evidence_archive.keys import new_keys

    new_keys(path)
    if as_json:
        emit_json({"path": str(path), "warning": WARNING})
    else:
        say(f"Created {path}.", f"WARNING: {WARNING}")
