// sarama through the scenarios.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	. "kuring/tests/clients"

	"github.com/IBM/sarama"
)

var bootstrap = strings.Split(os.Args[1], ",")
var admin sarama.ClusterAdmin

func main() {
	switch Mode() {
	case "member":
		lost(os.Args[3], os.Args[4])
	case "outage":
		admin = Value(sarama.NewClusterAdmin(bootstrap, config()))
		Scenario("outage", outage)
		Exit()
	}
	admin = Value(sarama.NewClusterAdmin(bootstrap, config()))
	codecs := map[string]sarama.CompressionCodec{
		"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
		"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
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
	Scenario("group-resume", groupResume)
	Scenario("group-share", groupShare)
	Scenario("group-crash", groupCrash)
	Scenario("commit-async", commitAsync)
	Scenario("seek-pause-resume", seekPauseResume)
	Scenario("offsets-by-time", offsetsByTime)
	Scenario("delete-records", deleteRecords)
	Scenario("topic-created-again", createdAgain)
	Scenario("describe", describe)
	Exit()
}

func config() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V4_0_0_0
	config.Producer.Return.Successes = true
	// What only a leader has cannot be deleted yet, and has no size elsewhere.
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.MaxWaitTime = 100 * time.Millisecond
	config.Consumer.Group.Heartbeat.Interval = 200 * time.Millisecond
	return config
}

func create(name string, partitions int32, more ...string) string {
	topic := "sarama-" + name
	forever := "-1"
	configs := map[string]*string{"retention.ms": &forever}
	for n := 0; n < len(more); n += 2 {
		configs[more[n]] = &more[n+1]
	}
	Must(admin.CreateTopic(topic, &sarama.TopicDetail{
		NumPartitions: partitions, ReplicationFactor: -1, ConfigEntries: configs,
	}, false))
	return topic
}

func send(config *sarama.Config, messages []*sarama.ProducerMessage) {
	producer := Value(sarama.NewSyncProducer(bootstrap, config))
	defer producer.Close()
	Must(producer.SendMessages(messages))
}

func next(messages <-chan *sarama.ConsumerMessage) *sarama.ConsumerMessage {
	select {
	case message := <-messages:
		return message
	case <-time.After(Patience):
		panic("no record came")
	}
}

func administer() error {
	topic := create("admin", 2)
	err := admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: -1}, false)
	if !errors.Is(err, sarama.ErrTopicAlreadyExists) {
		return fmt.Errorf("created again: %v", err)
	}
	Must(admin.CreatePartitions(topic, 4, nil, false))
	policy := "compact"
	step := map[string]sarama.IncrementalAlterConfigsEntry{
		"cleanup.policy": {Operation: sarama.IncrementalAlterConfigsOperationAppend, Value: &policy},
	}
	Must(admin.IncrementalAlterConfig(sarama.TopicResource, topic, step, false))
	Must(Eventually("the policy is appended", func() bool {
		for _, entry := range Value(admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: topic})) {
			if entry.Name == "cleanup.policy" {
				return entry.Value == "delete,compact"
			}
		}
		return false
	}))
	Must(Eventually("four partitions", func() bool { return Value(admin.ListTopics())[topic].NumPartitions == 4 }))
	return admin.DeleteTopic(topic)
}

