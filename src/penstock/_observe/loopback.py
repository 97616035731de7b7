"""Loopback addresses, and the host names of requests to them."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether an address is a loopback address or `localhost`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def names_loopback(header: str) -> bool:
    """Whether a `Host` header names a loopback address."""
    if header.startswith("["):
        return is_loopback(header.partition("]")[0].removeprefix("["))
    return is_loopback(header.partition(":")[0].lower())
