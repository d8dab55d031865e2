"""confluent-kafka (librdkafka) through the scenarios."""

import sys
import threading
import time

from confluent_kafka import (AcknowledgeType, Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer,
                             ShareConsumer, TopicPartition)
from confluent_kafka.admin import (AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions,
                                   NewTopic, ResourceType)

from scenarios import (CODECS, PATIENCE, SIZES, SIZES_MAX, START, Member, Outage, Scenarios, eventually, mode, same,
                       sized)

bootstrap = sys.argv[1]
admin = AdminClient({"bootstrap.servers": bootstrap})


def wait(futures):
    return [future.result(PATIENCE) for future in futures.values()]


def create(name, partitions, **config):
    topic = f"confluent-{name}"
    wait(admin.create_topics([NewTopic(topic, partitions, -1, config=config)]))
    # librdkafka takes metadata from the broker only now and then: a new topic may be unknown to it for a while.
    eventually(f"{topic} is known", lambda: len(admin.list_topics(topic).topics[topic].partitions) == partitions)
    return topic


def code_of(action):
    try:
        action()
    except KafkaException as error:
        return error.args[0].name()
    return "none"


def send(topic, records, **more):
    """records: (partition, key, value, timestamp, headers)."""
    delivered = []
    producer = Producer({"bootstrap.servers": bootstrap, **more})
    for partition, key, value, timestamp, headers in records:
        producer.produce(topic, value, key, partition, timestamp=timestamp, headers=headers,
                         on_delivery=lambda error, message: delivered.append((error, message)))
    same(0, producer.flush(PATIENCE), "records not delivered")
    return delivered


def consumer(group="unused", **more):
    return Consumer({"bootstrap.servers": bootstrap, "group.id": f"confluent-{group}", "enable.auto.commit": False,
                     "auto.offset.reset": "earliest", "heartbeat.interval.ms": 200, **more})


def poll(source, count):
    got = []

    def step():
        got.extend(source.consume(count - len(got), 0.2))
        for message in got:
            assert message.error() is None, message.error()
        return len(got) == count

    eventually(f"{count} records", step)
    return got


def administer():
    topic = create("admin", 3, **{"retention.ms": "3600000"})
    same("TOPIC_ALREADY_EXISTS", code_of(lambda: wait(admin.create_topics([NewTopic(topic, 1, -1)]))), "again")
    wait(admin.create_partitions([NewPartitions(topic, 5)]))
    eventually("five partitions", lambda: len(admin.list_topics(topic).topics[topic].partitions) == 5)
    step = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND)
    wait(admin.incremental_alter_configs(
        [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[step])]))
    described = lambda: wait(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))[0]
    eventually("the change shows", lambda: described()["cleanup.policy"].value == "delete,compact")
    same("3600000", described()["retention.ms"].value, "retention.ms")
    wait(admin.delete_topics([topic]))
    same("UNKNOWN_TOPIC_OR_PART", code_of(lambda: wait(admin.delete_topics([topic]))), "deleted twice")


def round_trip(codec):
    topic = create(f"codec-{codec}", 4)
    records = [(n % 4, f"k{n}", f"value {n} " + "x" * n, START + n, [("h", b"1")]) for n in range(1000)]
    send(topic, records, **{"compression.type": codec, "linger.ms": 20})
    source = consumer()
    source.assign([TopicPartition(topic, partition, 0) for partition in range(4)])
    next_number = [0, 1, 2, 3]
    for message in poll(source, 1000):
        n = next_number[message.partition()]
        same(records[n][1:4], (message.key().decode(), message.value().decode(), message.timestamp()[1]), f"record {n}")
        next_number[message.partition()] = n + 4
    source.close()


def headers_and_nulls():
    topic = create("headers", 1)
    headers = [("a", b"1"), ("a", None), ("b", b"")]
    send(topic, [(0, None, b"v", 0, headers), (0, b"k", None, 0, None)])
    source = consumer()
    source.assign([TopicPartition(topic, 0, 0)])
    first, second = poll(source, 2)
    same((None, b"v", headers), (first.key(), first.value(), first.headers()), "first")
    same((b"k", None), (second.key(), second.value()), "second")
    source.close()


def idempotent():
    topic = create("idempotent", 1)
    records = [(0, None, str(n), 0, None) for n in range(2000)]
    delivered = send(topic, records, **{"enable.idempotence": True, "batch.num.messages": 10})
    same(list(range(2000)), [message.offset() for _, message in delivered], "offsets")