func roundTrip(name string, codec sarama.CompressionCodec) error {
	topic := create("codec-"+name, 2)
	config := config()
	config.Producer.Compression = codec
	var messages []*sarama.ProducerMessage
	for n := range 400 {
		messages = append(messages, &sarama.ProducerMessage{
			Topic: topic, Partition: int32(n % 2), Key: sarama.StringEncoder(fmt.Sprint("k", n)),
			Value:     sarama.StringEncoder(fmt.Sprint("value ", n, strings.Repeat("x", n))),
			Headers:   []sarama.RecordHeader{{Key: []byte("h"), Value: []byte("1")}},
			Timestamp: time.UnixMilli(Start + int64(n)),
		})
	}
	send(config, messages)
	consumer := Value(sarama.NewConsumer(bootstrap, config))
	defer consumer.Close()
	for partition := range 2 {
		source := Value(consumer.ConsumePartition(topic, int32(partition), sarama.OffsetOldest))
		for n := partition; n < 400; n += 2 {
			got := next(source.Messages())
			Must(Same(fmt.Sprint("value ", n, strings.Repeat("x", n)), string(got.Value), "value"))
			Must(Same(fmt.Sprint("k", n), string(got.Key), "key"))
			Must(Same(Start+int64(n), got.Timestamp.UnixMilli(), "timestamp"))
			Must(Same("1", string(got.Headers[0].Value), "header"))
		}
		Must(source.Close())
	}
	return nil
}

func idempotent() error {
	topic := create("idempotent", 1)
	config := exact(config())
	producer := Value(sarama.NewSyncProducer(bootstrap, config))
	defer producer.Close()
	for n := range 100 {
		_, offset, err := producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("v")})
		Must(err)
		Must(Same(int64(n), offset, "offset"))
	}
	return nil
}

// taker hands on every record and marks it.
type taker struct{ got chan string }

func (taker) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (taker) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (t taker) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		session.MarkMessage(message, "")
		t.got <- string(message.Value)
	}
	return nil
}

func consume(topic string, count int) []string {
	group := Value(sarama.NewConsumerGroup(bootstrap, "sarama-resume", config()))
	ctx, cancel := context.WithCancel(context.Background())
	taker := taker{got: make(chan string)}
	done := make(chan error)
	go func() { done <- group.Consume(ctx, []string{topic}, taker) }()
	var got []string
	for len(got) < count {
		select {
		case value := <-taker.got:
			got = append(got, value)
		case <-time.After(Patience):
			panic(fmt.Sprintf("only %d of %d records came", len(got), count))
		}
	}
	cancel()
	Must(<-done)
	Must(group.Close())
	return got
}

func groupResume() error {
	topic := create("resume", 2)
	var messages []*sarama.ProducerMessage
	for n := range 10 {
		messages = append(messages, &sarama.ProducerMessage{
			Topic: topic, Partition: int32(n % 2), Value: sarama.StringEncoder(fmt.Sprint(n)),
		})
	}
	send(config(), messages)
	consume(topic, 10)
	send(config(), []*sarama.ProducerMessage{{Topic: topic, Partition: 1, Value: sarama.StringEncoder("later")}})
	return Same([]string{"later"}, consume(topic, 1), "after the commit")
}

func offsetsByTime() error {
	topic := create("times", 1)
	for _, ms := range []int64{1000, 2000, 3000} {
		send(config(), []*sarama.ProducerMessage{
			{Topic: topic, Value: sarama.StringEncoder("v"), Timestamp: time.UnixMilli(ms)},
		})
	}
	client := Value(sarama.NewClient(bootstrap, config()))
	defer client.Close()
	Must(Same(int64(1), Value(client.GetOffset(topic, 0, 1500)), "at 1500"))
	return Same(int64(3), Value(client.GetOffset(topic, 0, sarama.OffsetNewest)), "end")
}

func numbered(topic string, count, partitions int) []*sarama.ProducerMessage {
	var messages []*sarama.ProducerMessage
	for n := range count {
		messages = append(messages, &sarama.ProducerMessage{
			Topic: topic, Partition: int32(n % partitions), Value: sarama.StringEncoder(fmt.Sprint(n)),
			Timestamp: time.UnixMilli(Start + int64(n)),
		})
	}
	return messages
}

// stored is all of partition 0, from the start.
func stored(config *sarama.Config, topic string, count int) []*sarama.ConsumerMessage {
	consumer := Value(sarama.NewConsumer(bootstrap, config))
	defer consumer.Close()
	source := Value(consumer.ConsumePartition(topic, 0, sarama.OffsetOldest))
	defer source.Close()
	var got []*sarama.ConsumerMessage
	for range count {
		got = append(got, next(source.Messages()))
	}
	return got
}

