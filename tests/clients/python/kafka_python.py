"""kafka-python through the scenarios."""

import sys
import threading
import time

from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.errors import MessageSizeTooLargeError, TopicAlreadyExistsError
from kafka.structs import OffsetAndMetadata

from scenarios import (CODECS, PATIENCE, SIZES, SIZES_MAX, START, Member, Outage, Scenarios, eventually, mode, same,
                       sized)

bootstrap = sys.argv[1]
admin = KafkaAdminClient(bootstrap_servers=bootstrap)

# Milliseconds that a poll of a group's member may take, so many that joining ends within it: kafka-python 3.0.12 loses
# its assignment, for good, when a poll ends while the group's leader joins again because its topic's partitions changed.
JOINING = 1000


def create(name, partitions, config=None):
    topic = f"kafka-python-{name}"
    admin.create_topics([NewTopic(topic, partitions, -1, topic_configs=config)])
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
        for records in source.poll(JOINING).values():
            got.extend(records)
        return len(got) >= count

    eventually(f"{count} records", step)
    same(count, len(got), "records")
    return got


def code_of(action):
    try:
        action()
    except Exception as error:
        return type(error)
    return None


def administer():
    topic = create("admin", 2, {"retention.ms": "3600000"})
    eventually("it is listed", lambda: topic in admin.list_topics())
    same(TopicAlreadyExistsError, code_of(lambda: create("admin", 1)), "created twice")
    admin.create_partitions({topic: 5})
    eventually("five partitions", lambda: len(admin.describe_topics([topic])[0]["partitions"]) == 5)
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"cleanup.policy": ("APPEND", "compact")})])

    def policy():
        found = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])["topic"][topic]
        same("3600000", found["retention.ms"]["value"], "retention.ms")
        return found.get("cleanup.policy", {}).get("value")

    eventually("the change shows", lambda: policy() == "delete,compact")
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


def headers_and_nulls():
    topic = create("headers", 1)
    headers = [("a", b"1"), ("a", b"2"), ("b", b"")]
    send(topic, [(0, None, b"v", None, headers), (0, b"k", None, None, [])])
    first, second = stored(topic, 2)
    same((None, b"v", headers), (first.key, first.value, list(first.headers)), "first")
    same((b"k", None), (second.key, second.value), "second")


def stored(topic, count, **more):
    source = consumer(**more)
    source.assign([TopicPartition(topic, 0)])
    source.seek_to_beginning()
    got = poll(source, count)
    source.close()
    return got


def sizes():
    topic = create("sizes", 1, {"max.message.bytes": str(SIZES_MAX)})
    send(topic, [(0, None, sized(size), None, []) for size in SIZES], max_request_size=SIZES_MAX)
    got = stored(topic, len(SIZES), max_partition_fetch_bytes=1000)
    same([sized(size) for size in SIZES], [record.value for record in got], "values")


def too_large():
    topic = create("too-large", 1, {"max.message.bytes": "20000"})
    large = [(0, None, b"x" * 30_000, None, [])]
    same(MessageSizeTooLargeError, code_of(lambda: send(topic, large)), "error")


def log_append_time():
    topic = create("append-time", 1, {"message.timestamp.type": "LogAppendTime"})
    [told] = send(topic, [(0, None, b"v", 1000, [])])
    [record] = stored(topic, 1)
    same((1, told.timestamp), (record.timestamp_type, record.timestamp), "the stored time")
    assert abs(told.timestamp - time.time() * 1000) < 60_000, told


