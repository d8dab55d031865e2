// segmentio/kafka-go through the scenarios.
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

	"github.com/segmentio/kafka-go"
)

var bootstrap = strings.Split(os.Args[1], ",")
var client = &kafka.Client{Addr: kafka.TCP(bootstrap...), Timeout: Patience}

func main() {
	switch Mode() {
	case "member":
		lost(os.Args[3], os.Args[4])
	case "outage":
		Scenario("outage", outage)
		Exit()
	}
	Scenario("admin", administer)
	for _, codec := range []kafka.Compression{0, kafka.Gzip, kafka.Snappy, kafka.Lz4, kafka.Zstd} {
		name := codec.String()
		if codec == 0 {
			name = "none"
		}
		Scenario("codec-"+name, func() error { return roundTrip(name, codec) })
	}
	Scenario("headers-and-nulls", headersAndNulls)
	Scenario("sizes", sizes)
	Scenario("too-large", tooLarge)
	Scenario("group-resume", groupResume)
	Scenario("group-share", groupShare)
	Scenario("group-crash", groupCrash)
	Scenario("commit-async", commitAsync)
	Scenario("offsets-by-time", offsetsByTime)
	Scenario("topic-created-again", createdAgain)
	Exit()
}

func create(name string, partitions int, more ...string) string {
	topic := "kafkago-" + name
	configs := []kafka.ConfigEntry{{ConfigName: "retention.ms", ConfigValue: "-1"}}
	for n := 0; n < len(more); n += 2 {
		configs = append(configs, kafka.ConfigEntry{ConfigName: more[n], ConfigValue: more[n+1]})
	}
	Must(createTopic(kafka.TopicConfig{
		Topic: topic, NumPartitions: partitions, ReplicationFactor: -1, ConfigEntries: configs,
	}))
	return topic
}

func createTopic(topic kafka.TopicConfig) error {
	response := Value(client.CreateTopics(Patient(), &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{topic}}))
	return response.Errors[topic.Topic]
}

func administer() error {
	topic := create("admin", 2)
	again := createTopic(kafka.TopicConfig{Topic: topic, NumPartitions: 1, ReplicationFactor: -1})
	if !errors.Is(again, kafka.TopicAlreadyExists) {
		return fmt.Errorf("created again: %v", again)
	}
	more := Value(client.CreatePartitions(Patient(), &kafka.CreatePartitionsRequest{
		Topics: []kafka.TopicPartitionsConfig{{Name: topic, Count: 4}},
	}))
	Must(more.Errors[topic])
	Must(Eventually("four partitions", func() bool {
		metadata := Value(client.Metadata(Patient(), &kafka.MetadataRequest{Topics: []string{topic}}))
		return len(metadata.Topics[0].Partitions) == 4
	}))
	step := kafka.IncrementalAlterConfigsRequestConfig{
		Name: "cleanup.policy", Value: "compact", ConfigOperation: kafka.ConfigOperationAppend,
	}
	altered := Value(client.IncrementalAlterConfigs(Patient(), &kafka.IncrementalAlterConfigsRequest{
		Resources: []kafka.IncrementalAlterConfigsRequestResource{{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: topic,
			Configs: []kafka.IncrementalAlterConfigsRequestConfig{step},
		}},
	}))
	Must(altered.Resources[0].Error)
	Must(Eventually("the policy is appended", func() bool {
		described := Value(client.DescribeConfigs(Patient(), &kafka.DescribeConfigsRequest{
			Resources: []kafka.DescribeConfigRequestResource{{ResourceType: kafka.ResourceTypeTopic, ResourceName: topic}},
		}))
		for _, entry := range described.Resources[0].ConfigEntries {
			if entry.ConfigName == "cleanup.policy" {
				return entry.ConfigValue == "delete,compact"
			}
		}
		return false
	}))
	deleted := Value(client.DeleteTopics(Patient(), &kafka.DeleteTopicsRequest{Topics: []string{topic}}))
	return deleted.Errors[topic]
}

func send(topic string, codec kafka.Compression, messages []kafka.Message) {
	writer := &kafka.Writer{
		Addr: kafka.TCP(bootstrap...), Topic: topic, Compression: codec, BatchTimeout: 10 * time.Millisecond,
		RequiredAcks: kafka.RequireAll, BatchBytes: SizesMax,
	}
	Must(writer.WriteMessages(Patient(), messages...))
	Must(writer.Close())
}

