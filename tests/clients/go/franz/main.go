// franz-go through the scenarios. It speaks the newest versions, topic ids among them.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	. "kuring/tests/clients"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var bootstrap = strings.Split(os.Args[1], ",")
var admin *kadm.Client

func main() {
	admin = kadm.NewClient(client())
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	switch Mode() {
	case "member":
		lost(os.Args[3], os.Args[4])
	case "outage":
		Scenario("outage", outage)
		Exit()
	}
	Scenario("admin", administer)
	for _, name := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		Scenario("codec-"+name, func() error { return roundTrip(name, codecs[name]) })
	}
	Scenario("headers-and-nulls", headersAndNulls)
	Scenario("sizes", sizes)
	Scenario("too-large", tooLarge)
	Scenario("log-append-time", logAppendTime)
	Scenario("idempotent", idempotent)
	Scenario("transactions", transactions)
	Scenario("transactions-copy", transactionsCopy)
	Scenario("group-resume", groupResume)
	Scenario("group-share", func() error { return groupShare("share", kgo.Balancers(kgo.RangeBalancer())) })
	Scenario("group-crash", groupCrash)
	Scenario("group-cooperative", groupCooperative)
	Scenario("group-new-protocol", groupNewProtocol)
	Scenario("group-migration", groupMigration)
	Scenario("share-group", shareGroup)
	Scenario("commit-async", commitAsync)
	Scenario("seek-pause-resume", seekPauseResume)
	Scenario("offsets-by-time", offsetsByTime)
	Scenario("delete-records", deleteRecords)
	Scenario("topic-created-again", createdAgain)
	Scenario("describe", describe)
	Exit()
}

func client(more ...kgo.Opt) *kgo.Client {
	options := append([]kgo.Opt{kgo.SeedBrokers(bootstrap...), kgo.FetchMaxWait(100 * time.Millisecond)}, more...)
	return Value(kgo.NewClient(options...))
}

func create(name string, partitions int32, more ...string) string {
	topic := "franz-" + name
	forever := "-1"
	configs := map[string]*string{"retention.ms": &forever}
	for n := 0; n < len(more); n += 2 {
		configs[more[n]] = &more[n+1]
	}
	Must(Value(admin.CreateTopics(Patient(), partitions, -1, configs, topic)).Error())
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

func read(topic string, partitions int32, count int, more ...kgo.Opt) []*kgo.Record {
	from := map[int32]kgo.Offset{}
	for partition := range partitions {
		from[partition] = kgo.NewOffset().AtStart()
	}
	consumer := client(append(more, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}))...)
	defer consumer.Close()
	return poll(consumer, count)
}

