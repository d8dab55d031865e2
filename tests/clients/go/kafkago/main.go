// segmentio/kafka-go through the scenarios.
package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	. "kuring/tests/clients"

	"github.com/segmentio/kafka-go"
)

var bootstrap = os.Args[1]
var client = &kafka.Client{Addr: kafka.TCP(bootstrap), Timeout: Patience}

func main() {
	Scenario("admin", administer)
	for _, codec := range []kafka.Compression{0, kafka.Gzip, kafka.Snappy, kafka.Lz4, kafka.Zstd} {
		name := codec.String()
		if codec == 0 {
			name = "none"
		}
		Scenario("codec-"+name, func() error { return roundTrip(name, codec) })
	}
	Scenario("group-resume", groupResume)
	Exit()
}

func create(name string, partitions int) string {
	topic := "kafka-go-" + name
	response := Value(client.CreateTopics(Patient(), &kafka.CreateTopicsRequest{
		Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: partitions, ReplicationFactor: 1}},
	}))
	Must(response.Errors[topic])
	return topic
}

func administer() error {
	topic := create("admin", 2)
	metadata := Value(client.Metadata(Patient(), &kafka.MetadataRequest{Topics: []string{topic}}))
	Must(Same(2, len(metadata.Topics[0].Partitions), "partitions"))
	deleted := Value(client.DeleteTopics(Patient(), &kafka.DeleteTopicsRequest{Topics: []string{topic}}))
	return deleted.Errors[topic]
}

func send(topic string, codec kafka.Compression, messages []kafka.Message) {
	writer := &kafka.Writer{
		Addr: kafka.TCP(bootstrap), Topic: topic, Compression: codec, BatchTimeout: 10 * time.Millisecond,
		RequiredAcks: kafka.RequireAll,
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
		Brokers: []string{bootstrap}, Topic: topic, Partition: 0, MaxWait: 100 * time.Millisecond,
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
			Brokers: []string{bootstrap}, Topic: topic, GroupID: "kafka-go-resume", MaxWait: 100 * time.Millisecond,
			StartOffset: kafka.FirstOffset, HeartbeatInterval: 200 * time.Millisecond,
		})
		defer reader.Close()
		return string(Value(reader.ReadMessage(Patient())).Value)
	}
	send(topic, 0, []kafka.Message{{Value: []byte("first")}, {Value: []byte("second")}})
	Must(Same("first", read(), "the first member"))
	return Same("second", read(), "the next member")
}