def transactions():
    topic, source_topic = create("txn", 1), create("txn-input", 1)
    send(source_topic, [(0, None, b"v", None, [])] * 3)
    offsets = {TopicPartition(source_topic, 0): OffsetAndMetadata(3, "", -1)}
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id="kafka-python-txn")
    producer.init_transactions()
    for outcome in ["committed", "aborted", "committed"]:
        producer.begin_transaction()
        producer.send(topic, outcome.encode(), partition=0)
        if outcome == "committed":
            producer.send_offsets_to_transaction(offsets, "kafka-python-txn")
            producer.commit_transaction()
        else:
            producer.flush(PATIENCE)
            producer.abort_transaction()
    producer.close()
    values = [record.value for record in stored(topic, 2, isolation_level="read_committed")]
    same([b"committed", b"committed"], values, "read_committed")
    same([b"committed", b"aborted", b"committed"], [record.value for record in stored(topic, 3)], "read_uncommitted")
    found = admin.list_group_offsets({"kafka-python-txn": None})["kafka-python-txn"]
    same({TopicPartition(source_topic, 0): 3}, {key: value.offset for key, value in found.items()}, "offsets")


def shared(wanted, members):
    for one in members:
        one.poll(JOINING)
    return sorted(len(one.assignment()) for one in members) == sorted(wanted)


def group_share():
    topic = create("share", 4)
    one, two = consumer("share"), consumer("share")
    one.subscribe([topic])
    eventually("all four", lambda: shared([4], [one]))
    two.subscribe([topic])
    # Joining blocks until all members have joined, so each needs a thread.
    with Polling(two) as other:
        eventually("two and two", lambda: shared([2], [one]) and len(other.held) == 2)
    two.close()
    eventually("all four", lambda: shared([4], [one]))
    one.close()


class Polling:
    """Polls a member in a thread of its own meanwhile, which is then the only one that may touch it."""

    def __init__(self, member):
        self.member, self.stop, self.held = member, threading.Event(), set()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        while not self.stop.is_set():
            self.member.poll(JOINING)
            self.held = set(self.member.assignment())

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join(PATIENCE)


# So long that a machine that does much else does not take a member for one that has crashed.
CRASH = {"session_timeout_ms": 15000}


def group_crash():
    topic = create("crash", 4)
    other = Member("crash", topic)
    one = consumer("crash", **CRASH)
    one.subscribe([topic])
    eventually("two", lambda: shared([2], [one]))
    other.kill()
    killed = time.monotonic()
    eventually("all four", lambda: shared([4], [one]))
    assert time.monotonic() - killed > 3, "its session had not ended yet"
    one.close()


def member(group, topic):
    """Until it is killed."""
    source = consumer(group, **CRASH)
    source.subscribe([topic])
    while True:
        source.poll(JOINING)


class Taken(ConsumerRebalanceListener):
    def __init__(self):
        self.partitions = []

    def on_partitions_revoked(self, revoked):
        self.partitions.extend(revoked)

    def on_partitions_assigned(self, assigned):
        pass


def group_cooperative():
    topic = create("cooperative", 4)
    taken = Taken()
    cooperative = {"partition_assignment_strategy": [CooperativeStickyAssignor]}
    one, two = consumer("cooperative", **cooperative), consumer("cooperative", **cooperative)
    one.subscribe([topic], listener=taken)
    eventually("all four", lambda: shared([4], [one]))
    two.subscribe([topic])
    with Polling(two) as other:
        eventually("two and two", lambda: shared([2], [one]) and len(other.held) == 2)
    same(2, len(taken.partitions), "only what goes to the other is taken away")
    same(set(taken.partitions), two.assignment(), "what the other has")
    two.close()
    one.close()


def commit_async():
    topic = create("async", 1)
    send(topic, [(0, None, b"v", None, [])] * 10)
    done = []
    source = consumer("async")
    partition = TopicPartition(topic, 0)
    source.assign([partition])
    poll(source, 10)
    source.commit_async({partition: OffsetAndMetadata(4, "note", -1)}, callback=lambda _, outcome: done.append(outcome))
    eventually("the callback", lambda: source.poll(10) or done)
    found = source.committed(partition, metadata=True)
    same((4, "note"), (found.offset, found.metadata), "committed")
    source.close()


