"""confluent-kafka (librdkafka) through the scenarios."""

import sys

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions,
                                   NewTopic, ResourceType)

from scenarios import CODECS, PATIENCE, START, Scenarios, eventually, same

bootstrap = sys.argv[1]
admin = AdminClient({"bootstrap.servers": bootstrap})


def wait(futures):
    return [future.result(PATIENCE) for future in futures.values()]


def create(name, partitions, **config):
    topic = f"confluent-{name}"
    wait(admin.create_topics([NewTopic(topic, partitions, 1, config=config)]))
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
    same("TOPIC_ALREADY_EXISTS", code_of(lambda: wait(admin.create_topics([NewTopic(topic, 1, 1)]))), "again")
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


scenarios = Scenarios()
scenarios.run("admin", administer)
for codec in CODECS:
    scenarios.run(f"codec-{codec}", lambda: round_trip(codec))
scenarios.run("headers-and-nulls", headers_and_nulls)
scenarios.run("idempotent", idempotent)
scenarios.run("too-large", too_large)
scenarios.run("group-resume", group_resume)
scenarios.run("group-share", group_share)
scenarios.run("offsets-by-time", offsets_by_time)
scenarios.exit()