func values(messages []*sarama.ConsumerMessage) []string {
	var values []string
	for _, message := range messages {
		values = append(values, string(message.Value))
	}
	return values
}

func headersAndNulls() error {
	topic := create("headers", 1)
	headers := []sarama.RecordHeader{{Key: []byte("a"), Value: []byte("1")}, {Key: []byte("a"), Value: nil}}
	send(config(), []*sarama.ProducerMessage{
		{Topic: topic, Value: sarama.StringEncoder("v"), Headers: headers},
		{Topic: topic, Key: sarama.StringEncoder("k")},
	})
	got := stored(config(), topic, 2)
	if got[0].Key != nil || got[1].Value != nil {
		return errors.New("nulls became empty")
	}
	found := []sarama.RecordHeader{*got[0].Headers[0], *got[0].Headers[1]}
	return Same(headers, found, "headers")
}

func sizes() error {
	topic := create("sizes", 1, "max.message.bytes", fmt.Sprint(SizesMax))
	config := config()
	config.Producer.MaxMessageBytes = SizesMax
	config.Consumer.Fetch.Default = 1000
	var messages []*sarama.ProducerMessage
	for _, size := range Sizes {
		messages = append(messages, &sarama.ProducerMessage{Topic: topic, Value: sarama.ByteEncoder(Sized(size))})
	}
	send(config, messages)
	for n, got := range stored(config, topic, len(Sizes)) {
		if !bytes.Equal(Sized(Sizes[n]), got.Value) {
			return fmt.Errorf("value %d is another", n)
		}
	}
	return nil
}

func tooLarge() error {
	topic := create("too-large", 1, "max.message.bytes", "20000")
	producer := Value(sarama.NewSyncProducer(bootstrap, config()))
	defer producer.Close()
	_, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.ByteEncoder(Sized(30_000))})
	if !errors.Is(err, sarama.ErrMessageSizeTooLarge) {
		return fmt.Errorf("wanted MESSAGE_TOO_LARGE, found %v", err)
	}
	return nil
}

func logAppendTime() error {
	topic := create("append-time", 1, "message.timestamp.type", "LogAppendTime")
	message := &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("v"), Timestamp: time.UnixMilli(1000)}
	send(config(), []*sarama.ProducerMessage{message})
	got := stored(config(), topic, 1)[0]
	if age := time.Since(got.Timestamp).Abs(); age > time.Minute {
		return fmt.Errorf("%v old", age)
	}
	return Same(message.Timestamp.UnixMilli(), got.Timestamp.UnixMilli(), "the time in the answer and the stored one")
}

func exact(config *sarama.Config) *sarama.Config {
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Net.MaxOpenRequests = 1
	return config
}

func transactions() error {
	topic, input := create("txn", 1), create("txn-input", 1)
	send(config(), numbered(input, 3, 1))
	transactional := exact(config())
	transactional.Producer.Transaction.ID = "sarama-txn"
	producer := Value(sarama.NewSyncProducer(bootstrap, transactional))
	defer producer.Close()
	for _, outcome := range []string{"committed", "aborted", "committed"} {
		Must(producer.BeginTxn())
		_, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(outcome)})
		Must(err)
		if outcome == "committed" {
			offset := []*sarama.PartitionOffsetMetadata{{Partition: 0, Offset: 3, LeaderEpoch: -1}}
			Must(producer.AddOffsetsToTxn(map[string][]*sarama.PartitionOffsetMetadata{input: offset}, "sarama-txn"))
			Must(producer.CommitTxn())
		} else {
			Must(producer.AbortTxn())
		}
	}
	committed := config()
	committed.Consumer.IsolationLevel = sarama.ReadCommitted
	Must(Same([]string{"committed", "committed"}, values(stored(committed, topic, 2)), "read_committed"))
	Must(Same([]string{"committed", "aborted", "committed"}, values(stored(config(), topic, 3)), "read_uncommitted"))
	return Same(int64(3), commit("sarama-txn", input).Offset, "the offset")
}

