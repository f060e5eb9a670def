"""``verify`` and ``fsck``: whether a store is what its audit log says, and which sessions should stop archiving."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evidence_archive.cli.opening import CustodyAccess, with_options
from evidence_archive.cli.options import Json
from evidence_archive.cli.proofs import verifier
from evidence_archive.cli.render import counted, emit_json, say, table
from evidence_archive.errors import EvidenceArchiveError, IntegrityError, ShreddedError, StoreUnavailableError

if TYPE_CHECKING:
    from evidence_archive.ports import Anchor, ObjectStore
    from evidence_archive.store.sql import SqlStore
    from evidence_archive.verifying import Progress, VerifyReport

__all__ = ["register"]

FOUND = 1
COULD_NOT_RUN = 2

_ANCHORS = frozenset({"objects", "s3", "command"})
"""What stands before a colon where an anchor is no file."""

_STORE = "--url sqlite:///evidence.db --keys evidence.keys --org north-clinic --subject records-office"

_Anchor = Annotated[
    list[str] | None,
    typer.Option(
        "--anchor",
        metavar="WHERE",
        help="Has to know a head of this log: a file, objects:FOLDER, s3://...; repeatable.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands that verify."""
    app.command("verify", epilog=f"Example: evidence-archive verify {_STORE} --level full --anchor heads.jsonl")(
        _verify
    )
    app.command("fsck", epilog=f"Example: evidence-archive fsck {_STORE} --quarantine")(_fsck)


@dataclass(frozen=True, slots=True)
class _PerhapsKeyless(CustodyAccess):
    """Access that may go without who asks.

    Args:
        url, org, subject, keys, policy, objects, role: as for :class:`CustodyAccess`.
    """

    subject: Annotated[
        str,
        typer.Option(
            "--subject",
            metavar="NAME",
            envvar="EVIDENCE_ARCHIVE_SUBJECT",
            help="Who asks; not needed with --keyless.",
            show_default=False,
        ),
    ] = ""


