"""What a URL says about where its server is. Pure."""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit

_USER: Final = re.compile(r"(?<=://)[^/?#@]*@")


def without_user(url: str) -> str:
    """A URL as it may be shown: user name and password are not."""
    return _USER.sub("***@", url, count=1)


def is_this_machine(url: str) -> bool:
    """Whether a URL names the loopback interface."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
