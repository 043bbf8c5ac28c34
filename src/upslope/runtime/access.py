"""Who may talk to a server of ours: this machine by its own names, anybody else with a key. Standard library only."""

from __future__ import annotations

import hmac
import ipaddress
from urllib.parse import urlsplit

from upslope.errors import UserError


def is_address(host: str) -> bool:
    """Whether it is an IP address and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether a name or address means this machine alone."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def host_of(header: str) -> str:
    """The name or address in a ``Host`` header, without its port; empty if it cannot be read."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def same_key(given: str, wanted: str) -> bool:
    """Whether two keys are equal, in a time that says nothing about where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), wanted.encode("utf-8", "surrogateescape"))


def bearer(header: str) -> str:
    """The key in an ``Authorization`` header."""
    return header.removeprefix("Bearer ").strip()


def check_reach(host: str, token: str, variable: str) -> None:
    """Refuses to be reached from other machines without a key."""
    if not token and not is_loopback(host):
        raise UserError(f"--host {host} can be reached from other machines, and there is no key. Give --token, or set {variable}.")
