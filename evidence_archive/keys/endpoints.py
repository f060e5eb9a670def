"""Addresses of key services: with TLS unless they are on this machine, and never with credentials in them."""

import ipaddress
from urllib.parse import SplitResult, urlsplit

from evidence_archive.errors import KeyringError

__all__ = ["checked_url"]


def checked_url(url: str, what: str) -> SplitResult:
    """The parts of ``http(s)://host:port/path?query``.

    Args:
        url: not repeated in any error: whoever writes credentials into a URL does not find them in a log.
        what: whose address it is, for errors.

    Raises:
        KeyringError: it cannot be used, holds credentials, or has no TLS and is not on this machine.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        usable = bool(host) and parts.port != 0 and parts.scheme in ("http", "https") and url.isprintable()
    except ValueError:
        parts, host, usable = urlsplit(""), "", False
    if "@" in parts.netloc:
        raise KeyringError(f"The address of {what} has credentials in it: leave them to the environment.")
    if not usable or parts.fragment:
        raise KeyringError(f"The address of {what} cannot be used: write https://host:port.")
    if parts.scheme == "http" and not _is_loopback(host):
        raise KeyringError(f"The address of {what} has no TLS: use https://, since keys go there.")
    return parts


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
