"""Where a plugin listens: a unix socket that only its owner can open, or a port of the loopback addresses."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

# The longest path that the kernel takes for a unix socket, in bytes.
_MAX_SOCKET_PATH = 107
_LOOPBACK = ("::1", "127.0.0.1")


@dataclass(frozen=True)
class Address:
    """An address that a plugin may listen on: `path`, or `port` of `hosts`."""

    path: str = ""
    hosts: tuple[str, ...] = ()
    port: int = 0

    @staticmethod
    def unix(path: str) -> Address:
        """A unix socket at a path. ValueError says what is wrong with it."""
        if not path or "\0" in path:
            raise ValueError(f"{path!r} is not the path of a socket: use an absolute path")
        length = len(path.encode())
        if length > _MAX_SOCKET_PATH:
            raise ValueError(
                f"socket path {path} has {length} bytes and the kernel takes {_MAX_SOCKET_PATH}: use a shorter one"
            )
        return Address(path=path)

    @staticmethod
    def parse(protocol: str, address: str) -> Address:
        """Read the values of --protocol and --address. ValueError says what to use instead.

        [::]:PORT and 0.0.0.0:PORT, which Google's guest agent passes to every plugin, mean that port of ::1 and 127.0.0.1:
        the protocol has no authentication, so other machines must not reach it.
        """
        if protocol == "unix":
            return Address.unix(address)
        if protocol != "tcp":
            raise ValueError(f"unknown protocol {protocol!r}: use --protocol=unix or --protocol=tcp")
        host, _, digits = address.rpartition(":")
        # Without a resolver, which could answer with any address.
        host = "127.0.0.1" if host == "localhost" else host
        is_ipv6 = host.startswith("[") and host.endswith("]")
        try:
            if not digits.isascii() or not digits.isdigit() or (":" in host and not is_ipv6):
                raise ValueError
            port = int(digits)
            ip = ipaddress.ip_address(host[1:-1] if is_ipv6 else host)
            if port > 0xFFFF:
                raise ValueError
        except ValueError:
            raise ValueError(f"{address!r} is not an address and a port: use 127.0.0.1:PORT or [::1]:PORT") from None
        # An IPv4 address in the form of IPv6 is checked as the address that it stands for.
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped:
            ip = ip.ipv4_mapped
        if ip.is_unspecified:
            return Address(hosts=_LOOPBACK, port=port)
        if not ip.is_loopback:
            raise ValueError(
                f"{address} can be reached from other machines and the plugin protocol has no authentication: "
                f"use 127.0.0.1:{port}, or better --protocol=unix"
            )
        return Address(hosts=(str(ip),), port=port)

    def targets(self) -> list[str]:
        """The address in the words of gRPC, one per socket."""
        if self.path:
            return [f"unix:{self.path}"]
        return [f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}" for host in self.hosts]
