"""``hold``, ``retain``, ``shred``, ``gc``: what has to stay, and what goes for good."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from evidence_archive.cli.opening import CustodyAccess, with_options
from evidence_archive.cli.options import Json, RegisterFile
from evidence_archive.cli.render import confirm, counted, emit_json, plain, say, table
from evidence_archive.model import format_time

if TYPE_CHECKING:
    from evidence_archive.disposal import Due, Hold, Shred

__all__ = ["register"]

_STORE = "--url sqlite:///evidence.db --keys evidence.keys --org north-clinic --subject records-office"

_SessionArgument = Annotated[str, typer.Argument(metavar="SESSION", help="Session id.", show_default=False)]
_ResultArgument = Annotated[str, typer.Argument(metavar="RESULT", help="Result ID, such as r3.", show_default=False)]
_SessionOption = Annotated[str | None, typer.Option("--session", metavar="ID", help="Which session.")]
_WholeOrg = Annotated[bool, typer.Option("--whole-org", help="Everything of the org, in place of --session.")]
_ResultOption = Annotated[
    str | None,
    typer.Option("--result", metavar="ID", help="Which original of it, such as r3; without it all of the session."),
]
_Confirmed = Annotated[bool, typer.Option("--yes", help="Do it without asking: it cannot be undone.")]


def register(app: typer.Typer) -> None:
    """Add the commands that keep and destroy."""
    group = typer.Typer(
        help="Place, release and list legal holds.",
        epilog=f"Example: evidence-archive hold list {_STORE}",
        rich_markup_mode=None,
        no_args_is_help=True,
    )
    group.command("add", epilog=f'Example: evidence-archive hold add "case 12/34" --session case-4711 {_STORE}')(_add)
    group.command("release", epilog=f"Example: evidence-archive hold release 3f9c... {_STORE}")(_release)
    group.command("list", epilog=f"Example: evidence-archive hold list {_STORE}")(_list)
    app.add_typer(group, name="hold")
    app.command("retain", epilog=f"Example: evidence-archive retain case-4711 r3 2036-01-01 {_STORE}")(_retain)
    app.command("shred", epilog=f"Example: evidence-archive shred --session case-4711 --result r3 {_STORE}")(_shred)
    app.command("shreds", epilog=f"Example: evidence-archive shreds {_STORE}")(_shreds)
    app.command("gc", epilog=f"Example: evidence-archive gc {_STORE}")(_gc)


@with_options
def _add(
    *,
    reason: Annotated[str, typer.Argument(metavar="REASON", help="Why; kept sealed.", show_default=False)],
    access: CustodyAccess,
    session: _SessionOption = None,
    result: _ResultOption = None,
    whole_org: _WholeOrg = False,
    register_file: RegisterFile = None,
    as_json: Json = False,
) -> None:
    """Place a legal hold.

    Until it is released, nothing of what it is on is destroyed, by whatever path.
    """
    _check_named(session, result, whole_org)
    with access.custody(register=register_file) as custody:
        hold = custody.hold(reason, session_id=session, result_id=result)
    if as_json:
        emit_json(hold)
    else:
        say(f"Hold {hold.id} is on {_what(hold.session_id, hold.result_id)}.")


@with_options
def _release(
    *,
    hold: Annotated[str, typer.Argument(metavar="HOLD", help="Its 32 hex digits.", show_default=False)],
    access: CustodyAccess,
    register_file: RegisterFile = None,
    as_json: Json = False,
) -> None:
    """Release a legal hold; others on the same still hold."""
    with access.custody(register=register_file) as custody:
        released = custody.release(hold)
    if as_json:
        emit_json(released)
    else:
        say(f"Hold {released.id} on {_what(released.session_id, released.result_id)} was released.")


@with_options
def _list(*, access: CustodyAccess, as_json: Json = False) -> None:
    """List all legal holds, released ones included."""
    with access.custody() as custody:
        holds = custody.holds()
    if as_json:
        emit_json(holds)
        return
    rows = [_hold_row(hold) for hold in holds]
    table(f"holds of {access.org}", ("hold", "session", "result", "placed", "by", "released", "reason"), rows)
    say(f"{counted(sum(hold.is_active for hold in holds), 'active hold')}.")


def _hold_row(hold: "Hold") -> tuple[object, ...]:
    released = None if hold.released_at_us is None else format_time(hold.released_at_us)
    return (
        hold.id,
        hold.session_id or "all",
        hold.result_id or "all",
        format_time(hold.placed_at_us),
        hold.placed_by,
        released,
        hold.reason,
    )


@with_options
def _retain(
    *,
    session: _SessionArgument,
    result: _ResultArgument,
    until: Annotated[
        datetime,
        typer.Argument(
            metavar="DATE", formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M:%SZ"], help="Day or time, UTC.", show_default=False
        ),
    ],
    access: CustodyAccess,
    register_file: RegisterFile = None,
    as_json: Json = False,
) -> None:
    """Keep an original at least until a day.

    A retention is lengthened, never shortened.
    """
    until_us = int(until.replace(tzinfo=UTC).timestamp()) * 1_000_000
    with access.custody(register=register_file) as custody:
        custody.retain(session, result, until_us)
    if as_json:
        emit_json({"session": session, "result": result, "retention_until_us": until_us})
    else:
        say(f"{result} of {session} is kept at least until {format_time(until_us)}.")


@with_options
def _shred(
    *,
    access: CustodyAccess,
    session: _SessionOption = None,
    result: _ResultOption = None,
    whole_org: _WholeOrg = False,
    yes: _Confirmed = False,
    register_file: RegisterFile = None,
    as_json: Json = False,
) -> None:
    """Destroy an original, a session or a whole org for good.

    Exit 61 where a hold, 60 where a retention forbids it; then nothing was destroyed.
    """
    _check_named(session, result, whole_org)
    what = f"the WHOLE org {access.org}" if whole_org else _what(session, result)
    if not yes:
        confirm(f"Destroy {what} for good?")
    with access.custody(register=register_file) as custody:
        shred = custody.shred(session_id=session, result_id=result)
    if as_json:
        emit_json(shred)
        return
    say(
        f"{counted(shred.originals, 'original')} of {what} destroyed; the keys are gone from this store.",
        *_also(shred),
        _told(shred),
    )


def _also(shred: "Shred") -> list[str]:
    """What else holds what was destroyed: nothing is destroyed that was not named."""
    if not shred.same_content:
        return []
    return [f"The same content is still in {', '.join(shred.same_content)} of this session: shred that, too."]


def _told(shred: "Shred") -> str:
    if shred.status == "complete":
        return "Complete: no key version exists any more that opens an older copy of the store."
    if shred.session_id is None:
        return (
            f"Pending: whoever has an older copy of the store and key version {shred.kek_version} or an older one "
            "can open it there. Nothing of this org opens any more: its log can be checked with verify --keyless; "
            "retire the versions with another org of these keys, or where the keys are kept."
        )
    return (
        f"Pending: whoever has an older copy of the store and key version {shred.kek_version} or an older one can "
        "open it there. Rotate the keys, destroy such copies or let them expire, then retire these versions."
    )


@with_options
def _shreds(*, access: CustodyAccess, as_json: Json = False) -> None:
    """List what was shredded, and how far that is true by now."""
    with access.custody() as custody:
        shreds = custody.shreds()
    if as_json:
        emit_json(
            [
                {key: value for key, value in plain(one).items() if key not in ("originals", "same_content")}
                for one in shreds
            ]
        )
        return
    rows = [
        (
            one.session_id,
            one.result_id or "all",
            one.status,
            one.kek_version,
            format_time(one.requested_at_us),
            one.requested_by,
        )
        for one in shreds
    ]
    table(
        f"shredded in {access.org}",
        ("session", "result", "status", "key version", "requested", "by"),
        rows,
        numbers=[3],
    )
    say(f"{counted(sum(one.status == 'pending' for one in shreds), 'shred')} pending.")


@with_options
def _gc(
    *,
    access: CustodyAccess,
    run: Annotated[bool, typer.Option("--run", help="Destroy them; without it they are only listed.")] = False,
    register_file: RegisterFile = None,
    as_json: Json = False,
) -> None:
    """List originals whose retention is over, or shred them.

    With --run, those that no hold keeps are destroyed.
    """
    with access.custody(register=register_file) as custody:
        due = custody.gc(dry_run=not run)
    if as_json:
        emit_json({"dry_run": not run, "due": due})
        return
    rows = [_due_row(one, run=run) for one in due]
    table(f"retention over in {access.org}", ("session", "result", "bytes", "until", ""), rows, numbers=[2])
    free = sum(not one.held for one in due)
    say(
        f"{counted(free, 'original')} destroyed."
        if run
        else f"{counted(free, 'original')} would be destroyed by --run."
    )


def _due_row(due: "Due", *, run: bool) -> tuple[object, ...]:
    what = "held" if due.held else "destroyed" if run else "due"
    return due.session_id, due.result_id, due.size_bytes, format_time(due.retention_until_us), what


def _check_named(session_id: str | None, result_id: str | None, whole_org: bool) -> None:
    """Return only if it was said what is meant: what was forgotten does not mean everything."""
    if (session_id is not None) == whole_org:
        raise typer.BadParameter("Name --session, or --whole-org.")
    if whole_org and result_id is not None:
        raise typer.BadParameter("--result goes with --session.")


def _what(session_id: str | None, result_id: str | None) -> str:
    if session_id is None:
        return "the whole org"
    return f"session {session_id}" if result_id is None else f"{result_id} of session {session_id}"