func commit(group, topic string) *sarama.OffsetFetchResponseBlock {
	found := Value(admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: {0}}))
	return found.GetBlock(topic, 0)
}

// holder joins a group and holds what it is given.
type holder struct{ held chan int }

func (h holder) Setup(session sarama.ConsumerGroupSession) error {
	count := 0
	for _, partitions := range session.Claims() {
		count += len(partitions)
	}
	h.held <- count
	return nil
}
func (holder) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (holder) ConsumeClaim(session sarama.ConsumerGroupSession, _ sarama.ConsumerGroupClaim) error {
	<-session.Context().Done()
	return nil
}

// join returns how many partitions the member holds after each rebalance, and how it leaves.
func join(config *sarama.Config, group, topic string) (<-chan int, func()) {
	member := Value(sarama.NewConsumerGroup(bootstrap, "sarama-"+group, config))
	ctx, cancel := context.WithCancel(context.Background())
	holder := holder{held: make(chan int, 100)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil && member.Consume(ctx, []string{topic}, holder) == nil {
		}
	}()
	return holder.held, func() {
		cancel()
		<-done
		Must(member.Close())
	}
}

func holds(held <-chan int, wanted int) error {
	last := -1
	for {
		select {
		case last = <-held:
			if last == wanted {
				return nil
			}
		case <-time.After(Patience):
			return fmt.Errorf("holds %d, wanted %d", last, wanted)
		}
	}
}

func groupShare() error {
	topic := create("share", 4)
	one, leaveOne := join(config(), "share", topic)
	defer leaveOne()
	Must(holds(one, 4))
	two, leaveTwo := join(config(), "share", topic)
	Must(holds(two, 2))
	Must(holds(one, 2))
	leaveTwo()
	return holds(one, 4)
}

func shortSession() *sarama.Config {
	config := config()
	config.Consumer.Group.Session.Timeout = 6 * time.Second
	return config
}

func lost(group, topic string) {
	join(shortSession(), group, topic)
	select {}
}

func groupCrash() error {
	topic := create("crash", 4)
	one, leave := join(shortSession(), "crash", topic)
	defer leave()
	Must(holds(one, 4))
	kill := Member("crash", topic)
	Must(holds(one, 2))
	kill()
	began := time.Now()
	Must(holds(one, 4))
	if time.Since(began) < 3*time.Second {
		return errors.New("its session had not ended yet")
	}
	return nil
}

func commitAsync() error {
	topic := create("async", 1)
	send(config(), numbered(topic, 10, 1))
	often := config()
	often.Consumer.Offsets.AutoCommit.Interval = 100 * time.Millisecond
	client := Value(sarama.NewClient(bootstrap, often))
	defer client.Close()
	offsets := Value(sarama.NewOffsetManagerFromClient("sarama-async", client))
	partition := Value(offsets.ManagePartition(topic, 0))
	partition.MarkOffset(4, "note")
	Must(Eventually("it is committed", func() bool { return commit("sarama-async", topic).Offset == 4 }))
	Must(Same("note", commit("sarama-async", topic).Metadata, "metadata"))
	Must(partition.Close())
	return offsets.Close()
}

func seekPauseResume() error {
	topic := create("seek", 2)
	send(config(), numbered(topic, 20, 2))
	client := Value(sarama.NewClient(bootstrap, config()))
	defer client.Close()
	consumer := Value(sarama.NewConsumerFromClient(client))
	defer consumer.Close()
	zero := Value(consumer.ConsumePartition(topic, 0, 8))
	Must(Same("16", string(next(zero.Messages()).Value), "at offset 8"))
	Must(zero.Close())
	one := Value(consumer.ConsumePartition(topic, 1, sarama.OffsetNewest))
	defer one.Close()
	one.Pause()
	send(config(), []*sarama.ProducerMessage{{Topic: topic, Partition: 1, Value: sarama.StringEncoder("later")}})
	select {
	case <-one.Messages():
		return errors.New("it is paused and yet reads")
	case <-time.After(500 * time.Millisecond):
	}
	one.Resume()
	Must(Same("later", string(next(one.Messages()).Value), "it is resumed"))
	Must(one.Close())
	offset := Value(client.GetOffset(topic, 1, Start+11))
	again := Value(consumer.ConsumePartition(topic, 1, offset))
	defer again.Close()
	return Same("11", string(next(again.Messages()).Value), "the first at that time")
}

