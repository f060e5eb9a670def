"""Between rows of the database and rows of the ports: types, seals, and the same check for every read."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar

from sqlalchemy import LargeBinary, Table, Text

from evidence_archive.errors import SealBrokenError
from evidence_archive.sealing.keyring import check_row_seal, row_seal
from evidence_archive.store.tables import sealed_columns

__all__ = ["Shape"]

R = TypeVar("R")


class Shape(Generic[R]):
    """How a port's row lies in its table.

    The row's fields are the table's columns in order, without ``seal``, and without ``org`` unless it holds it.

    Args:
        table: the table; its first column is ``org``, its last ``seal``.
        make: builds the row from its fields in order.
        key: the columns of the primary key besides ``org``.
    """

    def __init__(self, table: Table, make: type[R], *key: str, holds_org: bool = False) -> None:
        self.table = table
        self._first = 0 if holds_org else 1
        self.key = key
        self._make = make
        columns = [column.name for column in table.c]
        assert columns[0] == "org"  # noqa: S101 - a property of the code, checked when the module loads
        assert columns[-1] == "seal"  # noqa: S101
        self.fields = tuple(columns[1:-1])
        self._added = [column.info["unsealed_while"] for column in table.c if "unsealed_while" in column.info]
        added = ["unsealed_while" in column.info for column in table.c][:-1]
        assert added == sorted(added)  # noqa: S101 - only the last ones can be left out of a seal
        self._read: Any = attrgetter(*self.fields)
        self._name = table.name.encode()
        self._types: tuple[frozenset[type], ...] = tuple(
            frozenset(
                {
                    bytes if isinstance(column.type, LargeBinary) else str if isinstance(column.type, Text) else int,
                    *((type(None),) if column.nullable else ()),
                }
            )
            for column in table.c
        )
        assert sealed_columns(table) == tuple(columns[:-1])  # noqa: S101

    def values(self, org: str, row_key: bytes, row: R) -> tuple[Any, ...]:
        """The row as the table's columns in order, sealed anew."""
        values = (org, *self._read(row))
        return (*values, row_seal(row_key, self._name, self._sealed(values)))

    def _sealed(self, values: Sequence[Any]) -> Sequence[Any]:
        """What the seal covers: all values without the last added columns that have their defaults.

        A row from before such a column keeps its seal, and no two rows have the same values covered.
        """
        end = len(values)
        for default in reversed(self._added):
            if values[end - 1] != default:
                break
            end -= 1
        return values[:end]

    def opened(self, row_key: bytes, stored: Sequence[Any]) -> R:
        """The row, once its types and its seal hold.

        Raises:
            SealBrokenError: a column is not of its type, or the seal does not verify.
        """
        row = self.unchecked(stored)
        check_row_seal(row_key, self._name, self._sealed(stored[:-1]), stored[-1])
        return row

    def is_sealed(self, row_key: bytes, stored: Sequence[Any]) -> bool:
        """Whether the seal of a row of the right types holds."""
        try:
            check_row_seal(row_key, self._name, self._sealed(stored[:-1]), stored[-1])
        except SealBrokenError:
            return False
        return True

    def unchecked(self, stored: Sequence[Any]) -> R:
        """The row by its types alone, where the key that checks its seal is still inside it.

        Raises:
            SealBrokenError: a column is not of its type.
        """
        for value, types in zip(stored, self._types, strict=True):
            if type(value) not in types:
                raise SealBrokenError(_CHANGED)
        return self._make(*stored[self._first : -1])


_CHANGED = "A stored row is not what was written: a column is of another type."