def too_large():
    topic = create("too-large", 1, **{"max.message.bytes": "20000"})
    [(error, _)] = send(topic, [(0, None, b"x" * 30_000, 0, None)])
    same("MSG_SIZE_TOO_LARGE", error.name(), "error")


def group_resume():
    topic = create("resume", 3)
    send(topic, [(n % 3, None, str(n), 0, None) for n in range(30)])
    first = consumer("resume")
    first.subscribe([topic])
    poll(first, 30)
    first.commit(asynchronous=False)
    first.close()
    send(topic, [(1, None, "later", 0, None)])
    second = consumer("resume")
    second.subscribe([topic])
    same([b"later"], [message.value() for message in poll(second, 1)], "after the commit")
    second.close()


def group_share():
    topic = create("share", 4)
    members = [consumer("share") for _ in range(2)]
    for member in members:
        member.subscribe([topic])

    def shares(wanted):
        for member in members:
            member.poll(0.05)
        return sorted(len(member.assignment()) for member in members) == wanted

    eventually("two and two", lambda: shares([2, 2]))
    members.pop().close()
    eventually("all four", lambda: shares([4]))
    members.pop().close()


def offsets_by_time():
    topic = create("times", 1, **{"retention.ms": "-1"})
    for time in [1000, 2000, 3000]:
        send(topic, [(0, None, "v", time, None)])
    source = consumer()
    found = lambda time: source.offsets_for_times([TopicPartition(topic, 0, time)], PATIENCE)[0].offset
    same(1, found(1500), "at 1500")
    assert found(3001) < 0, found(3001)
    source.close()


def sizes():
    topic = create("sizes", 1, **{"max.message.bytes": SIZES_MAX})
    send(topic, [(0, None, sized(size), 0, None) for size in SIZES], **{"message.max.bytes": SIZES_MAX})
    source = consumer(**{"fetch.message.max.bytes": 1000})
    source.assign([TopicPartition(topic, 0, 0)])
    same([sized(size) for size in SIZES], [message.value() for message in poll(source, len(SIZES))], "values")
    source.close()


def log_append_time():
    topic = create("append-time", 1, **{"message.timestamp.type": "LogAppendTime"})
    send(topic, [(0, None, "v", 1000, None)])
    source = consumer()
    source.assign([TopicPartition(topic, 0, 0)])
    kind, stamp = poll(source, 1)[0].timestamp()
    same(2, kind, "the kind of timestamp")
    assert abs(stamp - time.time() * 1000) < 60_000, stamp
    source.close()


def values(topic, count, isolation):
    source = consumer(**{"isolation.level": isolation})
    source.assign([TopicPartition(topic, 0, 0)])
    found = [message.value() for message in poll(source, count)]
    source.close()
    return found


def committed(group, partition):
    asked = [ConsumerGroupTopicPartitions(f"confluent-{group}", [partition])]
    return wait(admin.list_consumer_group_offsets(asked))[0].topic_partitions[0]


def transactions():
    topic, source_topic = create("txn", 1), create("txn-input", 1)
    send(source_topic, [(0, None, "v", 0, None)] * 3)
    source = consumer("txn")
    source.subscribe([source_topic])
    poll(source, 3)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "confluent-txn"})
    producer.init_transactions(PATIENCE)
    for outcome in ["committed", "aborted", "committed"]:
        producer.begin_transaction()
        producer.produce(topic, outcome, partition=0)
        if outcome == "committed":
            offsets = source.position(source.assignment())
            producer.send_offsets_to_transaction(offsets, source.consumer_group_metadata(), PATIENCE)
            producer.commit_transaction(PATIENCE)
        else:
            producer.flush(PATIENCE)
            producer.abort_transaction(PATIENCE)
    source.close()
    same([b"committed", b"committed"], values(topic, 2, "read_committed"), "read_committed")
    same([b"committed", b"aborted", b"committed"], values(topic, 3, "read_uncommitted"), "read_uncommitted")
    same(3, committed("txn", TopicPartition(source_topic, 0)).offset, "the offset")


