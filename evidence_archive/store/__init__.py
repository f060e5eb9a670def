"""The only package that knows SQL: tables, row seals, engine rules, migrations, and the statements themselves."""

from evidence_archive.store.copying import path_of, sync_path
from evidence_archive.store.sql import SqlStore, open_store

__all__ = ["SqlStore", "open_store", "path_of", "sync_path"]