@with_options
def _verify(
    *,
    access: _PerhapsKeyless,
    level: Annotated[
        str | None,
        typer.Option(
            "--level",
            metavar="NAME",
            help="keyless, seals (row seals too) or full (originals too).",
            show_default="seals",
        ),
    ] = None,
    keyless: Annotated[
        bool, typer.Option("--keyless", help="Without any key, and without an entry in the log.")
    ] = False,
    log_key: Annotated[
        str | None,
        typer.Option(
            "--log-key", metavar="LINE", help="With --keyless: the log's public key, or a file that holds it."
        ),
    ] = None,
    sample: Annotated[
        float | None, typer.Option("--sample", metavar="SHARE", help="Share of the originals, such as 0.1.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="DATE", help="Only originals archived from then on (UTC).")
    ] = None,
    anchor: _Anchor = None,
    as_json: Json = False,
) -> None:
    """Compare a store with its audit log.

    The log is rehashed, every row compared with it, and the originals hashed; with --level full they are opened as a
    restore opens them. Exit 0 when all is as it should be, 1 with findings, 2 when it could not run.
    """
    with _could_not_run():
        since_us = _microseconds(since)
        if keyless and level not in (None, "keyless"):
            raise typer.BadParameter(f"--level {level} needs the keys: leave it out, or --keyless.")
        for one in anchor or ():
            _check_file(one)
        named: dict[str, Any] = {"sample": sample, "since_us": since_us}
        with _bar(shown=not as_json) as progress:
            if keyless:
                report = _without_keys(access, anchor, log_key, progress=progress, **named)
            elif not access.subject:
                raise typer.BadParameter("--subject says who asks; only --keyless goes without.")
            else:
                try:
                    with access.custody(damaged=True) as custody:
                        report = custody.verify(level or "seals", anchors=anchor or (), progress=progress, **named)
                except (IntegrityError, ShreddedError) as error:
                    report = _without_keys(access, anchor, log_key, progress=progress, **named)
                    report = _unopened(report, error)
    _show(report, as_json=as_json)
    if not report.is_clean:
        raise typer.Exit(FOUND)


def _unopened(report: "VerifyReport", error: EvidenceArchiveError) -> "VerifyReport":
    """A run without keys, because the org does not open: it was shredded, or its row is damaged."""
    from evidence_archive.verifying import Finding

    if isinstance(error, ShreddedError):
        return replace(
            report, unchecked=(*report.unchecked, "The org was shredded: no seal can be checked any more.")
        )
    finding = Finding("org_unopened", "orgs", report.org, str(error))
    return replace(report, findings=(finding, *report.findings), findings_count=report.findings_count + 1)


def _without_keys(
    access: CustodyAccess,
    anchor: list[str] | None,
    log_key: str | None,
    *,
    progress: "Progress | None",
    sample: float | None,
    since_us: int | None,
) -> "VerifyReport":
    from evidence_archive.store import open_store
    from evidence_archive.verifying import verify_keyless

    anchors = [_anchor(one) for one in anchor or ()]
    key = None if log_key is None else verifier(log_key)
    store = open_store(access.url, create=False)
    try:
        return verify_keyless(
            store,
            access.org,
            objects=_objects_of(store, access.objects),
            key=key,
            sample=sample,
            since_us=since_us,
            anchors=anchors,
            progress=progress,
        )
    finally:
        store.close()


def _objects_of(store: "SqlStore", objects: str | None) -> "ObjectStore | None":
    """Where large originals lie: as named, else the folder beside the database; nothing is made."""
    from evidence_archive.objects import open_objects
    from evidence_archive.objects.late import LateObjects

    where: str | os.PathLike[str] | None = objects or store.beside
    return None if where is None else LateObjects("objects", lambda _: open_objects(where, create=False))


def _anchor(where: str) -> "Anchor":
    from evidence_archive.anchors import open_anchor

    return open_anchor(where, create=False)


def _check_file(anchor: str) -> None:
    """Return only if an anchor is no file, or one that is there: one that was never written to shows nothing."""
    scheme, separator, _ = anchor.partition(":")
    if anchor != "log" and not (separator and scheme in _ANCHORS) and not os.path.lexists(anchor):
        raise StoreUnavailableError(f"There is no file {anchor!r}: name the anchor that keeps heads of this log.")


@with_options
def _fsck(
    *,
    access: CustodyAccess,
    level: Annotated[str, typer.Option("--level", metavar="NAME", help="keyless, seals or full.")] = "full",
    quarantine: Annotated[
        bool, typer.Option("--quarantine", help="Suspend archiving in sessions with findings; without it, nothing.")
    ] = False,
    anchor: _Anchor = None,
    as_json: Json = False,
) -> None:
    """Find damage, and the sessions to quarantine.

    Nothing is deleted, rewritten or repaired: with --quarantine such sessions are suspended until 'resume', and
    without it nothing is changed. Exit 0 when all is as it should be, 1 with findings, 2 when it could not run.
    """
    with _could_not_run():
        for one in anchor or ():
            _check_file(one)
        with _bar(shown=not as_json) as progress, access.custody(damaged=True) as custody:
            done = custody.fsck(dry_run=not quarantine, level=level, anchors=anchor or (), progress=progress)
    if as_json:
        emit_json({**_document(done.report), "dry_run": done.dry_run, "quarantines": done.quarantines})
    else:
        _tell(done.report)
        if done.quarantines:
            rows = [(one.session_id, one.findings, one.status.replace("_", " ")) for one in done.quarantines]
            table("sessions with findings", ("session", "findings", "quarantine"), rows, numbers=[1])
        if done.elsewhere:
            say(f"{counted(done.elsewhere, 'finding')} of no session: compare with a backup.")
        if done.dry_run and done.quarantines:
            say("Nothing was changed; --quarantine suspends archiving in these sessions.")
    if not done.report.is_clean:
        raise typer.Exit(FOUND)


# --- pieces ---------------------------------------------------------------------------------------------------------


@contextmanager
def _could_not_run() -> Iterator[None]:
    """Whatever is raised says nothing about the store."""
    try:
        yield
    except EvidenceArchiveError as error:
        vars(error)["exit_code"] = COULD_NOT_RUN
        raise


def _microseconds(since: str | None) -> int | None:
    if since is None:
        return None
    try:
        at = datetime.fromisoformat(since)
    except ValueError:
        raise typer.BadParameter("--since is a date such as 2026-11-01, or a date and time.") from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(0, round(at.timestamp() * 1_000_000))


@contextmanager
def _bar(*, shown: bool) -> Iterator[Callable[[str, int, int], object] | None]:
    """A progress bar on standard error, where that is a terminal."""
    if not shown or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bars

    with Bars(console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def progress(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=total)
            bars.update(tasks[phase], completed=done, total=total)

        yield progress


def _show(report: "VerifyReport", *, as_json: bool) -> None:
    if as_json:
        emit_json(_document(report))
    else:
        _tell(report)


def _document(report: "VerifyReport") -> dict[str, Any]:
    return {
        "org": report.org,
        "level": report.level,
        "clean": report.is_clean,
        "size": report.size,
        "root": report.root_hex,
        "counts": report.counts,
        "findings_count": report.findings_count,
        "findings": report.findings,
        "unchecked": report.unchecked,
    }


def _tell(report: "VerifyReport") -> None:
    if report.findings:
        rows = [(one.code, one.table, one.place, one.sentence) for one in report.findings]
        table(f"findings in the store of {report.org}", ("code", "table", "place", "what is wrong"), rows)
    if report.findings_count > len(report.findings):
        say(f"{counted(report.findings_count - len(report.findings), 'more finding')} not listed.")
    say(*report.unchecked)
    counts = ", ".join(f"{name} {count:,}" for name, count in report.counts.items())
    say(
        f"Checked at level {report.level}: {counts}.",
        f"log of {counted(report.size, 'entry', 'entries')}, root {report.root_hex or '?'}",
    )
    if report.is_clean:
        say("CLEAN: the store is what its log says.")
    else:
        found = counted(report.findings_count, "finding").upper()
        say(f"{found}: keep the store as it is, and compare it with a backup.")
