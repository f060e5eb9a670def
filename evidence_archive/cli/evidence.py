"""``evidence-archive evidence``: bundles for somebody else, who verifies them anywhere."""

from pathlib import Path
from typing import Annotated

import typer

from evidence_archive.cli.inspect import new_file
from evidence_archive.cli.opening import CustodyAccess, with_options
from evidence_archive.cli.options import Json
from evidence_archive.cli.proofs import KeyLine, named_file, verifier
from evidence_archive.cli.render import counted, emit_json, say, table
from evidence_archive.model import format_time

__all__ = ["register"]

_STORE = "--url sqlite:///evidence.db --keys evidence.keys --org north-clinic --subject triage-agent"


def register(app: typer.Typer) -> None:
    """Add the ``evidence`` commands."""
    group = typer.Typer(
        help="Export evidence bundles, and verify them anywhere.",
        epilog="Example: evidence-archive evidence verify bundle.zip --key log.key",
        rich_markup_mode=None,
    )
    group.callback()(_evidence)
    group.command("export", epilog=f"Example: evidence-archive evidence export case-4711 r3 {_STORE} --out b.zip")(
        _export
    )
    group.command("verify", epilog="Example: evidence-archive evidence verify bundle.zip --key log.key")(_verify)
    app.add_typer(group, name="evidence")


def _evidence() -> None:
    """Export evidence bundles, and verify them anywhere."""


@with_options
def _export(
    *,
    session: Annotated[str, typer.Argument(metavar="SESSION", help="Session id.", show_default=False)],
    result_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Result ID, such as r3; without it all of the session.")
    ] = None,
    access: CustodyAccess,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="New file (mode 0600).", show_default=False)
    ],
    without_original: Annotated[
        bool, typer.Option("--without-original", help="The history only: no content and no key.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write an original, or all of a session, with its proofs into a zip file.

    Whoever gets the file verifies it with the log's public key, and needs no database. It holds the original in the
    clear, and the key that opens its envelope: keep it as you would keep the original.
    """
    with new_file(out) as file, access.custody() as custody:
        assert file is not None  # noqa: S101 - narrows the type: there is a path
        exported = custody.export(file, session, result_id, include_original=not without_original)
        key = custody.key()
    if as_json:
        emit_json({"out": str(out), "key": key, "exported": exported})
        return
    entries = counted(exported.entries, "entry of the log", "entries of the log")
    say(
        f"Wrote {counted(len(exported.originals), 'original')} and {entries} with their proofs to {out}.",
        "Whoever is to verify it needs this public key, from you and not from the file:",
        key,
    )


def _verify(
    *,
    path: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The zip file.", show_default=False)],
    key: KeyLine,
    as_json: Json = False,
) -> None:
    """Verify an evidence bundle, with the public key alone.

    Every proof, every digest and every seal in it is checked; exit 0 means that all of it is what the log says.
    """
    from evidence_archive.evidence import verify_bundle

    with named_file(path) as file:
        bundle = verify_bundle(file, verifier(key))
    if as_json:
        emit_json({"verified": True, "bundle": bundle})
        return
    heads = ("id", "state", "tool", "observed", "bytes", "sha256 of the original")
    rows = [
        (one.id, one.state, one.tool, format_time(one.observed_at_us), one.size_bytes, one.sha256)
        for one in bundle.results
    ]
    table(f"{bundle.org}, session {bundle.session_id}", heads, rows, numbers=[4])
    table(
        "",
        ("entry", "time", "event", "subject"),
        [(one.seq, format_time(one.time_us), one.event, one.subject) for one in bundle.entries],
    )
    originals = sum(one.sha256 is not None for one in bundle.results)
    say(
        f"VERIFIED: {counted(originals, 'original')} and {counted(len(bundle.entries), 'entry', 'entries')}, under "
        f"the signed head of {counted(bundle.checkpoint.size, 'entry', 'entries')}."
    )
