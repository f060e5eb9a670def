"""Backups of PostgreSQL: a dump has every org in it, or it fails."""

import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import Conversation, Desk
from postgres_server import MISSING, Server
from sqlalchemy import URL, make_url

from evidence_archive import Principal

pytest.importorskip("psycopg", reason="sweep: the driver psycopg is missing")

LONG = "2026-11-30 worker 7: nothing to report\n" * 40
OWNERS = [Principal(org=org, subject="owner") for org in ("north-clinic", "south-clinic")]


def program(server: Server, name: str) -> str:
    found = str(server.process.binaries / name) if server.process else shutil.which(name)
    if found is None or not Path(found).exists():
        pytest.skip(f"{MISSING}: its {name} too")
    return found


def run(server: Server, name: str, url: URL, *options: str | Path) -> "subprocess.CompletedProcess[bytes]":
    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    return subprocess.run([program(server, name), "-d", address, *options], capture_output=True, check=False)


@pytest.fixture
def filled(postgresql_desk: Desk) -> Desk:
    with postgresql_desk.open() as archive:
        for owner in OWNERS:
            session, talk = archive.session("case", owner), Conversation()
            talk.tool(LONG)
            talk.say()
            session.view(talk.messages)
            session.archive([("r1", "all quiet")])
    return postgresql_desk


def test_a_dump_by_a_role_above_the_wall_brings_every_original_and_the_log_back(
    filled: Desk, postgres: Server, tmp_path: Path
) -> None:
    theirs, dump = make_url(filled.url), tmp_path / "evidence.dump"
    dumped = run(postgres, "pg_dump", postgres.admin.set(database=theirs.database), "-Fc", "-f", dump)
    assert dumped.returncode == 0, dumped.stderr
    copy = postgres.database(str(theirs.username))
    try:
        put_back = run(postgres, "pg_restore", postgres.admin.set(database=copy.database), "--exit-on-error", dump)
        assert put_back.returncode == 0, put_back.stderr
        desk = Desk(filled.folder, copy.render_as_string(hide_password=False), postgres)
        with desk.open(create=False) as archive:
            for owner in OWNERS:
                assert archive.restore("case", "r1", principal=owner).content == LONG
                assert archive.audit(principal=owner).intact
        walls = "SELECT count(*) FROM pg_class WHERE relrowsecurity AND relforcerowsecurity"
        assert desk.execute(walls) == filled.execute(walls) != [(0,)]
    finally:
        postgres.drop(copy.database)


def test_a_dump_by_the_role_of_the_library_fails_and_is_no_backup_without_rows(
    filled: Desk, postgres: Server, tmp_path: Path
) -> None:
    dumped = run(postgres, "pg_dump", make_url(filled.url), "-Fc", "-f", tmp_path / "evidence.dump")
    assert dumped.returncode != 0
    assert b"row-level security" in dumped.stderr
