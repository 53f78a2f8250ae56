"""What a URL says about where its server is. Pure."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def is_this_machine(url: str) -> bool:
    """Whether a URL names the loopback interface."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
