"""``audit``: the log of an org, its signed heads, and proofs that need nothing but a public key."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from evidence_archive.cli.opening import Access, CustodyAccess, with_options
from evidence_archive.cli.options import Anchors, Json
from evidence_archive.cli.render import counted, emit_json, say, table
from evidence_archive.errors import AuditBrokenError, EvidenceArchiveError, FormatError
from evidence_archive.model import format_time

__all__ = ["KeyLine", "named_file", "register", "verifier"]

DETAIL_CHARS_MAX = 60

_STORE = "--url sqlite:///evidence.db --keys evidence.keys --org north-clinic --subject auditor"

KeyLine = Annotated[
    str,
    typer.Option(
        "--key",
        metavar="LINE",
        envvar="EVIDENCE_ARCHIVE_VERIFIER",
        help="Public key of the log, as 'audit key' prints it, or a file that holds it.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the ``audit`` commands."""
    group = typer.Typer(
        help="Read the audit log, sign its head, prove entries.",
        epilog=f"Example: evidence-archive audit log {_STORE}",
        rich_markup_mode=None,
        no_args_is_help=True,
    )
    group.command("log", epilog=f"Example: evidence-archive audit log {_STORE}")(_log)
    group.command("checkpoint", epilog=f"Example: evidence-archive audit checkpoint {_STORE} --anchor heads.jsonl")(
        _checkpoint
    )
    group.command("reanchor", epilog=f"Example: evidence-archive audit reanchor {_STORE} --anchor heads.jsonl")(
        _reanchor
    )
    group.command("key", epilog=f"Example: evidence-archive audit key {_STORE}")(_key)
    group.command("prove", epilog=f"Example: evidence-archive audit prove case-4711 r3 {_STORE} --out proofs")(_prove)
    group.command(
        "verify-proof", epilog="Example: evidence-archive audit verify-proof r3-7.tlog-proof --key log.key"
    )(_verify_proof)
    group.command(
        "verify-checkpoint", epilog=f"Example: evidence-archive audit verify-checkpoint old.checkpoint {_STORE}"
    )(_verify_checkpoint)
    app.add_typer(group, name="audit")


@with_options
def _log(
    *,
    access: Access,
    start: Annotated[int, typer.Option(metavar="NUMBER", min=0, help="First entry to list, from 0.")] = 0,
    as_json: Json = False,
) -> None:
    """List and verify the audit log of an org.

    The entries are hashed and compared with the head; exit 32 when they disagree.
    """
    with access.opened(decides=False) as (archive, _):
        report = archive.audit(principal=access.principal, start=start)
    if as_json:
        emit_json(
            {
                "size": report.size,
                "root": report.root_hex,
                "intact": report.intact,
                "findings": list(report.findings),
                "entries": [
                    {
                        "seq": leaf.seq,
                        "time": format_time(leaf.time_us),
                        "time_us": leaf.time_us,
                        "event": leaf.event,
                        "session": leaf.session_id,
                        "subject": leaf.subject,
                        "batch_id": leaf.batch_id,
                        "policy_digest": leaf.policy_digest,
                        "details": leaf.details,
                    }
                    for leaf in report.entries
                ],
            }
        )
    else:
        rows = [
            (leaf.seq, format_time(leaf.time_us), leaf.event, leaf.session_id, leaf.subject, _details(leaf.details))
            for leaf in report.entries
        ]
        heads = ("seq", "time", "event", "session", "subject", "details")
        table(f"audit log of {access.org}", heads, rows, numbers=[0])
        verdict = "INTACT: the entries and the head agree" if report.intact else "BROKEN: entries and head disagree"
        entries = counted(report.size, "entry", "entries")
        say(f"{entries}, {len(rows)} listed. {verdict}.", f"root {report.root_hex}")
        if not report.intact:
            say(*report.findings)
            say("Keep the store as it is, stop writing to it, and compare it with a backup.")
    if not report.intact:
        raise typer.Exit(AuditBrokenError.exit_code)


def _details(details: Mapping[str, Any]) -> str:
    """The details on one line; long lists, such as digests of envelopes, as their length."""
    words = []
    for key, value in details.items():
        text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
        long = isinstance(value, list) and len(text) > DETAIL_CHARS_MAX
        words.append(f"{key}={f'({len(value)})' if long else text}")
    return " ".join(words)


@with_options
def _checkpoint(*, access: CustodyAccess, anchor: Anchors = None, as_json: Json = False) -> None:
    """Sign the head of the log, and hand a copy to every anchor; the signed note is printed."""
    with access.custody(anchors=anchor or ()) as custody:
        note = custody.checkpoint()
    _print_head(note, as_json)


