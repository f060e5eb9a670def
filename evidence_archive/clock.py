"""The machine's clock, behind the ``Clock`` port."""

import time

__all__ = ["SystemClock"]


class SystemClock:
    """Wall-clock and monotonic time of this machine."""

    def now_us(self) -> int:
        """Microseconds since 1970-01-01 UTC; may jump when the machine's clock is set."""
        return time.time_ns() // 1_000

    def monotonic_ms(self) -> int:
        """Milliseconds that never go backwards."""
        return time.monotonic_ns() // 1_000_000
