// franz-go through the scenarios. It speaks the newest versions, topic ids among them.
package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	. "kuring/tests/clients"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

var bootstrap = os.Args[1]
var admin *kadm.Client

func main() {
	admin = kadm.NewClient(client())
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	Scenario("admin", administer)
	for _, name := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		Scenario("codec-"+name, func() error { return roundTrip(name, codecs[name]) })
	}
	Scenario("headers-and-nulls", headersAndNulls)
	Scenario("too-large", tooLarge)
	Scenario("group-resume", groupResume)
	Scenario("group-share", groupShare)
	Scenario("offsets-by-time", offsetsByTime)
	Scenario("topic-created-again", createdAgain)
	Exit()
}

func client(more ...kgo.Opt) *kgo.Client {
	options := append([]kgo.Opt{kgo.SeedBrokers(bootstrap), kgo.FetchMaxWait(100 * time.Millisecond)}, more...)
	return Value(kgo.NewClient(options...))
}

func create(name string, partitions int32) string {
	topic := "franz-" + name
	forever := "-1"
	configs := map[string]*string{"retention.ms": &forever}
	Must(Value(admin.CreateTopics(Patient(), partitions, 1, configs, topic)).Error())
	return topic
}

func send(topic string, records []*kgo.Record, more ...kgo.Opt) []*kgo.Record {
	producer := client(append(more, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic(topic))...)
	defer producer.Close()
	results := producer.ProduceSync(Patient(), records...)
	Must(results.FirstErr())
	return records
}

func poll(consumer *kgo.Client, count int) []*kgo.Record {
	var got []*kgo.Record
	ctx := Patient()
	for len(got) < count {
		fetches := consumer.PollFetches(ctx)
		Must(fetches.Err())
		got = append(got, fetches.Records()...)
	}
	Must(Same(count, len(got), "records"))
	return got
}

func read(topic string, partitions int32, count int) []*kgo.Record {
	from := map[int32]kgo.Offset{}
	for partition := range partitions {
		from[partition] = kgo.NewOffset().AtStart()
	}
	consumer := client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}))
	defer consumer.Close()
	return poll(consumer, count)
}

func administer() error {
	topic := create("admin", 2)
	again := Value(admin.CreateTopics(Patient(), 1, 1, nil, topic))
	if !errors.Is(again[topic].Err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("created again: %v", again[topic].Err)
	}
	Must(Value(admin.CreatePartitions(Patient(), 2, topic)).Error())
	policy := "compact"
	Must(Value(admin.AlterTopicConfigs(Patient(), []kadm.AlterConfig{
		{Op: kadm.AppendConfig, Name: "cleanup.policy", Value: &policy},
	}, topic))[0].Err)
	Must(Eventually("the policy is appended", func() bool {
		described := Value(Value(admin.DescribeTopicConfigs(Patient(), topic)).On(topic, nil))
		return slices.ContainsFunc(described.Configs, func(config kadm.Config) bool {
			return config.Key == "cleanup.policy" && config.MaybeValue() == "delete,compact"
		})
	}))
	Must(Eventually("four partitions", func() bool {
		return len(Value(admin.ListTopics(Patient(), topic))[topic].Partitions) == 4
	}))
	Must(Value(admin.DeleteTopics(Patient(), topic)).Error())
	return Eventually("it is gone", func() bool { return Value(admin.ListTopics(Patient(), topic))[topic].Err != nil })
}

func roundTrip(name string, codec kgo.CompressionCodec) error {
	topic := create("codec-"+name, 4)
	var records []*kgo.Record
	for n := range 1000 {
		records = append(records, &kgo.Record{
			Partition: int32(n % 4), Key: fmt.Appendf(nil, "k%d", n),
			Value:     []byte(fmt.Sprintf("value %d ", n) + strings.Repeat("x", n)),
			Timestamp: time.UnixMilli(Start + int64(n)),
		})
	}
	send(topic, records, kgo.ProducerBatchCompression(codec))
	next := []int{0, 1, 2, 3}
	for _, got := range read(topic, 4, 1000) {
		wanted := records[next[got.Partition]]
		Must(Same(string(wanted.Value), string(got.Value), "value"))
		Must(Same(string(wanted.Key), string(got.Key), "key"))
		Must(Same(wanted.Timestamp.UnixMilli(), got.Timestamp.UnixMilli(), "timestamp"))
		next[got.Partition] += 4
	}
	return nil
}

