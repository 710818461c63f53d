"""Plain sockets between all pairs of ranks, for signs of life; payloads go by torch.distributed.

Addresses are exchanged over the process group that exists already. Each rank accepts only who shows the
number that it drew itself.
"""

import os
import secrets
import socket
import struct
from collections.abc import Callable

_TOKEN_BYTES = 16
_HELLO = struct.Struct(f">{_TOKEN_BYTES}si")
_CONNECT_S = 60.0


def connect_all(rank: int, all_gather_bytes: Callable[[bytes], list[bytes]]) -> dict[int, socket.socket]:
    """Return a non-blocking socket to every other rank; collective.

    `all_gather_bytes` returns every rank's bytes, in order of rank.
    """
    token = secrets.token_bytes(_TOKEN_BYTES)
    family, host = _own_address()
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind((host, 0))
        listener.listen(socket.SOMAXCONN)
        listener.settimeout(_CONNECT_S)
        port = listener.getsockname()[1]
        addresses = all_gather_bytes(token + struct.pack(">H", port) + host.encode())
        num_ranks = len(addresses)
        found: dict[int, socket.socket] = {}
        for peer in range(rank):
            address = addresses[peer]
            (peer_port,) = struct.unpack_from(">H", address, _TOKEN_BYTES)
            connection = socket.create_connection((address[_TOKEN_BYTES + 2 :].decode(), peer_port), _CONNECT_S)
            connection.sendall(_HELLO.pack(address[:_TOKEN_BYTES], rank))
            found[peer] = connection
        while len(found) < num_ranks - 1:
            connection, _ = listener.accept()
            peer = _greeted(connection, token)
            if rank < peer < num_ranks:
                found[peer] = connection
            else:
                connection.close()
    for connection in found.values():
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
    return found


def _own_address() -> tuple[socket.AddressFamily, str]:
    """Return the address that the launcher's host sees of this one."""
    host, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), os.environ.get("MASTER_PORT", "29500")
    family, kind, _, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # sends nothing: a datagram socket only picks its route
        return family, str(probe.getsockname()[0])


def _greeted(connection: socket.socket, token: bytes) -> int:
    """Return the rank of whoever connected, -1 when it does not know the token."""
    connection.settimeout(_CONNECT_S)
    data = b""
    while len(data) < _HELLO.size:
        part = connection.recv(_HELLO.size - len(data))
        if not part:
            return -1
        data += part
    shown, peer = _HELLO.unpack(data)
    return int(peer) if secrets.compare_digest(shown, token) else -1
