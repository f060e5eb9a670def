"""One file a schema version; add, never edit."""
