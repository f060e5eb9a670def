"""What a key service said, kept for an absolute time and then asked for again."""

import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["REMEMBERED_COUNT_MAX", "REMEMBER_MS", "Remembered", "monotonic_ms"]

REMEMBER_MS = 300_000
"""How long what a service said of its keys counts, in milliseconds."""

REMEMBERED_COUNT_MAX = 10_000
"""Answers that are kept at once."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def monotonic_ms() -> int:
    """Milliseconds that never go backwards."""
    return time.monotonic_ns() // 1_000_000


class Remembered(Generic[K, V]):
    """Answers by what was asked; threads may share it, and no lock is held while the service is asked.

    Args:
        ask: asks the service; what it raises is never kept.
        remember_ms: how long an answer counts from the moment it was asked for, in milliseconds; 0 for not at all.
        clock_ms: milliseconds that never go backwards.
    """

    def __init__(self, ask: Callable[[K], V], remember_ms: int, clock_ms: Callable[[], int]) -> None:
        self._ask = ask
        self._remember_ms = remember_ms
        self._clock_ms = clock_ms
        self._answers: dict[K, tuple[int, V]] = {}
        self._forgotten = 0
        self._lock = threading.Lock()

    def get(self, key: K, suffices: Callable[[V], bool] = lambda _: True) -> V:
        """The answer that is kept if it is recent and suffices, else a new one, which need not suffice either."""
        with self._lock:
            kept = self._answers.get(key)
            forgotten = self._forgotten
        asked_ms = self._clock_ms()
        if kept is not None and asked_ms - kept[0] < self._remember_ms and suffices(kept[1]):
            return kept[1]
        answer = self._ask(key)
        with self._lock:
            if forgotten == self._forgotten:  # else it may be from before what made somebody forget
                self._answers.pop(key, None)
                if len(self._answers) >= REMEMBERED_COUNT_MAX:
                    del self._answers[next(iter(self._answers))]
                self._answers[key] = asked_ms, answer
        return answer

    def peek(self, key: K) -> V | None:
        """The answer that is kept, however old."""
        with self._lock:
            kept = self._answers.get(key)
        return None if kept is None else kept[1]

    def forget(self, key: K) -> None:
        """The next question is asked, also where an answer is on its way."""
        with self._lock:
            self._forgotten += 1
            self._answers.pop(key, None)
