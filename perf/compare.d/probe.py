"""A client of two requests, ApiVersions and Produce, without the start of a process: for the time from a broker's
start to the first record that it has taken."""

from __future__ import annotations

import socket
import struct
import time

WAIT_SECONDS = 5.0


def crc32c_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


TABLE = crc32c_table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def batch(value: bytes) -> bytes:
    """A batch of one record, shorter than 64 bytes."""
    record = b"\0\0\0\x01" + bytes([len(value) << 1]) + value + b"\0"
    body = bytes([len(record) << 1]) + record
    stamp = int(time.time() * 1000)
    summed = struct.pack(">hiqqqhii", 0, 0, stamp, stamp, -1, -1, -1, 1) + body
    return struct.pack(">qiibI", 0, 49 + len(body), 0, 2, crc32c(summed)) + summed


def framed(key: int, version: int, body: bytes) -> bytes:
    head = struct.pack(">hhih5s", key, version, 7, 5, b"probe")
    frame = head + body
    return struct.pack(">i", len(frame)) + frame


API_VERSIONS = framed(18, 0, b"")
PRODUCE_VERSION = 9


def produce(topic: str) -> bytes:
    """acks=1, partition 0; flexible, with empty tags."""
    records = batch(b"first")
    name = topic.encode()
    body = b"\0" + b"\0" + struct.pack(">hi", 1, 5000) + b"\x02" + bytes([len(name) + 1]) + name
    body += b"\x02" + struct.pack(">i", 0) + bytes([len(records) + 1]) + records + b"\0\0\0"
    return framed(0, PRODUCE_VERSION, body)


class Probe:
    def __init__(self, port: int) -> None:
        self.port = port

    def answers(self) -> bool:
        return self._ask(API_VERSIONS) is not None

    def takes_a_record(self, topic: str) -> bool:
        answer = self._ask(produce(topic))
        if answer is None:
            return False
        # Correlation id and tags; one topic with its name; one partition with its index; the error.
        at = 4 + 1 + 1 + 1 + len(topic) + 1 + 4
        return answer[at:at + 2] == b"\0\0"

    def _ask(self, request: bytes) -> bytes | None:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_SECONDS) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.sendall(request)
                length = struct.unpack(">i", receive(connection, 4))[0]
                return receive(connection, length)
        except OSError:
            return None


def receive(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        piece = connection.recv(count - len(received))
        if not piece:
            raise ConnectionError("closed")
        received += piece
    return received