func administer() error {
	topic := create("admin", 2)
	again := Value(admin.CreateTopics(Patient(), 1, -1, nil, topic))
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

func member(group, topic string, more ...kgo.Opt) *kgo.Client {
	return client(append([]kgo.Opt{
		kgo.ConsumerGroup("franz-" + group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.HeartbeatInterval(200 * time.Millisecond),
	}, more...)...)
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

// shares waits until the members of a classic group have so many partitions each.
func shares(group string, wanted ...int) error {
	var found []int
	for end := time.Now().Add(Patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		described := Value(admin.DescribeGroups(Patient(), "franz-"+group))["franz-"+group]
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

func groupShare(name string, more ...kgo.Opt) error {
	topic := create(name, 4)
	first := member(name, topic, more...)
	defer first.Close()
	second := member(name, topic, more...)
	Must(shares(name, 2, 2))
	second.Close()
	return shares(name, 4)
}

var session = kgo.SessionTimeout(6 * time.Second)

func lost(group, topic string) {
	for consumer := member(group, topic, session, kgo.Balancers(kgo.RangeBalancer())); ; {
		consumer.PollFetches(Patient())
	}
}

func groupCrash() error {
	topic := create("crash", 4)
	kill := Member("crash", topic)
	one := member("crash", topic, session, kgo.Balancers(kgo.RangeBalancer()))
	defer one.Close()
	Must(shares("crash", 2, 2))
	kill()
	began := time.Now()
	Must(shares("crash", 4))
	if time.Since(began) < 3*time.Second {
		return errors.New("its session had not ended yet")
	}
	return nil
}

func groupCooperative() error {
	topic := create("cooperative", 4)
	var mutex sync.Mutex
	taken := 0
	cooperative := kgo.Balancers(kgo.CooperativeStickyBalancer())
	one := member("cooperative", topic, cooperative,
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, revoked map[string][]int32) {
			mutex.Lock()
			defer mutex.Unlock()
			taken += len(revoked[topic])
		}))
	Must(shares("cooperative", 4))
	two := member("cooperative", topic, cooperative)
	Must(shares("cooperative", 2, 2))
	mutex.Lock()
	found := taken
	mutex.Unlock()
	two.Close()
	one.Close()
	return Same(2, found, "only what goes to the other is taken away")
}

// modernShares is shares for a group of KIP-848's protocol.
func modernShares(group string, wanted ...int) error {
	var found []int
	for end := time.Now().Add(Patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		described := Value(admin.DescribeConsumerGroups(Patient(), "franz-"+group))["franz-"+group]
		found = found[:0]
		for _, one := range described.Members {
			count := 0
			for _, partitions := range one.Assignment {
				count += len(partitions)
			}
			found = append(found, count)
		}
		slices.Sort(found)
		if Same(wanted, found, "") == nil {
			return nil
		}
	}
	return fmt.Errorf("shares: wanted %v, found %v", wanted, found)
}

var modern = []kgo.Opt{kgo.Balancers(kgo.RangeBalancer()), kgo.ServerSideBalancer()}

func groupNewProtocol() error {
	topic := create("shared-new", 4)
	one := member("new", topic, modern...)
	two := member("new", topic, modern...)
	Must(modernShares("new", 2, 2))
	two.Close()
	Must(modernShares("new", 4))
	send(topic, numbered(8, 4))
	Must(one.CommitRecords(Patient(), poll(one, 8)...))
	one.Close()
	again := member("new", topic, modern...)
	defer again.Close()
	send(topic, []*kgo.Record{{Partition: 3, Value: []byte("later")}})
	return Same("later", string(poll(again, 1)[0].Value), "after the commit")
}

func groupMigration() error {
	topic := create("moved", 4)
	one := member("moved", topic, kgo.Balancers(kgo.RangeBalancer()))
	defer one.Close()
	Must(shares("moved", 4))
	two := member("moved", topic, modern...)
	Must(modernShares("moved", 2, 2))
	two.Close()
	return Eventually("the one that stays has all", func() bool {
		return shares("moved", 4) == nil || modernShares("moved", 4) == nil
	})
}

func numbered(count, partitions int) []*kgo.Record {
	var records []*kgo.Record
	for n := range count {
		records = append(records, &kgo.Record{
			Partition: int32(n % partitions), Value: fmt.Append(nil, n), Timestamp: time.UnixMilli(Start + int64(n)),
		})
	}
	return records
}

func sizes() error {
	topic := create("sizes", 1, "max.message.bytes", fmt.Sprint(SizesMax))
	var records []*kgo.Record
	for _, size := range Sizes {
		records = append(records, &kgo.Record{Value: Sized(size)})
	}
	send(topic, records, kgo.ProducerBatchMaxBytes(SizesMax), kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.BrokerMaxWriteBytes(2*SizesMax))
	for n, got := range read(topic, 1, len(Sizes), kgo.FetchMaxPartitionBytes(1000)) {
		if !bytes.Equal(Sized(Sizes[n]), got.Value) {
			return fmt.Errorf("value %d is another", n)
		}
	}
	return nil
}

func logAppendTime() error {
	topic := create("append-time", 1, "message.timestamp.type", "LogAppendTime")
	send(topic, []*kgo.Record{{Value: []byte("v"), Timestamp: time.UnixMilli(1000)}})
	got := read(topic, 1, 1)[0]
	if age := time.Since(got.Timestamp).Abs(); age > time.Minute {
		return fmt.Errorf("%v old", age)
	}
	return Same(int8(1), got.Attrs.TimestampType(), "the kind of timestamp")
}

func idempotent() error {
	topic := create("idempotent", 1)
	for n, record := range send(topic, numbered(2000, 1), kgo.MaxBufferedRecords(100)) {
		Must(Same(int64(n), record.Offset, "offset"))
	}
	described := Value(admin.DescribeProducers(Patient(), kadm.TopicsSet{topic: {0: {}}}))
	return Same(1, len(described[topic].Partitions[0].ActiveProducers), "active producers")
}

func values(topic string, count int, more ...kgo.Opt) []string {
	var values []string
	for _, record := range read(topic, 1, count, more...) {
		values = append(values, string(record.Value))
	}
	return values
}

func transactions() error {
	topic, input := create("txn", 1), create("txn-input", 1)
	send(input, numbered(3, 1))
	session := Value(kgo.NewGroupTransactSession(kgo.SeedBrokers(bootstrap...), kgo.TransactionalID("franz-txn"),
		kgo.ConsumerGroup("franz-txn"), kgo.ConsumeTopics(input), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RequireStableFetchOffsets()))
	defer session.Close()
	for _, outcome := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort, kgo.TryCommit} {
		Must(session.Begin())
		value := "committed"
		if outcome == kgo.TryAbort {
			value = "aborted"
		} else {
			Must(session.PollFetches(Patient()).Err())
		}
		Must(session.ProduceSync(Patient(), &kgo.Record{Topic: topic, Value: []byte(value)}).FirstErr())
		committed := Value(session.End(Patient(), outcome))
		Must(Same(outcome == kgo.TryCommit, committed, "committed"))
		if value == "committed" {
			// The next one has something to take.
			send(input, numbered(1, 1))
		}
	}
	Must(Same([]string{"committed", "committed"},
		values(topic, 2, kgo.FetchIsolationLevel(kgo.ReadCommitted())), "read_committed"))
	Must(Same([]string{"committed", "aborted", "committed"}, values(topic, 3), "read_uncommitted"))
	offset, _ := Value(admin.FetchOffsets(Patient(), "franz-txn")).Lookup(input, 0)
	if offset.At < 3 {
		return fmt.Errorf("the offset is %d", offset.At)
	}
	return nil
}

// Every third transaction is aborted, and what it had taken is taken again.
func transactionsCopy() error {
	input, topic := create("txn-in", 2), create("txn-out", 1)
	var wanted []string
	for _, record := range send(input, numbered(30, 2)) {
		wanted = append(wanted, string(record.Value))
	}
	session := Value(kgo.NewGroupTransactSession(kgo.SeedBrokers(bootstrap...), kgo.TransactionalID("franz-copy"),
		kgo.ConsumerGroup("franz-copy"), kgo.ConsumeTopics(input), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RequireStableFetchOffsets()))
	defer session.Close()
	ctx := Patient()
	for copied, attempts := 0, 1; copied < len(wanted); attempts++ {
		fetches := session.PollRecords(ctx, 4)
		Must(fetches.Err())
		Must(session.Begin())
		for _, record := range fetches.Records() {
			session.Produce(ctx, &kgo.Record{Topic: topic, Value: record.Value}, nil)
		}
		outcome := kgo.TryCommit
		if attempts%3 == 0 {
			outcome = kgo.TryAbort
		}
		if Value(session.End(ctx, outcome)) {
			copied += fetches.NumRecords()
		}
	}
	found := values(topic, len(wanted), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	slices.Sort(wanted)
	slices.Sort(found)
	Must(Same(wanted, found, "each record once"))
	var offsets int64
	Value(admin.FetchOffsets(ctx, "franz-copy")).Each(func(offset kadm.OffsetResponse) { offsets += offset.At })
	return Same(int64(len(wanted)), offsets, "the offsets")
}

func readFromTheBeginning(group string) {
	config, earliest := kmsg.NewIncrementalAlterConfigsRequestResourceConfig(), "earliest"
	config.Name, config.Value = "share.auto.offset.reset", &earliest
	resource := kmsg.NewIncrementalAlterConfigsRequestResource()
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeGroupConfig, group
	resource.Configs = append(resource.Configs, config)
	request := kmsg.NewPtrIncrementalAlterConfigsRequest()
	request.Resources = append(request.Resources, resource)
	sender := client()
	defer sender.Close()
	Must(kerr.ErrorForCode(Value(request.RequestWith(Patient(), sender)).Resources[0].ErrorCode))
}

// shareGroup has two members: every tenth record is released once, every hundredth rejected, all else accepted.
func shareGroup() error {
	topic, group := create("share-explicit", 3), "franz-share-explicit"
	readFromTheBeginning(group)
	send(topic, numbered(300, 3))
	failures := make(chan error, 100)
	join := func() *kgo.Client {
		return client(kgo.ShareGroup(group), kgo.ConsumeTopics(topic),
			kgo.ShareAckCallback(func(_ *kgo.Client, results kgo.ShareAckResults) {
				if err := results.Error(); err != nil {
					failures <- err
				}
			}))
	}
	ctx := Patient()
	poll := func(member *kgo.Client, wait time.Duration) []*kgo.Record {
		short, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		return member.PollFetches(short).Records()
	}
	members := []*kgo.Client{join(), join()}
	done, released := map[string]bool{}, map[string]bool{}
	for len(done) < 300 {
		Must(ctx.Err())
		for _, member := range members {
			for _, record := range poll(member, 200*time.Millisecond) {
				value := string(record.Value)
				if done[value] {
					return fmt.Errorf("%s came again", value)
				}
				deliveries, number := int32(1), Value(strconv.Atoi(value))
				if released[value] {
					deliveries = 2
				}
				Must(Same(deliveries, record.DeliveryCount(), "deliveries of "+value))
				switch {
				case number%10 == 7 && deliveries == 1:
					released[value] = true
					record.Ack(kgo.AckRelease)
				case number%100 == 99:
					done[value] = true
					record.Ack(kgo.AckReject)
				default:
					done[value] = true
					record.Ack(kgo.AckAccept)
				}
			}
			Must(member.FlushAcks(ctx))
		}
	}
	for _, member := range members {
		member.Close()
	}
	Must(Same(30, len(released), "released"))
	Must(Same(0, len(failures), "acknowledgements that failed"))
	three := join()
	defer three.Close()
	return Same(0, len(poll(three, 2*time.Second)), "records left")
}

func commitAsync() error {
	topic := create("async", 1)
	send(topic, numbered(10, 1))
	consumer := member("async", topic)
	defer consumer.Close()
	poll(consumer, 10)
	done := make(chan error, 1)
	offsets := map[string]map[int32]kgo.EpochOffset{topic: {0: {Epoch: -1, Offset: 4}}}
	consumer.CommitOffsets(kgo.PreCommitFnContext(Patient(), func(request *kmsg.OffsetCommitRequest) error {
		note := "note"
		request.Topics[0].Partitions[0].Metadata = &note
		return nil
	}), offsets, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, response *kmsg.OffsetCommitResponse, err error) {
		if err == nil {
			err = kerr.ErrorForCode(response.Topics[0].Partitions[0].ErrorCode)
		}
		done <- err
	})
	Must(<-done)
	found, _ := Value(admin.FetchOffsets(Patient(), "franz-async")).Lookup(topic, 0)
	Must(Same(int64(4), found.At, "committed"))
	return Same("note", found.Metadata, "metadata")
}

func seekPauseResume() error {
	topic := create("seek", 2)
	send(topic, numbered(20, 2))
	consumer := client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{
		topic: {0: kgo.NewOffset().At(8), 1: kgo.NewOffset().AtStart()},
	}))
	defer consumer.Close()
	consumer.PauseFetchPartitions(map[string][]int32{topic: {1}})
	for _, got := range poll(consumer, 2) {
		Must(Same(int32(0), got.Partition, "one is paused"))
	}
	consumer.ResumeFetchPartitions(map[string][]int32{topic: {1}})
	for _, got := range poll(consumer, 10) {
		Must(Same(int32(1), got.Partition, "one is resumed"))
	}
	at := kgo.NewOffset().AfterMilli(Start + 19)
	last := client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {1: at}}))
	defer last.Close()
	return Same("19", string(poll(last, 1)[0].Value), "the first at that time")
}

