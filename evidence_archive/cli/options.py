"""Options that several commands share: what to open, who asks, how to print."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "Anchors",
    "Custodians",
    "Json",
    "Keys",
    "Objects",
    "Org",
    "PolicyFile",
    "RegisterFile",
    "Roles",
    "Subject",
    "Url",
]

Url = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="EVIDENCE_ARCHIVE_URL",
        help="Store, such as sqlite:///evidence.db; it has to exist.",
        show_default=False,
    ),
]
Keys = Annotated[
    str | None,
    typer.Option(
        "--keys",
        metavar="WHERE",
        envvar="EVIDENCE_ARCHIVE_KEYS_PATH",
        help="Key file, env:NAME, command:PROGRAM, kms:ALIAS, transit:URL; else the variable EVIDENCE_ARCHIVE_KEYS.",
    ),
]
PolicyFile = Annotated[
    Path | None,
    typer.Option(
        "--policy",
        metavar="FILE",
        envvar="EVIDENCE_ARCHIVE_POLICY",
        help="Policy file that the agents use; without it the built-in default.",
    ),
]
Objects = Annotated[
    str | None,
    typer.Option(
        "--objects",
        metavar="WHERE",
        envvar="EVIDENCE_ARCHIVE_OBJECTS",
        help="Folder or s3://bucket/prefix of large originals; without it the folder beside the database.",
    ),
]
Org = Annotated[
    str,
    typer.Option("--org", metavar="NAME", envvar="EVIDENCE_ARCHIVE_ORG", help="Org of who asks.", show_default=False),
]
Subject = Annotated[
    str,
    typer.Option(
        "--subject",
        metavar="NAME",
        envvar="EVIDENCE_ARCHIVE_SUBJECT",
        help="Who asks: a person or an agent.",
        show_default=False,
    ),
]
Roles = Annotated[list[str] | None, typer.Option("--role", metavar="NAME", help="Role of who asks; repeatable.")]
Custodians = Annotated[
    list[str] | None,
    typer.Option("--role", metavar="NAME", help="Role of who acts; repeatable.", show_default="custodian"),
]
Anchors = Annotated[
    list[str] | None,
    typer.Option(
        "--anchor",
        metavar="WHERE",
        envvar="EVIDENCE_ARCHIVE_ANCHORS",
        help="Gets a copy of the signed head: a file, log, command:PROGRAM, objects:FOLDER or a bucket; repeatable.",
    ),
]
RegisterFile = Annotated[
    Path | None,
    typer.Option(
        "--register",
        metavar="FILE",
        envvar="EVIDENCE_ARCHIVE_REGISTER",
        help="File outside the store that keeps holds and shreds, for when a backup is put back.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
