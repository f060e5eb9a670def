"""The suite that every object store passes: ours, and one of your own.

    class TestMyObjects(ObjectStoreContract):
        def make(self, folder):
            return MyObjects(folder / "objects")

Needs pytest. Each test makes its stores itself, from the test's own folder.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from evidence_archive.errors import MisuseError, StoreError
from evidence_archive.ports import OBJECT_BYTES_MAX, ObjectStore

__all__ = ["ObjectStoreContract"]

RACES = 8
"""Keys that the writers of a race compete for, one after the other."""

WRITERS = 8
"""Threads that race."""

_KEY = "3f/0123456789abcdef0123456789abcd.00000"
_NEIGHBOURS = [
    "3f/0123456789abcdef0123456789abcd.00001",
    "3f/0123456789abcdef0123456789abce.00000",
    "4f/0123456789abcdef0123456789abcd.00000",
]


class ObjectStoreContract:
    """Tests that a subclass runs on the store that its :meth:`make` gives."""

    def make(self, folder: Path) -> ObjectStore:
        """The store under test.

        Args:
            folder: the test's own; the same folder must give the same objects again, another one none of them.

        Raises:
            MisuseError: the class that inherits does not say how.
        """
        raise MisuseError("Say how an object store is made: define make(folder) in your class.")

    @contextmanager
    def opened(self, folder: Path) -> Iterator[ObjectStore]:
        """The store, closed at the end."""
        store = self.make(folder)
        try:
            yield store
        finally:
            store.close()

    def test_what_was_put_is_got_as_bytes(self, tmp_path: Path) -> None:
        """The same content, in the same type."""
        with self.opened(tmp_path) as store:
            store.put(_KEY, b"sealed")
            found = store.get(_KEY)
            assert type(found) is bytes, "get returns bytes"
            assert found == b"sealed", "get returns what was put"

    def test_every_byte_value_comes_back(self, tmp_path: Path) -> None:
        """Line ends, NUL and what is no text included."""
        data = bytes(range(256)) * 17 + b"\r\n\x00\n\x1a"
        with self.opened(tmp_path) as store:
            store.put(_KEY, data)
            assert store.get(_KEY) == data, "get returns exactly what was put"

    def test_an_empty_object_is_not_a_missing_one(self, tmp_path: Path) -> None:
        """Empty content is content."""
        with self.opened(tmp_path) as store:
            store.put(_KEY, b"")
            assert store.get(_KEY) == b"", "an empty object is there"
            assert store.get(_NEIGHBOURS[0]) is None, "a missing object is None"

    def test_an_object_of_the_largest_size_comes_back(self, tmp_path: Path) -> None:
        """``OBJECT_BYTES_MAX`` bytes are accepted, whole."""
        data = bytes(range(251)) * (OBJECT_BYTES_MAX // 251 + 1)
        data = data[:OBJECT_BYTES_MAX]
        with self.opened(tmp_path) as store:
            store.put(_KEY, data)
            # Compared outside the assertion: pytest would work for hours on a readable difference of 8 MiB.
            whole = store.get(_KEY) == data
            assert whole, "get returns the whole object"

    def test_an_unknown_object_is_none(self, tmp_path: Path) -> None:
        """Neither an error nor empty."""
        with self.opened(tmp_path) as store:
            assert store.get(_KEY) is None, "no object, no bytes"

    def test_objects_are_still_there_for_a_new_instance(self, tmp_path: Path) -> None:
        """What was put outlives the store object that put it."""
        with self.opened(tmp_path) as store:
            store.put(_KEY, b"sealed")
        with self.opened(tmp_path) as again:
            assert again.get(_KEY) == b"sealed", "a new instance finds the object"

    def test_another_folder_holds_none_of_the_objects(self, tmp_path: Path) -> None:
        """Tests that share a service do not see each other."""
        one, other = tmp_path / "one", tmp_path / "other"
        one.mkdir()
        other.mkdir()
        with self.opened(one) as store, self.opened(other) as elsewhere:
            store.put(_KEY, b"sealed")
            assert elsewhere.get(_KEY) is None, "objects of one store are not in another"

    def test_keys_that_differ_in_one_character_are_different_objects(self, tmp_path: Path) -> None:
        """Reading, writing and deleting one leaves the others as they are."""
        with self.opened(tmp_path) as store:
            for key in (_KEY, *_NEIGHBOURS):
                store.put(key, key.encode())
            assert [store.get(key) for key in _NEIGHBOURS] == [key.encode() for key in _NEIGHBOURS]
            store.delete(_KEY)
            assert store.get(_KEY) is None, "what was deleted is gone"
            assert [store.get(key) for key in _NEIGHBOURS] == [key.encode() for key in _NEIGHBOURS]

    def test_an_object_is_never_overwritten(self, tmp_path: Path) -> None:
        """Other content under a key that is taken is a ``StoreError``, whichever is longer, and by any instance."""
        with self.opened(tmp_path) as store, self.opened(tmp_path) as other:
            store.put(_KEY, b"the first")
            for writer in (store, other):
                for data in (b"", b"the", b"the other", b"the first and more"):
                    assert _refuses(writer, _KEY, data), "other content under the same key is a StoreError"
                    assert store.get(_KEY) == b"the first", "the first object stands"

    def test_a_repeated_put_of_the_same_bytes_succeeds(self, tmp_path: Path) -> None:
        """An answer that got lost can be asked for again."""
        with self.opened(tmp_path) as store, self.opened(tmp_path) as other:
            for writer in (store, store, other):
                writer.put(_KEY, b"sealed")
            assert store.get(_KEY) == b"sealed", "the object is there once"

    def test_exactly_one_of_many_writers_wins(self, tmp_path: Path) -> None:
        """All others get a ``StoreError``, and the object is the winner's, whole."""
        with self.opened(tmp_path) as store:
            for race in range(RACES):
                key = f"{race:02x}/{race:030x}.00000"
                contents = [bytes([65 + writer]) * (5_000 + writer) for writer in range(WRITERS)]
                won = _race(store, key, contents)
                assert len(won) == 1, f"one writer wins, not {len(won)}"
                whole = store.get(key) == won[0]
                assert whole, "the object is the winner's"

    def test_many_writers_of_the_same_bytes_all_succeed(self, tmp_path: Path) -> None:
        """Repeated requests may also overlap."""
        with self.opened(tmp_path) as store:
            won = _race(store, _KEY, [b"sealed" * 1_000] * WRITERS)
            assert len(won) == WRITERS, "the same bytes are welcome from everyone"
            whole = store.get(_KEY) == b"sealed" * 1_000
            assert whole, "the object is whole"

    def test_a_deleted_object_is_gone_for_every_instance(self, tmp_path: Path) -> None:
        """Deleting takes effect before it returns."""
        with self.opened(tmp_path) as store, self.opened(tmp_path) as other:
            store.put(_KEY, b"sealed")
            other.delete(_KEY)
            assert store.get(_KEY) is None, "what was deleted is gone"

    def test_deleting_what_is_not_there_succeeds(self, tmp_path: Path) -> None:
        """Deleting is idempotent, and a key can be used again after it."""
        with self.opened(tmp_path) as store:
            store.delete(_KEY)
            store.put(_KEY, b"one")
            store.delete(_KEY)
            store.delete(_KEY)
            store.put(_KEY, b"two")
            assert store.get(_KEY) == b"two", "the key is free after a delete"

    def test_closing_twice_is_fine_and_a_closed_store_refuses(self, tmp_path: Path) -> None:
        """Every verb raises an error of this library afterwards."""
        store = self.make(tmp_path)
        store.put(_KEY, b"sealed")
        store.close()
        store.close()
        uses = (partial(store.put, _KEY, b"sealed"), partial(store.get, _KEY), partial(store.delete, _KEY))
        for use in uses:
            refused = False
            try:
                use()
            except (MisuseError, StoreError):
                refused = True
            assert refused, "a closed store refuses"
        with self.opened(tmp_path) as again:
            assert again.get(_KEY) == b"sealed", "what was there before the close is there after it"

    def test_the_store_has_a_short_name(self, tmp_path: Path) -> None:
        """For reports: one word, no address and no credentials."""
        with self.opened(tmp_path) as store:
            assert store.name.replace("-", "").replace("_", "").isalnum(), "the name is one word"
            assert len(store.name) <= 32, "the name is short"


def _refuses(store: ObjectStore, key: str, data: bytes) -> bool:
    try:
        store.put(key, data)
    except StoreError:
        return True
    return False


def _race(store: ObjectStore, key: str, contents: list[bytes]) -> list[bytes]:
    """What those put who were told that it is stored."""
    won: list[bytes] = []
    failed: list[BaseException] = []
    start = threading.Barrier(len(contents))

    def write(data: bytes) -> None:
        start.wait()
        try:
            with suppress(StoreError):
                store.put(key, data)
                won.append(data)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(data,)) for data in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return won
