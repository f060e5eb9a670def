"""Options that several commands share: what to open, who asks, how to print."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Json", "Keys", "Objects", "Org", "PolicyFile", "Roles", "Subject", "Url"]

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
    Path | None,
    typer.Option(
        "--keys",
        metavar="FILE",
        envvar="EVIDENCE_ARCHIVE_KEYS_PATH",
        help="Key file; without it the keys come from the variable EVIDENCE_ARCHIVE_KEYS.",
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
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
