"""``results``, ``restore``, ``audit``, ``resume``: look into a store that agents have filled."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evidence_archive.cli.render import emit_json, say, table
from evidence_archive.errors import AuditBrokenError
from evidence_archive.model import Principal, Restored, format_time

if TYPE_CHECKING:
    from evidence_archive.archive import Archive

__all__ = ["register"]

DETAIL_CHARS_MAX = 60

_STORE = "--url sqlite:///evidence.db --keys evidence.keys --org north-clinic --subject triage-agent"

_Session = Annotated[str, typer.Argument(metavar="SESSION", help="Session id.", show_default=False)]
_Url = Annotated[
    str,
    typer.Option(
        "--url", envvar="EVIDENCE_ARCHIVE_URL", help="Store, such as sqlite:///evidence.db.", show_default=False
    ),
]
_Keys = Annotated[
    Path | None,
    typer.Option(
        "--keys",
        envvar="EVIDENCE_ARCHIVE_KEYS_PATH",
        help="Key file; without it the keys come from the variable EVIDENCE_ARCHIVE_KEYS.",
    ),
]
_Policy = Annotated[
    Path | None, typer.Option("--policy", envvar="EVIDENCE_ARCHIVE_POLICY", help="Policy file; the default without.")
]
_Org = Annotated[
    str, typer.Option("--org", envvar="EVIDENCE_ARCHIVE_ORG", help="Org of who asks.", show_default=False)
]
_Subject = Annotated[
    str,
    typer.Option(
        "--subject", envvar="EVIDENCE_ARCHIVE_SUBJECT", help="Who asks: a person or an agent.", show_default=False
    ),
]
_Roles = Annotated[list[str] | None, typer.Option("--role", help="Role of who asks; repeatable.")]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def register(app: typer.Typer) -> None:
    """Add the commands that look into a store."""
    app.command("results", epilog=f"Example: evidence-archive results case-4711 {_STORE}")(_results)
    app.command("restore", epilog=f"Example: evidence-archive restore case-4711 r3 {_STORE} --out r3.txt")(_restore)
    app.command("audit", epilog=f"Example: evidence-archive audit {_STORE}")(_audit)
    app.command("resume", epilog=f"Example: evidence-archive resume case-4711 {_STORE}")(_resume)


def _opened(url: str, keys: Path | None, policy: Path | None) -> "Archive":
    """The store, which must exist: looking never creates one."""
    from evidence_archive.archive import Archive
    from evidence_archive.keys import EnvironmentKeys

    provider = EnvironmentKeys() if keys is None else keys
    return Archive.open(url, keys=provider, policy=policy, create=False)


def _results(
    *,
    session: _Session,
    url: _Url,
    org: _Org,
    subject: _Subject,
    keys: _Keys = None,
    policy: _Policy = None,
    role: _Roles = None,
    as_json: _Json = False,
) -> None:
    """List the tool results of a session.

    For each: live or archived, and which rule protects it.
    """
    with _opened(url, keys, policy) as archive:
        found = archive.results(session, principal=Principal(org, subject, role or ()))
    if as_json:
        emit_json({"session": session, "results": found})
        return
    rows = [
        (info.id, info.tool, info.tokens, info.state, info.protected_by, info.restored_from, info.observed_at)
        for info in found
    ]
    heads = ("id", "tool", "tokens", "state", "protected by", "copy of", "observed")
    table(f"session {session}", heads, rows, numbers=[2], texts=[1, 4])
    archived = sum(info.state == "archived" for info in found)
    say(f"{len(found)} results, {archived} archived. 'evidence-archive restore {session} ID' gives an original.")


def _restore(
    *,
    session: _Session,
    result_id: Annotated[str, typer.Argument(metavar="ID", help="Result ID, such as r3.", show_default=False)],
    url: _Url,
    org: _Org,
    subject: _Subject,
    keys: _Keys = None,
    policy: _Policy = None,
    role: _Roles = None,
    lines: Annotated[str | None, typer.Option(help="Only these lines, such as 10-40.")] = None,
    pattern: Annotated[str | None, typer.Option(help="Only lines that contain this literal text.")] = None,
    context_lines: Annotated[int | None, typer.Option(help="Lines around each match of --pattern.")] = None,
    pointer: Annotated[str | None, typer.Option(help="Only this part of a JSON original (JSON pointer).")] = None,
    out: Annotated[Path | None, typer.Option(help="Write to this new file (mode 0600), not to stdout.")] = None,
    as_json: _Json = False,
) -> None:
    """Give an exact original back.

    The very bytes, on stdout or in a new file. Text comes as UTF-8 (lone surrogates as three bytes each), a list of
    parts as compact JSON.
    """
    if out is not None and out.exists():
        raise typer.BadParameter(f"The file {out} exists: choose another name, nothing is overwritten.")
    with _opened(url, keys, policy) as archive:
        restored = archive.restore(
            session,
            result_id,
            principal=Principal(org, subject, role or ()),
            lines=lines,
            pattern=pattern,
            context_lines=context_lines,
            pointer=pointer,
        )
    data = _bytes_of(restored.content)
    if out is not None:
        _write_new(out, data)
    if as_json:
        emit_json({**_described(restored), "out": None if out is None else str(out)})
    elif out is None:
        stdout = typer.get_binary_stream("stdout")
        stdout.write(data)
        stdout.flush()
    else:
        what = "the whole original" if restored.part is None else restored.part
        say(
            f"Wrote {len(data)} bytes to {out}: {what} of {result_id} from {restored.provenance.tool_name}.",
            f"sha256 of the whole original: {restored.sha256}",
        )


def _bytes_of(content: Any) -> bytes:
    if isinstance(content, str):
        return content.encode("utf-8", "surrogatepass")
    return json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode("ascii")


def _described(restored: Restored) -> dict[str, Any]:
    provenance = restored.provenance
    return {
        "session": provenance.session_id,
        "result_id": provenance.result_id,
        "tool": provenance.tool_name,
        "tool_call_id": provenance.tool_call_id,
        "kind": provenance.kind,
        "sensitivity": provenance.sensitivity,
        "media_type": provenance.media_type,
        "observed_at": format_time(provenance.observed_at_us),
        "observed_by": provenance.observed_by,
        "sha256": restored.sha256,
        "size_bytes": restored.size_bytes,
        "part": restored.part,
        "content": restored.content,
    }


def _write_new(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _audit(
    *,
    url: _Url,
    org: _Org,
    subject: _Subject,
    keys: _Keys = None,
    policy: _Policy = None,
    role: _Roles = None,
    start: Annotated[int, typer.Option(min=0, help="First entry to list, from 0.")] = 0,
    as_json: _Json = False,
) -> None:
    """List and verify the audit log of an org.

    The entries are hashed and compared with the head; exit 32 when they disagree.
    """
    with _opened(url, keys, policy) as archive:
        report = archive.audit(principal=Principal(org, subject, role or ()), start=start)
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
        table(f"audit log of {org}", heads, rows, numbers=[0], texts=[3, 4, 5])
        verdict = "INTACT: the entries and the head agree" if report.intact else "BROKEN: entries and head disagree"
        say(f"{report.size} entries, {len(rows)} listed. {verdict}.", f"root {report.root_hex}")
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


def _resume(
    *,
    session: _Session,
    url: _Url,
    org: _Org,
    subject: _Subject,
    keys: _Keys = None,
    policy: _Policy = None,
    role: _Roles = None,
    as_json: _Json = False,
) -> None:
    """Let a suspended session archive again."""
    with _opened(url, keys, policy) as archive:
        archive.resume(session, principal=Principal(org, subject, role or ()))
    if as_json:
        emit_json({"session": session, "suspended": None})
    else:
        say(f"Session {session} may archive again.")
