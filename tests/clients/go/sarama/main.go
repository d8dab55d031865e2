// sarama through the scenarios.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	. "kuring/tests/clients"

	"github.com/IBM/sarama"
)

var bootstrap = []string{os.Args[1]}
var admin sarama.ClusterAdmin

func main() {
	admin = Value(sarama.NewClusterAdmin(bootstrap, config()))
	codecs := map[string]sarama.CompressionCodec{
		"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
		"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
	}
	Scenario("admin", administer)
	for _, name := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		Scenario("codec-"+name, func() error { return roundTrip(name, codecs[name]) })
	}
	Scenario("idempotent", idempotent)
	Scenario("group-resume", groupResume)
	Scenario("offsets-by-time", offsetsByTime)
	Exit()
}

func config() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V4_0_0_0
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.MaxWaitTime = 100 * time.Millisecond
	config.Consumer.Group.Heartbeat.Interval = 200 * time.Millisecond
	return config
}

func create(name string, partitions int32) string {
	topic := "sarama-" + name
	forever := "-1"
	Must(admin.CreateTopic(topic, &sarama.TopicDetail{
		NumPartitions: partitions, ReplicationFactor: 1, ConfigEntries: map[string]*string{"retention.ms": &forever},
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
	err := admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}, false)
	if !errors.Is(err, sarama.ErrTopicAlreadyExists) {
		return fmt.Errorf("created again: %v", err)
	}
	Must(admin.CreatePartitions(topic, 4, nil, false))
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
	config := config()
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Net.MaxOpenRequests = 1
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
