"""Looks at what the clients of an outage do, from outside: by what is in their topics (CLIENT-outage).

usage: outage.py BOOTSTRAP growth SECONDS CLIENT...
         waits until each topic has records more than it had at first; names those that have not
       outage.py BOOTSTRAP proof RESTARTED STOPPED CONTINUED CLIENT...
         prints "CLIENT why" for each whose records do not prove that it was sending before the broker was restarted,
         when it was stopped, and after it went on; all times in ms since 1970
A record has the time at which its client was told to send it, so one of the time in which the broker stood still was
waiting for it all the while.
"""

import socket
import struct
import sys
import time

LIST_OFFSETS, FETCH = 2, 1
LATEST = -1
RECORDS_MORE = 20
FETCH_BYTES = 50_000_000
# A client that sends every 5 ms and then sends nothing has been waiting for an answer since.
PAUSE_MS_MAX = 2_000


class Cluster:
    """The brokers of BOOTSTRAP: each is asked for what it leads."""

    def __init__(self, bootstrap):
        self.brokers = [Broker(address) for address in bootstrap.split(",")]

    def end(self, topic):
        return max(broker.end(topic) for broker in self.brokers)

    def batches(self, topic):
        return max(self.brokers, key=lambda broker: broker.end(topic)).batches(topic)


class Broker:
    def __init__(self, bootstrap):
        host, port = bootstrap.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), 30)
        self.socket.settimeout(30)

    def call(self, key, version, body):
        frame = struct.pack(">hhih", key, version, 1, -1) + body
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)
        [length] = struct.unpack(">i", self.exactly(4))
        return self.exactly(length)[4:]

    def exactly(self, count):
        parts = []
        while count > 0:
            part = self.socket.recv(count)
            if not part:
                raise ConnectionError("the broker has closed")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def end(self, topic):
        """Where the topic's only partition ends; 0 while there is none, or another broker leads it."""
        body = struct.pack(">ii", -1, 1) + text(topic) + struct.pack(">iiq", 1, 0, LATEST)
        answer = self.call(LIST_OFFSETS, 1, body)
        error, _, offset = struct.unpack_from(">hqq", answer, 4 + len(text(topic)) + 4 + 4)
        return offset if error == 0 else 0

    def batches(self, topic):
        """(first and youngest timestamp, records) of each batch."""
        offset, end = 0, self.end(topic)
        while offset < end:
            before = offset
            for offset, *batch in heads(self.fetch(topic, offset)):
                if offset > before:
                    yield tuple(batch)
            assert offset > before, f"{topic} gives nothing at {before} of {end}"

    def fetch(self, topic, offset):
        body = struct.pack(">iiiib", -1, 1000, 1, FETCH_BYTES, 0) + struct.pack(">i", 1) + text(topic)
        answer = self.call(FETCH, 4, body + struct.pack(">iiqi", 1, 0, offset, FETCH_BYTES))
        at = 4 + 4 + len(text(topic)) + 4
        _, error, _, _, aborted = struct.unpack_from(">ihqqi", answer, at)
        assert error == 0, f"{topic} at {offset}: error {error}"
        at += 26 + 16 * max(aborted, 0)
        [length] = struct.unpack_from(">i", answer, at)
        return answer[at + 4:at + 4 + max(length, 0)]


def text(name):
    return struct.pack(">h", len(name)) + name.encode()


def heads(records):
    """(next offset, first timestamp, youngest timestamp, count) of each whole batch."""
    at = 0
    while at + 61 <= len(records):
        base, length = struct.unpack_from(">qi", records, at)
        if at + 12 + length > len(records):
            break
        last, first_ms, youngest_ms = struct.unpack_from(">iqq", records, at + 23)
        yield base + last + 1, first_ms, youngest_ms, last + 1
        at += 12 + length


def growth(cluster, seconds, clients):
    first = {client: cluster.end(f"{client}-outage") for client in clients}
    end = time.monotonic() + seconds
    while missing := [client for client in clients if cluster.end(f"{client}-outage") < first[client] + RECORDS_MORE]:
        if time.monotonic() > end:
            print(f"no {RECORDS_MORE} records more within {seconds:.0f} s:", *missing)
            return False
        time.sleep(0.1)
    return True


def gap(batches, restarted, stopped, continued):
    """What the records do not prove."""
    times = sorted(time for first, youngest, _ in batches for time in (first, youngest))
    within = lambda begin, end: any(begin < time < end for time in times)
    if not within(0, restarted):
        return "nothing was sent before the restart"
    if not within(restarted, stopped):
        return "nothing was sent between the restart and the stop"
    if not within(stopped, continued):
        waiting = [time for time in times if time <= stopped]
        if stopped - waiting[-1] > PAUSE_MS_MAX:
            return f"nothing was on its way when the broker was stopped: the last was {stopped - waiting[-1]} ms old"
    if not within(continued, float("inf")):
        return "nothing was sent after the broker went on"
    return None


def main():
    bootstrap, command, *rest = sys.argv[1:]
    cluster = Cluster(bootstrap)
    if command == "growth":
        sys.exit(0 if growth(cluster, float(rest[0]), rest[1:]) else 1)
    assert command == "proof", command
    times = [int(time) for time in rest[:3]]
    for client in rest[3:]:
        if why := gap(list(cluster.batches(f"{client}-outage")), *times):
            print(client, why)


if __name__ == "__main__":
    main()
