"""aiokafka through the scenarios."""

import asyncio
import sys
import time

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import MessageSizeTooLargeError, TopicAlreadyExistsError, for_code
from aiokafka.structs import OffsetAndMetadata

from scenarios import CODECS, PATIENCE, SIZES, SIZES_MAX, START, Member, Outage, Scenarios, mode, same, sized

bootstrap = sys.argv[1]


async def admin():
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    return client


async def create(name, partitions, config=None):
    topic = f"aiokafka-{name}"
    client = await admin()
    response = await client.create_topics([NewTopic(topic, partitions, bootstrap.count(",") + 1, topic_configs=config)])
    await client.close()
    if error := response.topic_errors[0][1]:
        raise for_code(error)(topic)
    return topic


async def eventually(what, probe):
    end = time.monotonic() + PATIENCE
    while not await probe():
        assert time.monotonic() < end, f"not within {PATIENCE} s: {what}"
        await asyncio.sleep(0.05)


async def send(topic, records, **more):
    """records: (partition, key, value, timestamp[, headers])."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, **{"acks": "all", **more})
    await producer.start()
    try:
        sent = [await producer.send(topic, value, key=key, partition=partition, timestamp_ms=timestamp,
                                    headers=headers[0] if headers else None)
                for partition, key, value, timestamp, *headers in records]
        return await asyncio.gather(*sent)
    finally:
        await producer.stop()


async def poll(source, count):
    got = []
    while len(got) < count:
        for records in (await source.getmany(timeout_ms=200)).values():
            got.extend(records)
    same(count, len(got), "records")
    return got


async def consumer(group=None, **more):
    source = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group and f"aiokafka-{group}",
                              enable_auto_commit=False, auto_offset_reset="earliest", heartbeat_interval_ms=200, **more)
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


async def administer():
    topic = await create("admin", 2, {"retention.ms": "3600000"})
    client = await admin()

    async def listed():
        return topic in await client.list_topics()

    await eventually("it is listed", listed)
    try:
        await create("admin", 1)
        raise AssertionError("created twice")
    except TopicAlreadyExistsError:
        pass
    await client.create_partitions({topic: NewPartitions(5)})

    async def partitions():
        return len((await client.describe_topics([topic]))[0]["partitions"]) == 5

    await eventually("five partitions", partitions)
    changed = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "7200000"})
    await client.alter_configs([changed])

    async def altered():
        [response] = await client.describe_configs([changed])
        return response.resources[0][4][0][1] == "7200000"

    await eventually("the change shows", altered)
    await client.delete_topics([topic])

    async def gone():
        return not await listed()

    await eventually("it is gone", gone)
    await client.close()


async def stored(topic, count, **more):
    source = await consumer(**more)
    source.assign([TopicPartition(topic, 0)])
    await source.seek_to_beginning()
    got = await poll(source, count)
    await source.stop()
    return got


async def headers_and_nulls():
    topic = await create("headers", 1)
    headers = [("a", b"1"), ("a", None), ("b", b"")]
    await send(topic, [(0, None, b"v", None, headers), (0, b"k", None, None)])
    first, second = await stored(topic, 2)
    same((None, b"v", headers), (first.key, first.value, list(first.headers)), "first")
    same((b"k", None), (second.key, second.value), "second")


async def sizes():
    topic = await create("sizes", 1, {"max.message.bytes": str(SIZES_MAX)})
    await send(topic, [(0, None, sized(size), None) for size in SIZES], max_request_size=SIZES_MAX)
    got = await stored(topic, len(SIZES), max_partition_fetch_bytes=1000)
    same([sized(size) for size in SIZES], [record.value for record in got], "values")


async def too_large():
    topic = await create("too-large", 1, {"max.message.bytes": "20000"})
    try:
        await send(topic, [(0, None, b"x" * 30_000, None)])
        raise AssertionError("it is taken")
    except MessageSizeTooLargeError:
        pass


async def log_append_time():
    topic = await create("append-time", 1, {"message.timestamp.type": "LogAppendTime"})
    [told] = await send(topic, [(0, None, b"v", 1000)])
    [record] = await stored(topic, 1)
    same((1, told.timestamp), (record.timestamp_type, record.timestamp), "the stored time")
    assert abs(told.timestamp - time.time() * 1000) < 60_000, told


async def transactions():
    topic, source_topic = await create("txn", 1), await create("txn-input", 1)
    await send(source_topic, [(0, None, b"v", None)] * 3)
    partition = TopicPartition(source_topic, 0)
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="aiokafka-txn")
    await producer.start()
    for outcome in ["committed", "aborted", "committed"]:
        await producer.begin_transaction()
        await producer.send_and_wait(topic, outcome.encode(), partition=0)
        if outcome == "committed":
            await producer.send_offsets_to_transaction({partition: OffsetAndMetadata(3, "")}, "aiokafka-txn")
            await producer.commit_transaction()
        else:
            await producer.abort_transaction()
    await producer.stop()
    got = await stored(topic, 2, isolation_level="read_committed")
    same([b"committed", b"committed"], [record.value for record in got], "read_committed")
    got = await stored(topic, 3)
    same([b"committed", b"aborted", b"committed"], [record.value for record in got], "read_uncommitted")
    client = await admin()
    same(3, (await client.list_consumer_group_offsets("aiokafka-txn"))[partition].offset, "the offset")
    await client.close()


async def shares(wanted, *members):
    async def holds():
        for one in members:
            await one.getmany(timeout_ms=50)
        return [len(one.assignment()) for one in members] == wanted

    await eventually(f"shares {wanted}", holds)


async def group_share():
    topic = await create("share", 4)
    one, two = await consumer("share"), await consumer("share")
    one.subscribe([topic])
    two.subscribe([topic])
    await shares([2, 2], one, two)
    await two.stop()
    await shares([4], one)
    await one.stop()


CRASH = {"session_timeout_ms": 6000}


async def group_crash():
    topic = await create("crash", 4)
    other = Member("crash", topic)
    one = await consumer("crash", **CRASH)
    one.subscribe([topic])
    await shares([2], one)
    other.kill()
    killed = time.monotonic()
    await shares([4], one)
    assert time.monotonic() - killed > 3, "its session had not ended yet"
    await one.stop()


async def member(group, topic):
    """Until it is killed."""
    source = await consumer(group, **CRASH)
    source.subscribe([topic])
    while True:
        await source.getmany(timeout_ms=1000)


async def commit_async():
    topic = await create("async", 1)
    await send(topic, [(0, None, b"v", None)] * 10)
    partition = TopicPartition(topic, 0)
    source = await consumer("async")
    source.assign([partition])
    await poll(source, 10)
    task = asyncio.create_task(source.commit({partition: OffsetAndMetadata(4, "note")}))
    await source.getmany(timeout_ms=10)
    await task
    same(4, await source.committed(partition), "committed")
    client = await admin()
    same("note", (await client.list_consumer_group_offsets("aiokafka-async"))[partition].metadata, "metadata")
    await client.close()
    await source.stop()


async def seek_pause_resume():
    topic = await create("seek", 2)
    await send(topic, [(n % 2, None, b"%d" % n, START + n) for n in range(20)])
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    source = await consumer()
    source.assign([zero, one])
    source.seek(one, 0)
    source.seek(zero, 8)
    source.pause(one)
    same({0}, {record.partition for record in await poll(source, 2)}, "one is paused")
    source.resume(one)
    same({1}, {record.partition for record in await poll(source, 10)}, "one is resumed")
    source.seek(one, (await source.offsets_for_times({one: START + 19}))[one].offset)
    same([b"19"], [record.value for record in await poll(source, 1)], "the first at that time")
    await source.stop()


async def delete_records():
    topic = await create("delete-records", 1)
    await send(topic, [(0, None, b"%d" % n, None) for n in range(10)])
    partition = TopicPartition(topic, 0)
    client = await admin()
    same({partition: 6}, await client.delete_records({partition: RecordsToDelete(6)}), "low watermark")
    await client.close()
    same(b"6", (await stored(topic, 4))[0].value, "the first that is read")


async def topic_created_again():
    topic = await create("again", 1)
    await send(topic, [(0, None, b"old", None)] * 5)
    client = await admin()
    await client.delete_topics([topic])
    await client.close()

    async def created():
        try:
            return await create("again", 1)
        except TopicAlreadyExistsError:
            return None

    await eventually("the name is free", created)
    [told] = await send(topic, [(0, None, b"new", None)])
    same(0, told.offset, "offset")
    same([b"new"], [record.value for record in await stored(topic, 1)], "the only record")


async def outage():
    topic = await create("outage", 1)
    run = Outage()
    got = {}

    async def read():
        source = await consumer("outage")
        source.subscribe([topic])
        while True:
            for records in (await source.getmany(timeout_ms=100)).values():
                got.update((record.offset, record.value) for record in records)

    reader = asyncio.create_task(read())
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, request_timeout_ms=60_000)
    await producer.start()
    sent = []
    while not run.ends():
        sent.append(await producer.send(topic, b"%d" % len(sent), partition=0))
        if len(sent) == 1:
            await sent[0]
            run.ready()
        await asyncio.sleep(0.005)
    await asyncio.gather(*sent)
    await producer.stop()

    async def complete():
        if reader.done():
            reader.result()
        return len(got) == len(sent)

    await eventually("all is received", complete)
    reader.cancel()
    run.check(len(sent), [got[offset] for offset in sorted(got)], "received")
    run.check(len(sent), [record.value for record in await stored(topic, len(sent))], "stored")


def run(body, patience=2 * PATIENCE):
    return lambda: asyncio.run(asyncio.wait_for(body(), patience))


scenarios = Scenarios()
if mode() == "member":
    asyncio.run(member(*sys.argv[3:]))
if mode() == "outage":
    scenarios.run("outage", run(outage, 6 * PATIENCE))
    scenarios.exit()
scenarios.run("admin", run(administer))
for codec in CODECS:
    scenarios.run(f"codec-{codec}", run(lambda: round_trip(codec)))
scenarios.run("headers-and-nulls", run(headers_and_nulls))
scenarios.run("sizes", run(sizes))
scenarios.run("too-large", run(too_large))
scenarios.run("log-append-time", run(log_append_time))
scenarios.run("idempotent", run(idempotent))
scenarios.run("transactions", run(transactions))
scenarios.run("group-resume", run(group_resume))
scenarios.run("group-share", run(group_share))
scenarios.run("group-crash", run(group_crash))
scenarios.run("commit-async", run(commit_async))
scenarios.run("seek-pause-resume", run(seek_pause_resume))
scenarios.run("offsets-by-time", run(offsets_by_time))
scenarios.run("delete-records", run(delete_records))
scenarios.run("topic-created-again", run(topic_created_again))
scenarios.exit()
