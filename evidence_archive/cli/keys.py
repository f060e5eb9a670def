"""``evidence-archive keys``: make the keys that everything else rests on, rotate them, destroy what is not needed."""

from typing import TYPE_CHECKING, Annotated

import typer

from evidence_archive.cli.opening import CustodyAccess, with_options
from evidence_archive.cli.options import Json
from evidence_archive.cli.render import confirm, counted, emit_json, say, table
from evidence_archive.errors import KeyringError
from evidence_archive.model import checked_name

if TYPE_CHECKING:
    from evidence_archive.rekeying import Census

__all__ = ["register"]

WARNING = (
    "Losing this file loses everything sealed with it: nobody can recover it, not even we. "
    "Copy it to a safe place now, apart from the database."
)

KEPT_ELSEWHERE = "Losing this key loses everything sealed with it: nobody can recover it, not even we."

_COPIES = (
    "Copies of the key file count as well: destroy those that still have version {version}, and copy the file anew."
)
_ELSEWHERE = "Keys in a service or a program go when it says so: docs/keys.md says when that is."

_STORE = "--url sqlite:///evidence.db --keys evidence.keys --org north-clinic --subject key-officer"


def register(app: typer.Typer) -> None:
    """Add the ``keys`` commands."""
    group = typer.Typer(
        help="Make, check, rotate and retire keys.",
        epilog="Example: evidence-archive keys new evidence.keys",
        rich_markup_mode=None,
        no_args_is_help=True,
    )
    group.command("new", epilog="Example: evidence-archive keys new evidence.keys")(_new)
    group.command("check", epilog=f"Example: evidence-archive keys check {_STORE}")(_check)
    group.command("rotate", epilog=f"Example: evidence-archive keys rotate {_STORE}")(_rotate)
    group.command("census", epilog=f"Example: evidence-archive keys census {_STORE}")(_census)
    group.command("retire", epilog=f"Example: evidence-archive keys retire 1 {_STORE}")(_retire)
    app.add_typer(group, name="keys")


def _new(
    where: Annotated[
        str,
        typer.Argument(
            metavar="WHERE",
            help="File to create, which must not exist yet; or command:PROGRAM, kms:ALIAS, transit:URL.",
            show_default=False,
        ),
    ],
    org: Annotated[
        str | None,
        typer.Option("--org", metavar="NAME", envvar="EVIDENCE_ARCHIVE_ORG", help="Whose; a file serves all orgs."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a key file, or an org's first key version.

    A file (mode 0600) gets fresh random keys. Losing it, or an org's key, loses everything that was sealed with it.
    """
    from evidence_archive.keys import SCHEMES, new_keys

    scheme, separator, _ = where.partition(":")
    if separator and scheme in SCHEMES:
        if org is None:
            raise typer.BadParameter("Name --org: there each org has keys of its own.")
        version = _first_version(where, org)
        if as_json:
            emit_json({"where": where, "org": org, "version": version})
        else:
            say(f"Made key version {version} of {org}.", f"WARNING: {KEPT_ELSEWHERE}")
        return
    new_keys(where)
    if as_json:
        emit_json({"path": where, "warning": WARNING})
    else:
        say(f"Created {where}.", f"WARNING: {WARNING}")


def _first_version(where: str, org: str) -> int:
    from evidence_archive.keys import open_provider
    from evidence_archive.ports import KeyLifecycle

    keys = open_provider(where)
    if not isinstance(keys, KeyLifecycle):
        raise KeyringError("These keys cannot be changed from here: make the first version where they are kept.")
    if not keys.shared_by_orgs and keys.versions(org):
        raise KeyringError("This org has a key there already: `evidence-archive keys rotate` makes another version.")
    return keys.new_version(checked_name(org, "org"))


@with_options
def _check(*, access: CustodyAccess, as_json: Json = False) -> None:
    """Say whether these keys open everything of an org.

    Exit 22 for the wrong keys, 21 where a version is missing.
    """
    with access.custody() as custody:
        opened_keys = custody.check_keys()
    if as_json:
        emit_json({"org": access.org, "opened": opened_keys})
    else:
        say(f"These keys open {access.org}: {counted(opened_keys, 'wrapped key')} unwrapped.")


@with_options
def _rotate(
    *,
    access: CustodyAccess,
    sweep_only: Annotated[
        bool, typer.Option("--sweep-only", help="Make no version: go on to the one that is current already.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Wrap everything of an org under a new key version.

    No original is touched. Stopped anywhere, it goes on with --sweep-only. Old versions stay until they are retired.
    """
    with access.custody() as custody:
        rotation = custody.rotate(new_version=not sweep_only)
    if as_json:
        emit_json(rotation)
        return
    say(f"{counted(rotation.rewrapped, 'key')} of {access.org} wrapped under version {rotation.version}.")
    _show(rotation.census)


@with_options
def _census(*, access: CustodyAccess, as_json: Json = False) -> None:
    """Count the keys of an org by the version they are wrapped under."""
    with access.custody() as custody:
        census = custody.census()
    if as_json:
        emit_json(census)
    else:
        _show(census)


@with_options
def _retire(
    *,
    version: Annotated[int, typer.Argument(metavar="VERSION", min=1, help="Which.", show_default=False)],
    access: CustodyAccess,
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking: it cannot be undone.")] = False,
    as_json: Json = False,
) -> None:
    """Destroy a key version that nothing needs.

    Refused while anything of this store is wrapped under it. Backups from before the rotation need it, and so does
    any other store that is sealed with the same keys: nobody can see those from here. Copies of a key file count,
    too.
    """
    from evidence_archive.keys import SCHEMES

    if not yes:
        confirm(f"Destroy key version {version} for good?")
    with access.custody() as custody:
        custody.retire(version)
        census = custody.census()
    if as_json:
        emit_json(census)
        return
    in_file = access.keys is not None and access.keys.partition(":")[0] not in SCHEMES
    say(
        f"Key version {version} was destroyed, as far as the provider can.",
        _COPIES.format(version=version) if in_file else _ELSEWHERE,
    )
    _show(census)


def _show(census: "Census") -> None:
    versions = sorted({*census.counts, *(census.available or ()), census.current})
    rows = [
        (
            version,
            census.counts.get(version, 0),
            "current" if version == census.current else None,
            None if census.available is None else "yes" if version in census.available else "no",
        )
        for version in versions
    ]
    table(f"keys of {census.org}", ("version", "wrapped keys", "", "at the provider"), rows, numbers=[0, 1])
    if census.floor:
        say(f"Nothing that is wrapped under a version below {census.floor} is believed.")
