"""``evidence-archive ledger``: facts with their originals, of a session or shared, for people and scripts."""

import base64
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evidence_archive.cli.opening import Access, with_options
from evidence_archive.cli.options import Json
from evidence_archive.cli.render import counted, emit_json, one_line, plain, say, table
from evidence_archive.errors import CheckFailedError, FormatError
from evidence_archive.model import format_time

if TYPE_CHECKING:
    from evidence_archive.ledger.entries import Claim, Fact
    from evidence_archive.ledger.keeping import Cited

__all__ = ["register"]

_STORE = "--url sqlite:///evidence.db --keys evidence.keys --org north-clinic --subject triage-agent"

_Session = Annotated[str | None, typer.Argument(metavar="[SESSION]", help="Session id, for its own ledger.")]
_Fact = Annotated[str, typer.Argument(metavar="FACT", help="Fact, such as f3.", show_default=False)]
_Shared = Annotated[
    str | None, typer.Option("--shared", metavar="ID", help="Shared ledger, in the place of a session's own.")
]


def register(app: typer.Typer) -> None:
    """Add the ``ledger`` commands."""
    group = typer.Typer(
        help="Facts that the host has verified, with their originals.",
        epilog=f"Example: evidence-archive ledger show case-4711 {_STORE}",
        rich_markup_mode=None,
    )
    group.callback()(_ledger)
    for name, command, words in (
        ("show", _show, "case-4711"),
        ("reconcile", _reconcile, "case-4711"),
        ("close", _close, "--shared ward-3"),
        ("history", _history, "f3 case-4711"),
        ("audit", _audit, "f3 --shared ward-3"),
    ):
        group.command(name, epilog=f"Example: evidence-archive ledger {name} {words} {_STORE}")(command)
    app.add_typer(group, name="ledger")


def _ledger() -> None:
    """Facts that the host has verified, with their originals."""


@with_options
def _show(*, session: _Session = None, shared: _Shared = None, access: Access, as_json: Json = False) -> None:
    """Show what stands in a ledger: artifacts, claims, facts that hold, periods."""
    with access.ledger(session, shared) as ledger:
        books = ledger.books()
    if as_json:
        emit_json(
            {
                "artifacts": list(books.artifacts.values()),
                "claims": list(books.claims.values()),
                "facts": list(books.facts.values()),
                "periods": list(books.periods.values()),
                "not_verified": {name: why for name, why in books.looked_at.items() if why},
            }
        )
        return
    current, verified = books.current(), {fact.claim_id for fact in books.facts.values()}
    claims = [one for one in books.claims.values() if one.id not in verified]
    _table_of_facts("facts that hold", current, books.disagreeing)
    _table("claims", ("id", "by", "claim", "stands in"), ((one.id, one.by, one.text, _of(one)) for one in claims))
    artifacts = ((one.name, one.result_id, one.size_bytes, one.sha256) for one in books.artifacts.values())
    _table("artifacts", ("name", "original", "bytes", "sha256"), artifacts)
    periods = (
        (one.id, len(one.facts), _messages(one.window_from, one.window_to), format_time(one.created_at_us))
        for one in books.periods.values()
    )
    _table("periods", ("id", "facts", "messages", "closed"), periods)
    not_verified = ((name, reason) for name, why in books.looked_at.items() for reason in why)
    _table("not verified by a rule", ("result", "why"), not_verified)
    say(
        f"Holding: {counted(len(current), 'fact')}. Not verified: {counted(len(claims), 'claim')}. "
        f"Kept: {counted(len(books.artifacts), 'artifact')}. Closed: {counted(len(books.periods), 'period')}."
    )


@with_options
def _reconcile(
    *,
    session: _Session = None,
    shared: _Shared = None,
    access: Access,
    strong: Annotated[bool, typer.Option("--strong", help="Read the sources of all facts again.")] = False,
    as_json: Json = False,
) -> None:
    """Compare every fact that holds with its sources.

    Sources of key facts are read again, others are looked up; exit 14 where a fact does not agree.
    """
    with access.ledger(session, shared) as ledger:
        report = ledger.reconcile(strong=strong)
    if as_json:
        emit_json({"agrees": report.agrees, "report": report})
    else:
        rows = [(one.fact_id, "key" if one.is_key else "", one.why) for one in report.disagreements]
        if rows:
            table("facts that do not agree", ("fact", "", "why"), rows)
        say(
            f"{counted(report.strong, 'fact')} read again, {counted(report.weak, 'fact')} looked up: "
            f"{'all agree' if report.agrees else _disagreeing(len(report.disagreements))}."
        )
    if not report.agrees:
        raise typer.Exit(CheckFailedError.exit_code)


