"""librdkafka's client at its defaults as a load generator, through confluent-kafka: an independent check of
`kuring perf`. Prints a report of the same form. Runs in the Python that has confluent-kafka, not in perf/compare's.

usage: librdkafka_load.py BOOTSTRAP produce|consume TOPIC RECORDS SECONDS RECORD_BYTES [name=value]...
"""

from __future__ import annotations

import json
import resource
import sys
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

QUIET_SECONDS_MAX = 5.0


def produce(settings: dict, topic: str, records: int, seconds: float, size: int) -> dict:
    producer = Producer(settings)
    value = bytes(65 + at * 7 % 26 for at in range(size))
    latencies: list[float] = []
    failures: list[str] = []

    def taken(error, message) -> None:
        if error is None:
            latencies.append(message.latency() or 0.0)
        else:
            failures.append(str(error))

    start = time.monotonic()
    sent = 0
    # A callback for each record would measure Python; one in a thousand is enough for the latency.
    while sent < records and time.monotonic() - start < seconds:
        for _ in range(1000):
            while True:
                try:
                    if sent % 1000 == 0:
                        producer.produce(topic, value, on_delivery=taken)
                    else:
                        producer.produce(topic, value)
                    break
                except BufferError:
                    producer.poll(0.01)
            sent += 1
        producer.poll(0)
    left = producer.flush(30)
    elapsed = time.monotonic() - start
    return side(sent - left, (sent - left) * size, elapsed, latencies, len(failures) + left)


def consume(settings: dict, topic: str, records: int, seconds: float, size: int) -> dict:
    consumer = Consumer(settings | {"group.id": "perf-compare", "enable.auto.commit": False})
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in partitions])
    start = last = time.monotonic()
    count = 0
    while count < records and last - start < seconds and time.monotonic() - last < QUIET_SECONDS_MAX:
        got = [message for message in consumer.consume(10000, 0.2) if message.error() is None]
        if got:
            count += len(got)
            last = time.monotonic()
    elapsed = last - start
    consumer.close()
    return side(count, count * size, elapsed, [], 0)


def side(records: int, size: int, seconds: float, latencies: list[float], failed: int) -> dict:
    ordered = sorted(latencies)
    at = lambda quantile: ordered[min(int(len(ordered) * quantile), len(ordered) - 1)] * 1000 if ordered else 0.0
    latency = {"p50": at(0.5), "p99": at(0.99), "p99.9": at(0.999), "max": at(1.0)}
    return {"records": records, "bytes": size, "requests": 0, "seconds": seconds, "failed": failed, "unsent": 0,
            "latency_ms": latency if ordered else {}}


def main() -> None:
    bootstrap, what, topic, records, seconds, size, *pairs = sys.argv[1:]
    settings = {"bootstrap.servers": bootstrap} | dict(pair.split("=", 1) for pair in pairs)
    run = {"produce": produce, "consume": consume}[what]
    report = run(settings, topic, int(records), float(seconds), int(size))
    used = resource.getrusage(resource.RUSAGE_SELF)
    name = {"produce": "produced", "consume": "consumed"}[what]
    print(json.dumps({"run": what, name: report, "client_cpu_seconds": used.ru_utime + used.ru_stime}))


if __name__ == "__main__":
    main()