def transactions_copy():
    """Every third transaction is aborted, and what it had taken is taken again."""
    source_topic, topic = create("txn-in", 2), create("txn-out", 1)
    send(source_topic, [(n % 2, None, f"v{n}", 0, None) for n in range(30)])
    source = consumer("copy", **{"isolation.level": "read_committed"})
    source.subscribe([source_topic])
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "confluent-copy"})
    producer.init_transactions(PATIENCE)
    copied = attempts = 0
    end = time.monotonic() + PATIENCE
    while copied < 30:
        assert time.monotonic() < end, f"only {copied} were copied"
        messages = source.consume(4, 0.2)
        if not messages:
            continue
        producer.begin_transaction()
        positions = {}
        for message in messages:
            assert message.error() is None, message.error()
            producer.produce(topic, message.value(), partition=0)
            positions[message.partition()] = message.offset() + 1
        positions = [TopicPartition(source_topic, partition, offset) for partition, offset in positions.items()]
        producer.send_offsets_to_transaction(positions, source.consumer_group_metadata(), PATIENCE)
        attempts += 1
        if attempts % 3:
            producer.commit_transaction(PATIENCE)
            copied += len(messages)
        else:
            producer.flush(PATIENCE)
            producer.abort_transaction(PATIENCE)
            for partition in source.committed(source.assignment(), PATIENCE):
                partition.offset = max(partition.offset, 0)
                source.seek(partition)
    source.close()
    wanted = sorted(b"v%d" % n for n in range(30))
    same(wanted, sorted(values(topic, 30, "read_committed")), "each record once")
    offsets = [committed("copy", TopicPartition(source_topic, partition)).offset for partition in range(2)]
    same([15, 15], offsets, "the offsets")


def shared(wanted, members):
    for member in members:
        member.poll(0.05)
    return sorted(len(member.assignment()) for member in members) == sorted(wanted)


CRASH = {"session.timeout.ms": 6000}


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
        source.poll(1)


def group_cooperative():
    topic = create("cooperative", 4)
    taken = []
    one, two = (consumer("cooperative", **{"partition.assignment.strategy": "cooperative-sticky"}) for _ in range(2))
    one.subscribe([topic], on_revoke=lambda _, partitions: taken.extend(partitions))
    eventually("all four", lambda: shared([4], [one]))
    two.subscribe([topic])
    eventually("two and two", lambda: shared([2, 2], [one, two]))
    same(2, len(taken), "only what goes to the other is taken away")
    same({p.partition for p in taken}, {p.partition for p in two.assignment()}, "what the other has")
    two.close()
    one.close()


def modern(group):
    """A member with KIP-848's protocol, which sets the heartbeats' interval at the broker."""
    return Consumer({"bootstrap.servers": bootstrap, "group.id": f"confluent-{group}", "enable.auto.commit": False,
                     "auto.offset.reset": "earliest", "group.protocol": "consumer"})


def group_new_protocol():
    topic = create("shared-new", 4)
    send(topic, [(n % 4, None, str(n), 0, None) for n in range(40)])
    members = [modern("new"), modern("new")]
    for member in members:
        member.subscribe([topic])
    eventually("two and two", lambda: shared([2, 2], members))
    for member in members:
        member.commit(offsets=[TopicPartition(topic, p.partition, 10) for p in member.assignment()], asynchronous=False)
        member.close()
    again = modern("new")
    again.subscribe([topic])
    eventually("all four", lambda: shared([4], [again]))
    send(topic, [(n, None, "later", 0, None) for n in range(4)])
    same([b"later"] * 4, [message.value() for message in poll(again, 4)], "those after the commit")
    again.close()


def group_migration():
    topic = create("moved", 4)
    one, two = consumer("moved"), modern("moved")
    one.subscribe([topic])
    eventually("all four", lambda: shared([4], [one]))
    two.subscribe([topic])
    eventually("two and two", lambda: shared([2, 2], [one, two]))
    two.close()
    eventually("all four again", lambda: shared([4], [one]))
    one.close()


def share_group():
    """Of two members: every tenth record is released once, every hundredth rejected, all else accepted."""
    topic, group = create("share-explicit", 3), "confluent-share-explicit"
    earliest = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    wait(admin.incremental_alter_configs([ConfigResource(ResourceType.GROUP, group, incremental_configs=[earliest])]))
    send(topic, [(n % 3, None, f"v{n}", 0, None) for n in range(300)])

    def join():
        member = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group,
                                "share.acknowledgement.mode": "explicit"})
        member.subscribe([topic])
        return member

    members, done, released = [join(), join()], set(), set()

    def step():
        for member in members:
            for message in member.poll(0.2):
                assert message.error() is None, message.error()
                value = message.value()
                assert value not in done, f"{value} came again"
                same(2 if value in released else 1, message.delivery_count(), f"deliveries of {value}")
                if value.endswith(b"7") and value not in released:
                    released.add(value)
                    member.acknowledge(message, AcknowledgeType.RELEASE)
                else:
                    done.add(value)
                    rejected = value.endswith(b"99")
                    member.acknowledge(message, AcknowledgeType.REJECT if rejected else AcknowledgeType.ACCEPT)
            failed = [error for error in member.commit_sync(PATIENCE).values() if error]
            same([], failed, "acknowledgements that failed")
        return len(done) == 300

    eventually("each record is accepted or rejected", step)
    same(30, len(released), "released")
    for member in members:
        member.close()
    third = join()
    same([], [message.value() for _ in range(10) for message in third.poll(0.2)], "records left")
    third.close()


