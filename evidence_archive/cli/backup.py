"""``evidence-archive backup`` and ``register``: copies of a store, and what is done again when one is put back."""

from pathlib import Path
from typing import Annotated

import typer

from evidence_archive.cli.opening import NAME_THE_POLICY, CustodyAccess, provider, with_options
from evidence_archive.cli.options import Custodians, Json, Keys, Objects, PolicyFile, Subject
from evidence_archive.cli.render import counted, emit_json, say, table
from evidence_archive.errors import NotAvailableError, PolicyError, StoreUnavailableError
from evidence_archive.model import format_time

__all__ = ["register"]

_WHO = "--keys evidence.keys --subject records"
_STORE = f"--url sqlite:///evidence.db --org north-clinic {_WHO}"

_Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the backup.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the ``backup`` and ``register`` commands."""
    backups = typer.Typer(
        help="Copy a store while programs run, and put a copy back.",
        epilog=f"Example: evidence-archive backup make backups/monday {_STORE}",
        rich_markup_mode=None,
    )
    backups.callback()(_backups)
    backups.command("make", epilog=f"Example: evidence-archive backup make backups/monday {_STORE}")(_make)
    backups.command(
        "restore",
        epilog=f"Example: evidence-archive backup restore monday sqlite:///new.db {_WHO} --replay shreds.jsonl",
    )(_restore)
    app.add_typer(backups, name="backup")
    registers = typer.Typer(
        help="Keep what must not be lost with a database in a file outside it.",
        epilog=f"Example: evidence-archive register append shreds.jsonl {_STORE}",
        rich_markup_mode=None,
    )
    registers.callback()(_registers)
    registers.command("append", epilog=f"Example: evidence-archive register append shreds.jsonl {_STORE}")(_append)
    app.add_typer(registers, name="register")


def _backups() -> None:
    """Copy a store while programs run, and put a copy back."""


def _registers() -> None:
    """Keep what must not be lost with a database in a file outside it."""


@with_options
def _make(*, folder: _Folder, access: CustodyAccess, as_json: Json = False) -> None:
    """Copy the whole store into a new folder and verify it there.

    Programs go on meanwhile. Every original in the copy is opened with the keys before the folder counts as a backup.
    The keys are not in it: keep them elsewhere.
    """
    with access.custody() as custody:
        backup = custody.backup(folder)
    if as_json:
        sizes = {"files": backup.files, "size_bytes": backup.size_bytes}
        emit_json({**_told(backup.made_at_us), "folder": str(backup.folder), "orgs": backup.orgs, **sizes})
        return
    heads = ("org", "originals", "log entries", "root")
    table(
        f"backup {folder}",
        heads,
        [(one.org, one.originals, one.size, one.root) for one in backup.orgs],
        numbers=[1, 2],
    )
    say(
        f"VERIFIED: {counted(len(backup.orgs), 'org')} in {counted(backup.files, 'file')}, "
        f"{counted(backup.size_bytes, 'byte')}. Keep the keys elsewhere: without them it opens nothing."
    )


def _restore(
    *,
    folder: _Folder,
    target: Annotated[
        str, typer.Argument(metavar="URL", help="Where to: nothing may be there yet.", show_default=False)
    ],
    subject: Subject,
    keys: Keys = None,
    policy: PolicyFile = None,
    objects: Objects = None,
    role: Custodians = None,
    replay: Annotated[
        list[str] | None,
        typer.Option(
            "--replay",
            metavar="WHERE",
            help="Register file, or URL of a newer database: holds and shreds since the backup; repeatable.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Put a backup back into an empty place.

    What was held, released, kept longer or shredded since the backup is done again from what --replay names. Without
    it, what was shredded since is there again.
    """
    from evidence_archive.backup import restore_backup
    from evidence_archive.policy import Policy

    try:
        restored = restore_backup(
            folder,
            target,
            keys=provider(keys),
            policy=None if policy is None else Policy.load(policy),
            subject=subject,
            roles=role or ("custodian",),
            objects=objects,
            replays=replay or (),
        )
    except PolicyError as error:
        error.args = (str(error).replace("name the policy.", NAME_THE_POLICY),)
        raise
    except NotAvailableError as error:
        error.args = ("Not available: check --role and --policy, which says who puts backups back.",)
        raise
    if as_json:
        emit_json({**_told(restored.made_at_us), "restored": restored, "replayed": bool(replay)})
        return
    heads = ("org", "originals", "log entries", "root")
    table(
        "as it was in the backup",
        heads,
        [(one.org, one.originals, one.size, one.root) for one in restored.orgs],
        numbers=[1, 2],
    )
    for done in restored.replayed:
        say(
            f"{done.org}: done again: {counted(done.holds, 'hold')}, {counted(done.releases, 'release')}, "
            f"{counted(done.retentions, 'longer retention')}, {counted(done.shreds, 'shred')}; "
            f"{done.already:,} were so already, {done.not_here:,} are about what is not in the backup."
        )
    say(f"VERIFIED and put back, as of {format_time(restored.made_at_us)}.")
    if not replay:
        say("WARNING: nothing was replayed: what was shredded or held since the backup is not so here.")


def _told(made_at_us: int) -> dict[str, object]:
    return {"made_at": format_time(made_at_us), "made_at_us": made_at_us}


@with_options
def _append(
    *,
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Register; made where it is missing.")],
    access: CustodyAccess,
    as_json: Json = False,
) -> None:
    """Append what was held, released, kept longer and shredded since the register's last line.

    Each line has a proof, and needs no secret to be kept. 'backup restore --replay' reads it.
    """
    from evidence_archive.register import Register

    with access.custody() as custody:
        try:
            added = custody.append_to(Register(path))
        except StoreUnavailableError as error:
            if isinstance(error.__cause__, OSError):
                reason = error.__cause__.strerror or "it cannot be used"
                error.args = (
                    f"The register {str(path)!r} cannot be written ({reason}): check path and permissions.",
                )
            raise
    if as_json:
        emit_json({"path": str(path), "added": added})
    else:
        say(f"{counted(added, 'line')} added to {path}.")