func roundTrip(name string, codec kafka.Compression) error {
	topic := create("codec-"+name, 1)
	var messages []kafka.Message
	for n := range 300 {
		messages = append(messages, kafka.Message{
			Key: fmt.Appendf(nil, "k%d", n), Value: []byte(fmt.Sprint("value ", n, strings.Repeat("x", n))),
			Headers: []kafka.Header{{Key: "h", Value: []byte("1")}},
		})
	}
	send(topic, codec, messages)
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: bootstrap, Topic: topic, Partition: 0, MaxWait: 100 * time.Millisecond,
	})
	defer reader.Close()
	for n := range 300 {
		got := Value(reader.ReadMessage(Patient()))
		Must(Same(int64(n), got.Offset, "offset"))
		Must(Same(string(messages[n].Value), string(got.Value), "value"))
		Must(Same("1", string(got.Headers[0].Value), "header"))
	}
	return nil
}

func groupResume() error {
	topic := create("resume", 1)
	read := func() string {
		reader := kafka.NewReader(kafka.ReaderConfig{
			Brokers: bootstrap, Topic: topic, GroupID: "kafka-go-resume", MaxWait: 100 * time.Millisecond,
			StartOffset: kafka.FirstOffset, HeartbeatInterval: 200 * time.Millisecond,
		})
		defer reader.Close()
		return string(Value(reader.ReadMessage(Patient())).Value)
	}
	send(topic, 0, []kafka.Message{{Value: []byte("first")}, {Value: []byte("second")}})
	Must(Same("first", read(), "the first member"))
	return Same("second", read(), "the next member")
}

// stored is all of partition 0, from the start.
func stored(topic string, count int) []kafka.Message {
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: bootstrap, Topic: topic, MaxWait: 100 * time.Millisecond, MaxBytes: 2 * SizesMax,
	})
	defer reader.Close()
	var got []kafka.Message
	for range count {
		got = append(got, Value(reader.ReadMessage(Patient())))
	}
	return got
}

func headersAndNulls() error {
	topic := create("headers", 1)
	headers := []kafka.Header{{Key: "a", Value: []byte("1")}, {Key: "a", Value: []byte("2")}}
	send(topic, 0, []kafka.Message{{Value: []byte("v"), Headers: headers}, {Key: []byte("k")}})
	got := stored(topic, 2)
	if got[0].Key != nil || got[1].Value != nil {
		return errors.New("nulls became empty")
	}
	return Same(headers, got[0].Headers, "headers")
}

func sizes() error {
	topic := create("sizes", 1, "max.message.bytes", fmt.Sprint(SizesMax))
	for _, size := range Sizes {
		send(topic, 0, []kafka.Message{{Value: Sized(size)}})
	}
	for n, got := range stored(topic, len(Sizes)) {
		if !bytes.Equal(Sized(Sizes[n]), got.Value) {
			return fmt.Errorf("value %d is another", n)
		}
	}
	return nil
}

func tooLarge() error {
	topic := create("too-large", 1, "max.message.bytes", "20000")
	writer := &kafka.Writer{Addr: kafka.TCP(bootstrap...), Topic: topic, BatchTimeout: 10 * time.Millisecond, MaxAttempts: 1,
		RequiredAcks: kafka.RequireAll}
	defer writer.Close()
	err := writer.WriteMessages(Patient(), kafka.Message{Value: Sized(30_000)})
	var errs kafka.WriteErrors
	if errors.As(err, &errs) {
		err = errs[0]
	}
	if !errors.Is(err, kafka.MessageSizeTooLarge) {
		return fmt.Errorf("wanted MESSAGE_TOO_LARGE, found %v", err)
	}
	return nil
}

func reader(group, topic string) *kafka.Reader {
	return kafka.NewReader(kafka.ReaderConfig{
		Brokers: bootstrap, Topic: topic, GroupID: "kafka-go-" + group, MaxWait: 100 * time.Millisecond,
		StartOffset: kafka.FirstOffset, HeartbeatInterval: 200 * time.Millisecond, SessionTimeout: 6 * time.Second,
		JoinGroupBackoff: 100 * time.Millisecond, CommitInterval: 100 * time.Millisecond,
	})
}

// members waits until the group has members with so many partitions each.
func members(group string, wanted ...int) error {
	var found []int
	for end := time.Now().Add(Patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		described, err := client.DescribeGroups(Patient(), &kafka.DescribeGroupsRequest{GroupIDs: []string{"kafka-go-" + group}})
		if err != nil {
			continue
		}
		found = found[:0]
		for _, member := range described.Groups[0].Members {
			for _, topic := range member.MemberAssignments.Topics {
				found = append(found, len(topic.Partitions))
			}
		}
		if Same(wanted, found, "") == nil {
			return nil
		}
	}
	return fmt.Errorf("shares: wanted %v, found %v", wanted, found)
}