def commit_async():
    topic = create("async", 1)
    send(topic, [(0, None, "v", 0, None)] * 10)
    done = []
    source = consumer("async", on_commit=lambda error, partitions: done.append(error))
    source.assign([TopicPartition(topic, 0, 0)])
    poll(source, 10)
    source.commit(offsets=[TopicPartition(topic, 0, 4, metadata="note")], asynchronous=True)
    eventually("the callback", lambda: source.poll(0.01) or done)
    same([None], done, "error")
    found = committed("async", TopicPartition(topic, 0))
    same((4, "note"), (found.offset, found.metadata), "committed")
    source.close()


def seek_pause_resume():
    topic = create("seek", 2)
    send(topic, [(n % 2, None, str(n), START + n, None) for n in range(20)])
    zero, one = TopicPartition(topic, 0, 0), TopicPartition(topic, 1, 0)
    source = consumer()
    source.assign([zero, one])
    source.pause([one])
    poll(source, 1)
    source.seek(TopicPartition(topic, 0, 8))
    same({0}, {message.partition() for message in poll(source, 2)}, "one is paused")
    source.resume([one])
    same({1}, {message.partition() for message in poll(source, 10)}, "one is resumed")
    [found] = source.offsets_for_times([TopicPartition(topic, 1, START + 11)], PATIENCE)
    source.seek(found)
    same(b"11", poll(source, 1)[0].value(), "the first at that time")
    source.close()


def delete_records():
    topic = create("delete-records", 1)
    send(topic, [(0, None, str(n), 0, None) for n in range(10)])
    deleted = wait(admin.delete_records([TopicPartition(topic, 0, 6)]))[0]
    same(6, deleted.low_watermark, "low watermark")
    same(b"6", values(topic, 4, "read_uncommitted")[0], "the first that is read")


def topic_created_again():
    topic = create("again", 1)
    send(topic, [(0, None, "old", 0, None)] * 5)
    wait(admin.delete_topics([topic]))

    def created():
        return code_of(lambda: wait(admin.create_topics([NewTopic(topic, 1, -1)]))) == "none"

    eventually("the name is free", created)
    [(error, message)] = send(topic, [(0, None, "new", 0, None)])
    same((None, 0), (error, message.offset()), "offset")
    same([b"new"], values(topic, 1, "read_uncommitted"), "the only record")


def outage():
    topic = create("outage", 1)
    run = Outage()
    got, stop = {}, threading.Event()

    def read():
        source = consumer("outage")
        source.subscribe([topic])
        while not stop.is_set():
            for message in source.consume(500, 0.1):
                if message.error() is None:
                    got[message.offset()] = message.value()
        source.close()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    failed = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "message.timeout.ms": 150_000})
    count = 0
    while not run.ends():
        producer.produce(topic, b"%d" % count, partition=0, on_delivery=lambda error, _: error and failed.append(error))
        count += 1
        if count == 1:
            producer.flush()
            run.ready()
        producer.poll(0.005)
    same(0, producer.flush(60), "records not delivered")
    same([], failed, "errors")
    eventually("all is received", lambda: len(got) == count)
    stop.set()
    reader.join(PATIENCE)
    run.check(count, [got[offset] for offset in sorted(got)], "received")
    run.check(count, values(topic, count, "read_uncommitted"), "stored")


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
scenarios.run("transactions-copy", transactions_copy)
scenarios.run("group-resume", group_resume)
scenarios.run("group-share", group_share)
scenarios.run("group-crash", group_crash)
scenarios.run("group-cooperative", group_cooperative)
scenarios.run("group-new-protocol", group_new_protocol)
scenarios.run("group-migration", group_migration)
scenarios.run("share-group", share_group)
scenarios.run("commit-async", commit_async)
scenarios.run("seek-pause-resume", seek_pause_resume)
scenarios.run("offsets-by-time", offsets_by_time)
scenarios.run("delete-records", delete_records)
scenarios.run("topic-created-again", topic_created_again)
scenarios.exit()
