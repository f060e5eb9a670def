"""Runs migrations on the connection, and inside the transaction, that the store hands in."""

from alembic import context
from sqlmodel import SQLModel

from evidence_archive.store import tables  # noqa: F401 - fills the metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=SQLModel.metadata,
    version_table="evidence_archive_version",
    transactional_ddl=False,
)
context.run_migrations()