@with_options
def _reanchor(*, access: CustodyAccess, anchor: Anchors = None, as_json: Json = False) -> None:
    """Sign the head of a log that was put back on purpose, and give up the longer one that an anchor knows."""
    with access.custody(anchors=anchor or ()) as custody:
        note = custody.reanchor()
    _print_head(note, as_json)


def _print_head(note: str, as_json: bool) -> None:
    if as_json:
        emit_json({"checkpoint": note})
    else:
        print(note, end="")


@with_options
def _key(*, access: CustodyAccess, as_json: Json = False) -> None:
    """Print the public key that verifies this log's checkpoints and proofs; an auditor keeps it."""
    with access.custody() as custody:
        key = custody.key()
    if as_json:
        emit_json({"key": key})
    else:
        print(key)


@with_options
def _prove(
    *,
    session: Annotated[str, typer.Argument(metavar="SESSION", help="Session id.", show_default=False)],
    result: Annotated[str | None, typer.Argument(metavar="RESULT", help="Result ID; without it the session.")] = None,
    access: CustodyAccess,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the proofs go; made if need be.")],
    anchor: Anchors = None,
    as_json: Json = False,
) -> None:
    """Write a proof of every entry of the log that names a session, or one result of it.

    Each is a file of its own that 'audit verify-proof' checks with the public key alone.
    """
    with access.custody(anchors=anchor or ()) as custody:
        proven = [custody.prove(seq) for seq in custody.entries(session, result)]
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for one in proven:
        path = out / f"{one.entry.seq}-{one.entry.event}.tlog-proof"
        path.write_text(one.proof, encoding="utf-8", newline="\n")
        written.append(path)
    if as_json:
        emit_json(
            [
                {"seq": one.entry.seq, "event": one.entry.event, "file": str(path)}
                for one, path in zip(proven, written, strict=True)
            ]
        )
        return
    say(*(str(path) for path in written))
    say(f"{counted(len(written), 'proof')} written.")


def _verify_proof(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A proof.", show_default=False)],
    key: KeyLine,
    as_json: Json = False,
) -> None:
    """Verify a proof with the public key alone: no store, no keys, no network. Exit 32 when it shows nothing."""
    from evidence_archive.proof.checkpoint import PROOF_BYTES_MAX, open_proof

    proof = open_proof(_read(file, PROOF_BYTES_MAX), verifier(key))
    leaf = proof.leaf
    if as_json:
        emit_json({"proven": True, "size": proof.checkpoint.size, "root": proof.checkpoint.root, "entry": leaf})
        return
    say(
        f"PROVEN: entry {leaf.seq} is in the log {proof.checkpoint.origin} of "
        f"{counted(proof.checkpoint.size, 'entry', 'entries')}.",
        f"{format_time(leaf.time_us)} {leaf.event} session {leaf.session_id} by {leaf.subject}:",
        _details(leaf.details),
    )


@with_options
def _verify_checkpoint(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A checkpoint that was kept.", show_default=False)],
    access: CustodyAccess,
    as_json: Json = False,
) -> None:
    """Show that the log still begins with what an older checkpoint signed. Exit 32 when it does not."""
    from evidence_archive.proof.checkpoint import CHECKPOINT_BYTES_MAX

    note = _read(file, CHECKPOINT_BYTES_MAX).decode("utf-8", "replace")
    with access.custody() as custody:
        known = custody.consistent(note)
    if as_json:
        emit_json({"consistent": True, "size": known.size, "root": known.root})
    else:
        signed = counted(known.size, "entry that was signed", "entries that were signed")
        say(f"CONSISTENT: the log still begins with the {signed}.")


@contextmanager
def named_file(path: Path) -> Iterator[BinaryIO]:
    """A file to be read.

    Raises:
        EvidenceArchiveError: it cannot be; says which.
    """
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise EvidenceArchiveError(f"The file {str(path)!r} cannot be read ({reason}): check the path.") from error


def _read(path: Path, bytes_max: int) -> bytes:
    with named_file(path) as file:
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise FormatError(f"The file has more than {bytes_max:,} bytes: it is none of what is read here.")
    return data


def verifier(line: str) -> Any:
    """The key in a line, or in a file of this name.

    Raises:
        FormatError: it is none.
    """
    from evidence_archive.proof.checkpoint import VerifierKey

    if "+" not in line or os.path.exists(line):
        line = _read(Path(line), 4_096).decode("utf-8", "replace")
    return VerifierKey.parse(line)
