"""Messages between whoever grades a class and a worker: JSON with its length before it."""

import json
import socket
from typing import Any

__all__ = ["LARGEST", "receive", "send"]

LARGEST = 400_000_000  # bytes: a submission's files, in base 64


def send(channel: socket.socket, message: Any) -> None:
    """Send one message. Raises OSError where nobody listens."""
    data = json.dumps(message).encode()
    channel.sendall(len(data).to_bytes(8, "little") + data)


def receive(channel: socket.socket) -> Any:
    """The next message; None where the other side has gone. Raises TimeoutError, ValueError."""
    head = _exactly(channel, 8)
    size = int.from_bytes(head, "little") if head else 0
    if size > LARGEST:
        raise ValueError(f"a message of {size} bytes")
    data = _exactly(channel, size) if head else b""
    return json.loads(data) if data else None


def _exactly(channel: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        try:
            part = channel.recv(min(size - len(parts), 1 << 20))
        except ConnectionError:
            return b""
        if not part:
            return b""
        parts += part
    return bytes(parts)
