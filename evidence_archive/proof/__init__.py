"""Proof: what an audit entry is in bytes (``leaf``), and how entries become one root (``merkle``). Pure."""

__all__: list[str] = []
