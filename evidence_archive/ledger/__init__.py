"""Bookkeeping for facts: originals are vouchers, facts are entries that point at them, periods settle what agrees."""

__all__: list[str] = []