@with_options
def _close(*, session: _Session = None, shared: _Shared = None, access: Access, as_json: Json = False) -> None:
    """Close a period: settle the facts that agree with their sources.

    Nothing is closed, and the exit code is 14, while a key fact does not agree.
    """
    with access.ledger(session, shared) as ledger:
        period = ledger.close()
    if as_json:
        emit_json(period)
    else:
        say(f"Closed {period.id} with {counted(len(period.facts), 'fact')}.")


@with_options
def _history(
    *,
    fact: _Fact,
    session: _Session = None,
    shared: _Shared = None,
    access: Access,
    as_json: Json = False,
) -> None:
    """Show a fact with all that it superseded and all that superseded it, oldest first."""
    with access.ledger(session, shared) as ledger:
        found = ledger.books().history(fact)
    if not found:
        raise FormatError("There is no such fact.")
    if as_json:
        emit_json(found)
    else:
        _table_of_facts(f"history of {fact}", found)


@with_options
def _audit(
    *,
    fact: _Fact,
    session: _Session = None,
    shared: _Shared = None,
    access: Access,
    as_json: Json = False,
) -> None:
    """Follow a fact to its originals: the cited parts, and the digests of then and of now.

    Originals are read under the rules of a restore, and each grant is in the log; exit 14 where a digest differs.
    """
    with access.ledger(session, shared) as ledger:
        cited = ledger.audit(fact)
        posted = ledger.books().facts[fact]
    agrees = all(one.agrees for one in cited)
    if as_json:
        emit_json({"fact": posted, "agrees": agrees, "sources": [_plain(one) for one in cited]})
    else:
        outcome = f"{posted.outcome.check}: {posted.outcome.details}"
        # Words of others stay in their line, so that they cannot say what was compared.
        say(f"{posted.id}: {one_line(posted.text)}", f"checked with {one_line(outcome)}")
        for one in cited:
            say("", f"{one_line(one.source.reference)} in original {one.source.result_id}")
            rows = [
                ("cited part", one.source.sha256, one.now.sha256),
                ("original", one.source.original_sha256, one.now.original_sha256),
            ]
            table("", ("sha256 of the", "as posted", "read again"), rows)
            say(*(f"> {line}" for line in _text_of(one).split("\n")))
        say("", "Both digests agree." if agrees else "A digest does NOT agree.")
    if not agrees:
        raise typer.Exit(CheckFailedError.exit_code)


# --- pieces -------------------------------------------------------------------------------------------------------


def _table_of_facts(title: str, facts: "list[Fact]", disagreeing: Collection[str] = ()) -> None:
    rows = [
        (
            one.id,
            "key" if one.is_key else None,
            one.superseded_by,
            "does not agree" if one.id in disagreeing else None,
            one.text,
            _of(one),
            one.outcome.check,
            format_time(one.created_at_us),
        )
        for one in facts
    ]
    _table(title, ("id", "key", "superseded by", "sources", "fact", "stands in", "check", "posted"), rows)


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table, unless there is nothing to show in it."""
    if listed := list(rows):
        table(title, heads, listed)


def _disagreeing(count: int) -> str:
    return f"{count} {'does' if count == 1 else 'do'} not agree"


def _of(one: "Fact | Claim") -> str:
    return ", ".join(source.pointer for source in one.sources)


def _messages(first: int, last: int) -> str | None:
    return f"{first}-{last}" if last else None


def _text_of(cited: "Cited") -> str:
    """The cited part for people."""
    try:
        return cited.part.decode("utf-8", "surrogatepass").rstrip("\r\n")
    except UnicodeDecodeError:
        return f"{counted(len(cited.part), 'byte')}, no text; --json gives them in base64"


def _plain(cited: "Cited") -> dict[str, Any]:
    """The cited part for programs: as text where it is UTF-8, and always in base64."""
    try:
        text: str | None = cited.part.decode()
    except UnicodeDecodeError:
        text = None
    return {
        "reference": cited.source.reference,
        "result_id": cited.source.result_id,
        "agrees": cited.agrees,
        "posted": plain(cited.source),
        "now": plain(cited.now),
        "text": text,
        "base64": base64.b64encode(cited.part).decode("ascii"),
    }