func deleteRecords() error {
	topic := create("delete-records", 1)
	send(topic, numbered(10, 1))
	offsets := kadm.Offsets{}
	offsets.AddOffset(topic, 0, 6, -1)
	deleted := Value(admin.DeleteRecords(Patient(), offsets))[topic][0]
	Must(deleted.Err)
	Must(Same(int64(6), deleted.LowWatermark, "low watermark"))
	return Same("6", values(topic, 4)[0], "the first that is read")
}

func describe() error {
	topic := create("describe", 1)
	send(topic, numbered(10, 1))
	size := int64(0)
	for _, directory := range Value(admin.DescribeBrokerLogDirs(Patient(), 1, kadm.TopicsSet{topic: {0: {}}})) {
		Must(directory.Err)
		size += directory.Size()
	}
	if size < 100 {
		return fmt.Errorf("the topic's size is %d", size)
	}
	config := Value(Value(admin.DescribeBrokerConfigs(Patient(), 1)).On("1", nil))
	if !slices.ContainsFunc(config.Configs, func(config kadm.Config) bool { return config.Key == "log.dirs" }) {
		return errors.New("log.dirs is not described")
	}
	for _, versions := range Value(admin.ApiVersions(Patient())) {
		Must(versions.Err)
	}
	return nil
}

