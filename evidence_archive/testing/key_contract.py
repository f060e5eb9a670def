"""What every key provider has to keep: one suite that ours and anybody's inherit."""

import threading
from pathlib import Path

import pytest

from evidence_archive.errors import EvidenceArchiveError, KeyNotFoundError, MisuseError, SealBrokenError
from evidence_archive.ports import KeyProvider

__all__ = ["KeyProviderContract"]

FINGERPRINT_BYTES = 16
KEY = bytes(range(32))
CONTEXT = b"evidence-archive/contract"
ORG, OTHER_ORG = "north-clinic", "south-clinic"


class KeyProviderContract:
    """The promises of :class:`~evidence_archive.ports.KeyProvider`, as tests.

    Inherit from it in a class whose name begins with ``Test``, and say how a provider is made::

        class TestOurKeys(KeyProviderContract):
            def make(self, folder):
                return OurKeys(folder)
    """

    def make(self, folder: Path) -> KeyProvider:
        """A provider with keys of its own; for another folder they are others.

        Args:
            folder: exists, is empty, and is kept for the whole test.

        Raises:
            MisuseError: the class that inherits does not say how.
        """
        raise MisuseError("Say how a key provider is made: define make(folder) in your class.")

    def reopen(self, folder: Path) -> KeyProvider:
        """Another object over the keys that :meth:`make` made in this folder.

        Args:
            folder: as :meth:`make` got it.

        Raises:
            MisuseError: the class that inherits does not say how.
        """
        raise MisuseError("Say how a key provider is opened again: define reopen(folder) in your class.")

    @pytest.fixture
    def keys(self, tmp_path: Path) -> KeyProvider:
        """A provider."""
        return self.make(tmp_path)

    def test_versions_are_whole_numbers_from_1_and_known_to_every_object(
        self, keys: KeyProvider, tmp_path: Path
    ) -> None:
        """The version that new keys are wrapped under is a fact about the keys, not about an object."""
        version = keys.current_version(ORG)
        assert type(version) is int
        assert version >= 1
        assert self.reopen(tmp_path).current_version(ORG) == version

    def test_a_fingerprint_is_16_bytes_and_names_one_key_of_one_org(self, keys: KeyProvider, tmp_path: Path) -> None:
        """A fingerprint is stored beside what was wrapped, and compared before it is unwrapped."""
        version = keys.current_version(ORG)
        fingerprint = keys.fingerprint(ORG, version)
        assert type(fingerprint) is bytes
        assert len(fingerprint) == FINGERPRINT_BYTES
        assert keys.fingerprint(ORG, version) == fingerprint
        assert self.reopen(tmp_path).fingerprint(ORG, version) == fingerprint
        assert keys.fingerprint(OTHER_ORG, keys.current_version(OTHER_ORG)) != fingerprint

    def test_what_was_wrapped_is_unwrapped_by_every_object_over_the_same_keys(
        self, keys: KeyProvider, tmp_path: Path
    ) -> None:
        """A process that starts tomorrow opens what this one wrapped."""
        version = keys.current_version(ORG)
        for key in (KEY, bytes(32), b"\xff" * 32):
            wrapped = keys.wrap(ORG, version, key, CONTEXT)
            assert type(wrapped) is bytes
            assert key not in wrapped
            assert keys.unwrap(ORG, version, wrapped, CONTEXT) == key
            assert self.reopen(tmp_path).unwrap(ORG, version, wrapped, CONTEXT) == key

    def test_under_another_context_nothing_is_unwrapped(self, keys: KeyProvider) -> None:
        """The context binds a key to its place: moved elsewhere, it does not open."""
        version = keys.current_version(ORG)
        wrapped = keys.wrap(ORG, version, KEY, CONTEXT)
        for context in (b"", CONTEXT[:-1], CONTEXT + b"\0", CONTEXT.upper()):
            with pytest.raises(SealBrokenError):
                keys.unwrap(ORG, version, wrapped, context)

    def test_for_another_org_nothing_is_unwrapped(self, keys: KeyProvider) -> None:
        """The keys of one org are of no use to another."""
        wrapped = keys.wrap(ORG, keys.current_version(ORG), KEY, CONTEXT)
        with pytest.raises(EvidenceArchiveError):
            keys.unwrap(OTHER_ORG, keys.current_version(OTHER_ORG), wrapped, CONTEXT)

    def test_changed_bytes_are_never_unwrapped(self, keys: KeyProvider) -> None:
        """Every bit counts: flipped, cut short, extended, doubled or empty, nothing comes out."""
        version = keys.current_version(ORG)
        wrapped = keys.wrap(ORG, version, KEY, CONTEXT)
        flipped = (
            bytes([*wrapped[:at], wrapped[at] ^ bit, *wrapped[at + 1 :]])
            for at in range(len(wrapped))
            for bit in (1, 128)
        )
        for damaged in (*flipped, wrapped[:-1], wrapped[1:], wrapped + b"\0", wrapped + wrapped, b""):
            with pytest.raises(SealBrokenError):
                keys.unwrap(ORG, version, damaged, CONTEXT)

    def test_a_version_that_is_missing_is_said_to_be_and_no_other_is_tried(self, keys: KeyProvider) -> None:
        """A missing version is a KeyNotFoundError, never a try with the current one."""
        current = keys.current_version(ORG)
        wrapped = keys.wrap(ORG, current, KEY, CONTEXT)
        for version in (0, -1, current + 1_000_000):
            with pytest.raises(KeyNotFoundError):
                keys.fingerprint(ORG, version)
            with pytest.raises(KeyNotFoundError):
                keys.wrap(ORG, version, KEY, CONTEXT)
            with pytest.raises(KeyNotFoundError):
                keys.unwrap(ORG, version, wrapped, CONTEXT)

    def test_other_keys_have_another_fingerprint_and_unwrap_nothing(self, keys: KeyProvider, tmp_path: Path) -> None:
        """Wrong keys are told by their fingerprint, and open nothing."""
        folder = tmp_path / "other"
        folder.mkdir()
        other, version = self.make(folder), keys.current_version(ORG)
        wrapped = keys.wrap(ORG, version, KEY, CONTEXT)
        assert other.fingerprint(ORG, other.current_version(ORG)) != keys.fingerprint(ORG, version)
        with pytest.raises(EvidenceArchiveError):
            other.unwrap(ORG, other.current_version(ORG), wrapped, CONTEXT)

    def test_threads_that_wrap_at_once_get_what_is_theirs(self, keys: KeyProvider) -> None:
        """One provider serves all threads of a process."""
        version = keys.current_version(ORG)
        wrong: list[object] = []

        def work(number: int) -> None:
            key, context = bytes([number]) * 32, b"%d" % number
            try:
                for _ in range(20):
                    if keys.unwrap(ORG, version, keys.wrap(ORG, version, key, context), context) != key:
                        wrong.append(number)
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
