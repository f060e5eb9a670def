"""Sealing: how one original is closed (``envelope``), and which keys close it (``keyring``).

Pure, with one exception that is stated here once: the Cobblestone encryptor of ``cryptography`` draws its own random
24-byte salt for every message. Keys, ids and times are all passed in.
"""

__all__: list[str] = []