func outage() error {
	topic := create("outage", 1)
	var received, stored Received
	go func() {
		for consumer := member("outage", topic); ; {
			consumer.PollFetches(context.Background()).EachRecord(func(record *kgo.Record) {
				received.Add(record.Offset, record.Value)
			})
		}
	}()
	producer := client(kgo.DefaultProduceTopic(topic), kgo.RecordDeliveryTimeout(150*time.Second))
	var failure error
	sent := 0
	for ; !Ends(); sent++ {
		record := &kgo.Record{Value: fmt.Append(nil, sent)}
		producer.Produce(context.Background(), record, func(_ *kgo.Record, err error) {
			if err != nil {
				failure = err
			}
		})
		if sent == 0 {
			Must(producer.Flush(Patient()))
			Ready()
		}
		time.Sleep(5 * time.Millisecond)
	}
	Must(producer.Flush(Patient()))
	Must(failure)
	Must(Eventually("all is received", func() bool { return received.Count() == sent }))
	for _, record := range read(topic, 1, sent) {
		stored.Add(record.Offset, record.Value)
	}
	Must(received.Check(sent, false, "received"))
	return stored.Check(sent, false, "stored")
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
		return Value(admin.CreateTopics(Patient(), 1, -1, nil, topic)).Error() == nil
	}))
	send(topic, []*kgo.Record{{Value: []byte("new")}})
	return Same("new", string(read(topic, 1, 1)[0].Value), "the only record")
}
