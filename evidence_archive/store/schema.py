"""The schema's version: made, brought up to date, or refused when a newer library wrote it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, inspect, text

from evidence_archive.errors import UnsupportedVersionError

if TYPE_CHECKING:
    from evidence_archive.store.engine import SqlEngine

__all__ = ["SCHEMA_REVISION", "prepare_schema"]

_KNOWN = ("0001", "0002", "0003", "0004")
"""Every migration this version knows, in order; test_schema holds them equal to the files."""

SCHEMA_REVISION = _KNOWN[-1]
"""What a database is brought to."""

_VERSION = "SELECT version_num FROM evidence_archive_version"


def prepare_schema(engine: "SqlEngine", *, wait_ms: int) -> None:
    """Make the schema or bring it up to date, in one transaction that no other migration runs beside.

    Raises:
        UnsupportedVersionError: a newer version of this library wrote it.
    """
    with engine.peeking(wait_ms) as connection:
        driver: Any = connection.driver_connection
        if driver.execute(engine.version_table_sql).fetchone() and driver.execute(_VERSION).fetchone() == (
            SCHEMA_REVISION,
        ):
            return
    with engine.administering(wait_ms) as administering:
        if _revision(administering) != SCHEMA_REVISION:  # another process may have been first
            _upgrade(administering)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("evidence_archive_version"):
        return None
    revision: str | None = connection.execute(text(_VERSION)).scalar()
    if revision is not None and revision not in _KNOWN:
        raise UnsupportedVersionError(
            "A newer version of evidence_archive wrote this database: upgrade the library to open it."
        )
    return revision


def _upgrade(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, SCHEMA_REVISION)