func headersAndNulls() error {
	topic := create("headers", 1)
	headers := []kgo.RecordHeader{{Key: "a", Value: []byte("1")}, {Key: "a", Value: nil}}
	send(topic, []*kgo.Record{{Value: []byte("v"), Headers: headers}, {Key: []byte("k")}})
	got := read(topic, 1, 2)
	if got[0].Key != nil || got[1].Value != nil {
		return errors.New("nulls became empty")
	}
	return Same(headers, got[0].Headers, "headers")
}

func tooLarge() error {
	topic := create("too-large", 1)
	producer := client(kgo.ProducerBatchMaxBytes(4<<20), kgo.DefaultProduceTopic(topic),
		kgo.ProducerBatchCompression(kgo.NoCompression()))
	defer producer.Close()
	err := producer.ProduceSync(Patient(), &kgo.Record{Value: make([]byte, 2<<20)}).FirstErr()
	if !errors.Is(err, kerr.MessageTooLarge) {
		return fmt.Errorf("wanted MESSAGE_TOO_LARGE, found %v", err)
	}
	return nil
}

func member(group, topic string) *kgo.Client {
	return client(kgo.ConsumerGroup("franz-"+group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.HeartbeatInterval(200*time.Millisecond))
}

func groupResume() error {
	topic := create("resume", 2)
	var records []*kgo.Record
	for n := range 10 {
		records = append(records, &kgo.Record{Partition: int32(n % 2), Value: fmt.Append(nil, n)})
	}
	send(topic, records)
	first := member("resume", topic)
	got := poll(first, 10)
	Must(first.CommitRecords(Patient(), got...))
	first.Close()
	send(topic, []*kgo.Record{{Partition: 1, Value: []byte("later")}})
	second := member("resume", topic)
	defer second.Close()
	return Same("later", string(poll(second, 1)[0].Value), "after the commit")
}

func groupShare() error {
	topic := create("share", 4)
	var members []*kgo.Client
	for range 2 {
		members = append(members, member("share", topic))
	}
	defer members[0].Close()
	shares := func(wanted ...int) error {
		var found []int
		for end := time.Now().Add(Patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			described := Value(admin.DescribeGroups(Patient(), "franz-share"))["franz-share"]
			found = found[:0]
			for _, one := range described.Members {
				if assigned, ok := one.Assigned.AsConsumer(); ok && len(assigned.Topics) == 1 {
					found = append(found, len(assigned.Topics[0].Partitions))
				}
			}
			if Same(wanted, found, "") == nil {
				return nil
			}
		}
		return fmt.Errorf("shares: wanted %v, found %v", wanted, found)
	}
	Must(shares(2, 2))
	members[1].Close()
	return shares(4)
}

func offsetsByTime() error {
	topic := create("times", 1)
	for _, ms := range []int64{1000, 2000, 3000} {
		send(topic, []*kgo.Record{{Value: []byte("v"), Timestamp: time.UnixMilli(ms)}})
	}
	found, _ := Value(admin.ListOffsetsAfterMilli(Patient(), 1500, topic)).Lookup(topic, 0)
	Must(Same(int64(1), found.Offset, "at 1500"))
	end, _ := Value(admin.ListEndOffsets(Patient(), topic)).Lookup(topic, 0)
	return Same(int64(3), end.Offset, "end")
}

func createdAgain() error {
	topic := create("again", 1)
	send(topic, []*kgo.Record{{Value: []byte("old")}})
	Must(Value(admin.DeleteTopics(Patient(), topic)).Error())
	Must(Eventually("the name is free again", func() bool {
		return Value(admin.CreateTopics(Patient(), 1, 1, nil, topic)).Error() == nil
	}))
	send(topic, []*kgo.Record{{Value: []byte("new")}})
	return Same("new", string(read(topic, 1, 1)[0].Value), "the only record")
}