def seek_pause_resume():
    topic = create("seek", 2)
    send(topic, [(n % 2, None, b"%d" % n, START + n, []) for n in range(20)])
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    source = consumer()
    source.assign([zero, one])
    source.seek_to_beginning()
    source.seek(zero, 8)
    source.pause(one)
    same({0}, {record.partition for record in poll(source, 2)}, "one is paused")
    source.resume(one)
    same({1}, {record.partition for record in poll(source, 10)}, "one is resumed")
    source.seek(one, source.offsets_for_times({one: START + 11})[one].offset)
    eventually("a record", lambda: source.poll(100))
    source.seek(one, source.offsets_for_times({one: START + 19})[one].offset)
    same([b"19"], [record.value for record in poll(source, 1)], "the first at that time")
    source.close()


def delete_records():
    topic = create("delete-records", 1)
    send(topic, [(0, None, b"%d" % n, None, []) for n in range(10)])
    partition = TopicPartition(topic, 0)
    same(6, admin.delete_records({partition: 6})[partition]["low_watermark"], "low watermark")
    same(b"6", stored(topic, 4)[0].value, "the first that is read")


def topic_created_again():
    topic = create("again", 1)
    send(topic, [(0, None, b"old", None, [])] * 5)
    admin.delete_topics([topic])
    eventually("the name is free", lambda: code_of(lambda: create("again", 1)) is None)
    [told] = send(topic, [(0, None, b"new", None, [])])
    same(0, told.offset, "offset")
    same([b"new"], [record.value for record in stored(topic, 1)], "the only record")


def describe():
    topic = create("describe", 1)
    send(topic, [(0, None, b"x" * 1000, None, [])])
    for broker in admin.describe_log_dirs({topic: [0]}):
        text = str(broker)
        assert topic in text and "partition_size" in text, text
    configs = admin.describe_configs([ConfigResource(ConfigResourceType.BROKER, "1")], config_filter="all")
    assert "log.dirs" in configs["broker"]["1"], configs
    admin.describe_features()


def outage():
    topic = create("outage", 1)
    run = Outage()
    got, stop = {}, threading.Event()

    def read():
        source = consumer("outage")
        source.subscribe([topic])
        while not stop.is_set():
            for records in source.poll(100).values():
                got.update((record.offset, record.value) for record in records)
        source.close()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    producer = KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, delivery_timeout_ms=150_000,
                             max_block_ms=120_000)
    sent = []
    while not run.ends():
        sent.append(producer.send(topic, b"%d" % len(sent), partition=0))
        if len(sent) == 1:
            sent[0].get(PATIENCE)
            run.ready()
        time.sleep(0.005)
    for future in sent:
        future.get(60)
    producer.close()
    eventually("all is received", lambda: len(got) == len(sent))
    stop.set()
    reader.join(PATIENCE)
    run.check(len(sent), [got[offset] for offset in sorted(got)], "received")
    run.check(len(sent), [record.value for record in stored(topic, len(sent))], "stored")


scenarios = Scenarios()
if mode() == "member":
    member(*sys.argv[3:])
if mode() == "outage":
    scenarios.run("outage", outage)
    scenarios.exit()
scenarios.run("admin", administer)
for codec in CODECS:
    scenarios.run(f"codec-{codec}", lambda: round_trip(codec))
scenarios.run("headers-and-nulls", headers_and_nulls)
scenarios.run("sizes", sizes)
scenarios.run("too-large", too_large)
scenarios.run("log-append-time", log_append_time)
scenarios.run("idempotent", idempotent)
scenarios.run("transactions", transactions)
scenarios.run("group-resume", group_resume)
scenarios.run("group-share", group_share)
scenarios.run("group-crash", group_crash)
scenarios.run("group-cooperative", group_cooperative)
scenarios.run("commit-async", commit_async)
scenarios.run("seek-pause-resume", seek_pause_resume)
scenarios.run("offsets-by-time", offsets_by_time)
scenarios.run("delete-records", delete_records)
scenarios.run("topic-created-again", topic_created_again)
scenarios.run("describe", describe)
scenarios.exit()
