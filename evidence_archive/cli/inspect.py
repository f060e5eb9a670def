"""``results``, ``restore``, ``resume``, ``collect``: look into a store that agents have filled."""

import base64
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from evidence_archive.cli.opening import Access, suspension, undecided, with_options
from evidence_archive.cli.options import Json
from evidence_archive.cli.render import counted, emit_json, note, plain, say, table
from evidence_archive.errors import EvidenceArchiveError, FormatError
from evidence_archive.model import Restored, format_time

__all__ = ["new_file", "register"]

UNKNOWN = "?"

_MATCHES = re.compile(r"(\d+)(?: of (\d+))? matches ")

_STORE = "--url sqlite:///evidence.db --keys evidence.keys --org north-clinic --subject triage-agent"

_Session = Annotated[str, typer.Argument(metavar="SESSION", help="Session id.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the commands that look into a store."""
    app.command("results", epilog=f"Example: evidence-archive results case-4711 {_STORE}")(_results)
    app.command("restore", epilog=f"Example: evidence-archive restore case-4711 r3 {_STORE} --out r3.txt")(_restore)
    app.command("resume", epilog=f"Example: evidence-archive resume case-4711 {_STORE}")(_resume)
    app.command("collect", epilog=f"Example: evidence-archive collect {_STORE}")(_collect)


@with_options
def _results(*, session: _Session, access: Access, as_json: Json = False) -> None:
    """List the tool results of a session.

    For each: live or archived, and which rule protects it. IDs that are missing belong to the archive's own answers.
    """
    with access.opened(decides=True) as (archive, vault):
        found = archive.results(session, principal=access.principal)
        unknown = undecided(vault, session)
    if as_json:
        results = [
            {**plain(info), "protection_known": info.id not in unknown}
            | ({"protected_by": None} if info.id in unknown else {})
            for info in found
        ]
        emit_json({"session": session, "results": results})
        return
    rows = [
        (
            info.id,
            info.tool,
            info.tokens,
            info.state,
            UNKNOWN if info.id in unknown else info.protected_by,
            info.restored_from,
            info.observed_at,
        )
        for info in found
    ]
    heads = ("id", "tool", "tokens", "state", "protected by", "copy of", "observed")
    table(f"session {session}", heads, rows, numbers=[2])
    if any(info.id in unknown for info in found):
        say(f"{UNKNOWN} depends on the text or age of the result, which only the agent's messages tell.")
    archived = sum(info.state == "archived" for info in found)
    say(f"{counted(len(found), 'result')}, {archived} archived.")
    if archived:
        say(f"'evidence-archive restore {session} ID' gives an original.")


@with_options
def _restore(
    *,
    session: _Session,
    result_id: Annotated[str, typer.Argument(metavar="ID", help="Result ID, such as r3.", show_default=False)],
    access: Access,
    lines: Annotated[str | None, typer.Option(metavar="FIRST-LAST", help="Only these lines, such as 10-40.")] = None,
    pattern: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only lines that contain this literal text.")
    ] = None,
    context_lines: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="Lines around each match of --pattern, 0 to 50; 2 without.")
    ] = None,
    pointer: Annotated[
        str | None, typer.Option(metavar="POINTER", help="Only this part of a JSON original (JSON pointer).")
    ] = None,
    byte_range: Annotated[
        str | None,
        typer.Option(
            "--bytes", metavar="FIRST-LAST", help="Only these bytes, from 0, such as 0-4095; base64 in JSON."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write to this new file (mode 0600), not to stdout.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Give an exact original back.

    The very bytes, on stdout or in a new file. Text comes as UTF-8 (lone surrogates as three bytes each), a list of
    parts as compact JSON. Of a part stderr says which it is, and on stdout it ends with a line feed, except bytes. A
    whole original goes to a file piece by piece, with a few MiB in memory.
    """
    selectors: dict[str, Any] = {
        "lines": lines,
        "pattern": pattern,
        "context_lines": context_lines,
        "pointer": pointer,
        "byte_range": byte_range,
    }
    with new_file(out) as file, access.opened(decides=True) as (archive, _):
        if file is not None and all(value is None for value in selectors.values()):
            restored = archive.restore_to(file, session, result_id, principal=access.principal)
            size_bytes = file.tell()
        else:
            try:
                restored = archive.restore(session, result_id, principal=access.principal, **selectors)
            except FormatError as error:
                raise type(error)(_as_options(str(error))) from error
            data = _bytes_of(restored.content)
            size_bytes = len(data)
            if file is not None:
                file.write(data)
    if as_json:
        emit_json(_described(restored, out))
    elif out is None:
        stdout = typer.get_binary_stream("stdout")
        stdout.write(data)
        if restored.part is not None and byte_range is None and data and not data.endswith(b"\n"):
            stdout.write(b"\n")
        stdout.flush()
    else:
        what = "the whole original" if restored.part is None else restored.part
        say(
            f"Wrote {counted(size_bytes, 'byte')} to {out}: {what} of {result_id} "
            f"from {restored.provenance.tool_name}.",
            f"sha256 of the whole original: {restored.sha256}",
        )
    _note_part(restored, result_id, warnings_only=as_json or out is not None)


def _note_part(restored: Restored, result_id: str, *, warnings_only: bool) -> None:
    """Say which part it is; loudly when it is not all that was asked for."""
    part = restored.part
    if part is None:
        return
    match = _MATCHES.match(part)
    shown, total = (0, 0) if match is None else (int(match[1]), int(match[2] or match[1]))
    if match is not None and not total:
        note(f"WARNING: NOTHING MATCHED in {result_id}: {part}.")
    elif shown < total:
        note(
            f"WARNING: CUT in {result_id}: {part}; {counted(total - shown, 'match', 'matches')} not shown "
            f"(the policy's pattern_matches_max is {shown}): use --lines, or a pattern that is met less often."
        )
    elif not warnings_only:
        note(f"Part of {result_id} from {restored.provenance.tool_name}: {part}.")


def _as_options(words: str) -> str:
    """What is wrong with a selector, for somebody who gave options and not arguments of a tool."""
    words = re.sub(r"(; give (null|None) for [a-z ]+|,? or (null( for no pattern)?|None))(?=\.)", "", words)
    words = words.replace("byte_range", "bytes").replace("Use bytes alone", "Use --bytes alone")
    words = words.replace("one of lines, pattern and pointer", "one of --lines, --pattern and --pointer")
    words = words.replace("goes with a pattern", "goes with --pattern")
    return re.sub(
        r"^(lines|pattern|context_lines|pointer|bytes) (?=must|goes)",
        lambda match: f"--{match[1].replace('_', '-')} ",
        words,
    )


def _bytes_of(content: Any) -> bytes:
    if isinstance(content, bytes):
        return content
    if isinstance(content, str):
        return content.encode("utf-8", "surrogatepass")
    return json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode("ascii")


def _described(restored: Restored, out: Path | None) -> dict[str, Any]:
    provenance = restored.provenance
    whole = "" if restored.part is None else "original_"
    described = {
        "session": provenance.session_id,
        "result_id": provenance.result_id,
        "tool": provenance.tool_name,
        "tool_call_id": provenance.tool_call_id,
        "kind": provenance.kind,
        "sensitivity": provenance.sensitivity,
        "media_type": provenance.media_type,
        "observed_at": format_time(provenance.observed_at_us),
        "observed_by": provenance.observed_by,
        f"{whole}sha256": restored.sha256,
        f"{whole}size_bytes": restored.size_bytes,
        "part": restored.part,
        "out": None if out is None else str(out),
    }
    if out is not None:
        return described
    if isinstance(restored.content, bytes):
        return {**described, "content_base64": base64.b64encode(restored.content).decode("ascii")}
    return {**described, "content": restored.content}


@contextmanager
def new_file(path: Path | None) -> Iterator[BinaryIO | None]:
    """A new private file, made before anything is granted, and gone again when nothing is written to it.

    Args:
        path: of the file; ``None`` for none.

    Raises:
        EvidenceArchiveError: it could not be written, and was removed.
    """
    if path is None:
        yield None
        return
    try:
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise typer.BadParameter(f"The file {path} exists: choose another name, nothing is overwritten.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "this is not a file name"
        raise typer.BadParameter(f"The file {path} cannot be made ({reason}): nothing was written.") from None
    try:
        with os.fdopen(target, "wb") as file:
            yield file
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            reason = error.strerror or type(error).__name__
            raise EvidenceArchiveError(f"The file {path} could not be written ({reason}) and was removed.") from error
        raise


@with_options
def _resume(*, session: _Session, access: Access, as_json: Json = False) -> None:
    """Let a suspended session archive again."""
    with access.opened(decides=False) as (archive, vault):
        was = suspension(vault, session)
        if was is not None:
            archive.resume(session, principal=access.principal)
    if as_json:
        emit_json({"session": session, "was": was, "suspended": None})
    elif was is None:
        say(f"Session {session} was not suspended: nothing was changed.")
    else:
        say(f"Session {session} was suspended ({was}) and may archive again.")


@with_options
def _collect(*, access: Access, as_json: Json = False) -> None:
    """Delete what batches that were given up left in the object store.

    Nothing that was archived is touched, and nothing of a batch that may still come to its end within its hours.
    """
    from evidence_archive.envelopes import INTENT_SECONDS  # loads the cipher

    with access.opened(decides=False) as (archive, _):
        collected = archive.collect(principal=access.principal)
    if as_json:
        emit_json(collected)
        return
    say(
        f"{counted(collected.abandoned, 'original')} of batches that were given up: objects deleted, and once more "
        f"in {INTENT_SECONDS // 3_600} hours.",
        f"{counted(collected.forgotten, 'original')} of that kind forgotten: nothing of them is left.",
        f"{counted(collected.tidied, 'unfinished file')} removed.",
    )
