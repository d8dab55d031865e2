"""aiokafka through the scenarios."""

import asyncio
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from scenarios import CODECS, PATIENCE, START, Scenarios, same

bootstrap = sys.argv[1]


async def create(name, partitions, config=None):
    topic = f"aiokafka-{name}"
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=config)])
    await admin.close()
    return topic


async def send(topic, records, **more):
    """records: (partition, key, value, timestamp)."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, **more)
    await producer.start()
    sent = [await producer.send(topic, value, key=key, partition=partition, timestamp_ms=timestamp)
            for partition, key, value, timestamp in records]
    done = await asyncio.gather(*sent)
    await producer.stop()
    return done


async def poll(source, count):
    got = []
    while len(got) < count:
        for records in (await source.getmany(timeout_ms=200)).values():
            got.extend(records)
    same(count, len(got), "records")
    return got


async def consumer(group=None):
    source = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group and f"aiokafka-{group}",
                              enable_auto_commit=False, auto_offset_reset="earliest", heartbeat_interval_ms=200)
    await source.start()
    return source


async def round_trip(codec):
    topic = await create(f"codec-{codec}", 2)
    records = [(n % 2, b"k%d" % n, b"value %d " % n + b"x" * n, START + n) for n in range(500)]
    await send(topic, records, compression_type=None if codec == "none" else codec, linger_ms=20)
    source = await consumer()
    source.assign([TopicPartition(topic, partition) for partition in range(2)])
    await source.seek_to_beginning()
    next_number = [0, 1]
    for record in await poll(source, 500):
        n = next_number[record.partition]
        same(records[n][1:], (record.key, record.value, record.timestamp), f"record {n}")
        next_number[record.partition] = n + 2
    await source.stop()


async def idempotent():
    topic = await create("idempotent", 1)
    done = await send(topic, [(0, None, b"%d" % n, None) for n in range(300)], enable_idempotence=True)
    same(list(range(300)), [metadata.offset for metadata in done], "offsets")


async def group_resume():
    topic = await create("resume", 2)
    await send(topic, [(n % 2, None, b"%d" % n, None) for n in range(10)])
    first = await consumer("resume")
    first.subscribe([topic])
    await poll(first, 10)
    await first.commit()
    await first.stop()
    await send(topic, [(1, None, b"later", None)])
    second = await consumer("resume")
    second.subscribe([topic])
    same([b"later"], [record.value for record in await poll(second, 1)], "after the commit")
    await second.stop()


async def offsets_by_time():
    topic = await create("times", 1, {"retention.ms": "-1"})
    for time in [1000, 2000, 3000]:
        await send(topic, [(0, None, b"v", time)])
    source = await consumer()
    partition = TopicPartition(topic, 0)
    source.assign([partition])
    same(1, (await source.offsets_for_times({partition: 1500}))[partition].offset, "at 1500")
    same(3, (await source.end_offsets([partition]))[partition], "end")
    await source.stop()


def run(body):
    return lambda: asyncio.run(asyncio.wait_for(body(), 2 * PATIENCE))


scenarios = Scenarios()
for codec in CODECS:
    scenarios.run(f"codec-{codec}", run(lambda: round_trip(codec)))
scenarios.run("idempotent", run(idempotent))
scenarios.run("group-resume", run(group_resume))
scenarios.run("offsets-by-time", run(offsets_by_time))
scenarios.exit()
