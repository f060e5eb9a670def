"""Whoever has the file of a store and an SQLite of their own: the long demo lets them change an original."""

import sqlite3
from contextlib import closing
from pathlib import Path

__all__ = ["copy_database", "flip_a_byte"]


def copy_database(source: Path, target: Path) -> None:
    """Copy a database while programs have it open (https://sqlite.org/backup.html).

    Args:
        source: an SQLite database.
        target: a new file.
    """
    with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
        one.backup(other)


def flip_a_byte(database: Path, number: int) -> None:
    """Change one byte in the middle of a sealed original.

    Args:
        database: a store with one session.
        number: of a result in it whose original lies in the database.
    """
    with closing(sqlite3.connect(database)) as connection, connection:
        original_id, envelope = connection.execute(
            "SELECT original_id, envelope FROM originals JOIN results USING (original_id) WHERE number = ?", (number,)
        ).fetchone()
        at = len(envelope) // 2
        changed = envelope[:at] + bytes([envelope[at] ^ 1]) + envelope[at + 1 :]
        connection.execute("UPDATE originals SET envelope = ? WHERE original_id = ?", (changed, original_id))
