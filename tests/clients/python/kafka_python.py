"""kafka-python through the scenarios."""

import sys

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

from scenarios import CODECS, PATIENCE, START, Scenarios, eventually, same

bootstrap = sys.argv[1]
admin = KafkaAdminClient(bootstrap_servers=bootstrap)


def create(name, partitions, config=None):
    topic = f"kafka-python-{name}"
    admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=config)])
    return topic


def send(topic, records, **more):
    """records: (partition, key, value, timestamp, headers)."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, **more)
    sent = [producer.send(topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp)
            for partition, key, value, timestamp, headers in records]
    done = [future.get(PATIENCE) for future in sent]
    producer.close()
    return done


def consumer(group=None, **more):
    return KafkaConsumer(bootstrap_servers=bootstrap, group_id=group and f"kafka-python-{group}",
                         enable_auto_commit=False, auto_offset_reset="earliest", heartbeat_interval_ms=200, **more)


def poll(source, count):
    got = []

    def step():
        for records in source.poll(100).values():
            got.extend(records)
        return len(got) >= count

    eventually(f"{count} records", step)
    same(count, len(got), "records")
    return got


def administer():
    topic = create("admin", 2)
    eventually("it is listed", lambda: topic in admin.list_topics())
    admin.delete_topics([topic])
    eventually("it is gone", lambda: topic not in admin.list_topics())


def round_trip(codec):
    topic = create(f"codec-{codec}", 2)
    records = [(n % 2, b"k%d" % n, b"value %d " % n + b"x" * n, START + n, [("h", b"1")])
               for n in range(500)]
    send(topic, records, compression_type=None if codec == "none" else codec, linger_ms=20)
    source = consumer()
    partitions = [TopicPartition(topic, partition) for partition in range(2)]
    source.assign(partitions)
    source.seek_to_beginning(*partitions)
    next_number = [0, 1]
    for record in poll(source, 500):
        n = next_number[record.partition]
        same(records[n][1:4], (record.key, record.value, record.timestamp), f"record {n}")
        next_number[record.partition] = n + 2
    source.close()


def idempotent():
    topic = create("idempotent", 1)
    done = send(topic, [(0, None, b"%d" % n, None, []) for n in range(300)], enable_idempotence=True)
    same(list(range(300)), [metadata.offset for metadata in done], "offsets")


def group_resume():
    topic = create("resume", 2)
    send(topic, [(n % 2, None, b"%d" % n, None, []) for n in range(10)])
    first = consumer("resume")
    first.subscribe([topic])
    poll(first, 10)
    first.commit()
    first.close()
    send(topic, [(1, None, b"later", None, [])])
    second = consumer("resume")
    second.subscribe([topic])
    same([b"later"], [record.value for record in poll(second, 1)], "after the commit")
    second.close()


def offsets_by_time():
    topic = create("times", 1, {"retention.ms": "-1"})
    for time in [1000, 2000, 3000]:
        send(topic, [(0, None, b"v", time, [])])
    source = consumer()
    partition = TopicPartition(topic, 0)
    same(1, source.offsets_for_times({partition: 1500})[partition].offset, "at 1500")
    same(None, source.offsets_for_times({partition: 3001})[partition], "at 3001")
    same({partition: 3}, source.end_offsets([partition]), "end")
    source.close()


scenarios = Scenarios()
scenarios.run("admin", administer)
for codec in CODECS:
    scenarios.run(f"codec-{codec}", lambda: round_trip(codec))
scenarios.run("idempotent", idempotent)
scenarios.run("group-resume", group_resume)
scenarios.run("offsets-by-time", offsets_by_time)
scenarios.exit()