func deleteRecords() error {
	topic := create("delete-records", 1)
	send(config(), numbered(topic, 10, 1))
	Must(admin.DeleteRecords(topic, map[int32]int64{0: 6}))
	return Same("6", string(stored(config(), topic, 4)[0].Value), "the first that is read")
}

func createdAgain() error {
	topic := create("again", 1)
	send(config(), numbered(topic, 5, 1))
	Must(admin.DeleteTopic(topic))
	Must(Eventually("the name is free", func() bool {
		return admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: -1}, false) == nil
	}))
	message := &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("new")}
	send(config(), []*sarama.ProducerMessage{message})
	Must(Same(int64(0), message.Offset, "offset"))
	return Same([]string{"new"}, values(stored(config(), topic, 1)), "the only record")
}

func describe() error {
	topic := create("describe", 1)
	send(config(), numbered(topic, 10, 1))
	size := int64(0)
	for _, directory := range Value(admin.DescribeLogDirs([]int32{1}))[1] {
		for _, found := range directory.Topics {
			if found.Topic == topic {
				for _, partition := range found.Partitions {
					size += partition.Size
				}
			}
		}
	}
	if size < 100 {
		return fmt.Errorf("the topic's size is %d", size)
	}
	for _, entry := range Value(admin.DescribeConfig(sarama.ConfigResource{Type: sarama.BrokerResource, Name: "1"})) {
		if entry.Name == "log.dirs" {
			return nil
		}
	}
	return errors.New("log.dirs is not described")
}

// collector takes what comes in an outage.
type collector struct{ received *Received }

func (collector) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (collector) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (c collector) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		c.received.Add(message.Offset, message.Value)
		session.MarkMessage(message, "")
	}
	return nil
}

func outage() error {
	topic := create("outage", 1)
	var received, kept Received
	go func() {
		member := Value(sarama.NewConsumerGroup(bootstrap, "sarama-outage", config()))
		for {
			if member.Consume(context.Background(), []string{topic}, collector{&received}) != nil {
				time.Sleep(100 * time.Millisecond)
			}
		}
	}()
	patient := exact(config())
	patient.Producer.Retry.Max = 1000
	patient.Producer.Retry.Backoff = 200 * time.Millisecond
	// Without a leader it gives a batch up with the error that it had first, the end of its connection.
	patient.Metadata.Retry.Max = 1000
	producer := Value(sarama.NewAsyncProducer(bootstrap, patient))
	var failure error
	confirmed := make(chan struct{}, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		successes, failures := producer.Successes(), producer.Errors()
		for successes != nil || failures != nil {
			select {
			case _, open := <-successes:
				if !open {
					successes = nil
				}
				select {
				case confirmed <- struct{}{}:
				default:
				}
			case err, open := <-failures:
				if !open {
					failures = nil
				} else {
					failure = err
				}
			}
		}
	}()
	sent := 0
	for ; !Ends(); sent++ {
		producer.Input() <- &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(fmt.Sprint(sent))}
		if sent == 0 {
			<-confirmed
			Ready()
		}
		time.Sleep(5 * time.Millisecond)
	}
	producer.AsyncClose()
	<-ended
	Must(failure)
	Must(Eventually("all is received", func() bool { return received.Count() == sent }))
	for _, message := range stored(config(), topic, sent) {
		kept.Add(message.Offset, message.Value)
	}
	Must(received.Check(sent, false, "received"))
	return kept.Check(sent, false, "stored")
}