func groupShare() error {
	topic := create("share", 4)
	one := reader("share", topic)
	defer one.Close()
	two := reader("share", topic)
	Must(members("share", 2, 2))
	Must(two.Close())
	return members("share", 4)
}

func lost(group, topic string) {
	reader(group, topic)
	select {}
}

func groupCrash() error {
	topic := create("crash", 4)
	kill := Member("crash", topic)
	one := reader("crash", topic)
	defer one.Close()
	Must(members("crash", 2, 2))
	kill()
	began := time.Now()
	Must(members("crash", 4))
	if time.Since(began) < 3*time.Second {
		return errors.New("its session had not ended yet")
	}
	return nil
}

func commitAsync() error {
	topic := create("async", 1)
	send(topic, 0, []kafka.Message{{Value: []byte("a")}, {Value: []byte("b")}})
	source := kafka.NewReader(kafka.ReaderConfig{
		Brokers: bootstrap, Topic: topic, GroupID: "kafka-go-async", MaxWait: 100 * time.Millisecond,
		StartOffset: kafka.FirstOffset, CommitInterval: 100 * time.Millisecond,
	})
	defer source.Close()
	Must(source.CommitMessages(Patient(), Value(source.FetchMessage(Patient()))))
	return Eventually("it is committed", func() bool {
		found := Value(client.OffsetFetch(Patient(), &kafka.OffsetFetchRequest{
			GroupID: "kafka-go-async", Topics: map[string][]int{topic: {0}},
		}))
		return found.Topics[topic][0].CommittedOffset == 1
	})
}

func offsetsByTime() error {
	topic := create("times", 1)
	for _, ms := range []int64{1000, 2000, 3000} {
		send(topic, 0, []kafka.Message{{Value: []byte("v"), Time: time.UnixMilli(ms)}})
	}
	found := Value(client.ListOffsets(Patient(), &kafka.ListOffsetsRequest{
		Topics: map[string][]kafka.OffsetRequest{topic: {kafka.TimeOffsetOf(0, time.UnixMilli(1500)), kafka.LastOffsetOf(0)}},
	}))
	at := found.Topics[topic][0]
	Must(at.Error)
	Must(Same(int64(3), at.LastOffset, "end"))
	if _, ok := at.Offsets[1]; !ok {
		return fmt.Errorf("at 1500: %v", at.Offsets)
	}
	source := kafka.NewReader(kafka.ReaderConfig{Brokers: bootstrap, Topic: topic, MaxWait: 100 * time.Millisecond})
	defer source.Close()
	Must(source.SetOffsetAt(Patient(), time.UnixMilli(2500)))
	return Same(int64(2), Value(source.ReadMessage(Patient())).Offset, "reading from 2500 on")
}

func createdAgain() error {
	topic := create("again", 1)
	send(topic, 0, []kafka.Message{{Value: []byte("old")}})
	deleted := Value(client.DeleteTopics(Patient(), &kafka.DeleteTopicsRequest{Topics: []string{topic}}))
	Must(deleted.Errors[topic])
	Must(Eventually("the name is free", func() bool {
		return createTopic(kafka.TopicConfig{Topic: topic, NumPartitions: 1, ReplicationFactor: -1}) == nil
	}))
	send(topic, 0, []kafka.Message{{Value: []byte("new")}})
	got := stored(topic, 1)[0]
	return Same("0 new", fmt.Sprint(got.Offset, " ", string(got.Value)), "the only record")
}

func outage() error {
	topic := create("outage", 1)
	var received, kept Received
	go func() {
		for source := reader("outage", topic); ; {
			if message, err := source.ReadMessage(context.Background()); err == nil {
				received.Add(message.Offset, message.Value)
			}
		}
	}()
	// One at a time: without idempotence what is sent again could overtake or be overtaken.
	writer := &kafka.Writer{
		Addr: kafka.TCP(bootstrap...), Topic: topic, BatchTimeout: time.Millisecond, RequiredAcks: kafka.RequireAll,
		MaxAttempts: 1000, WriteBackoffMin: 100 * time.Millisecond, WriteBackoffMax: 500 * time.Millisecond,
	}
	sent := 0
	for ; !Ends(); sent++ {
		Must(writer.WriteMessages(context.Background(), kafka.Message{Value: fmt.Append(nil, sent)}))
		if sent == 0 {
			Ready()
		}
		time.Sleep(5 * time.Millisecond)
	}
	Must(writer.Close())
	Must(Eventually("all is received", func() bool { return received.Check(sent, true, "received") == nil }))
	for _, message := range stored(topic, received.Count()) {
		kept.Add(message.Offset, message.Value)
	}
	return kept.Check(sent, true, "stored")
}
