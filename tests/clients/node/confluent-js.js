// @confluentinc/kafka-javascript (librdkafka) through the scenarios, by the calls that it shares with kafkajs.
const { Kafka, PartitionAssigners } = require('@confluentinc/kafka-javascript').KafkaJS
const { bootstrap, run } = require('./scenarios.js')

const kafka = new Kafka({ kafkaJS: { brokers: [bootstrap], clientId: 'confluent-js' }, log_level: 0 })

run({
  name: 'confluent-js',
  kafka,
  codecs: { none: 'none', gzip: 'gzip', snappy: 'snappy', lz4: 'lz4', zstd: 'zstd' },
  has: { cooperative: true, modern: true, deleteRecords: true },
  producer: ({ large, patient, retries, ...kafkaJS }, compression = 'none') => kafka.producer({
    kafkaJS,
    'compression.codec': compression,
    ...(large ? { 'message.max.bytes': large } : {}),
    ...(patient ? { 'message.timeout.ms': 150_000 } : {})
  }),
  sendOptions: () => ({}),
  consumer: ({ groupId, readUncommitted, sessionTimeout, cooperative, modern }) => kafka.consumer(modern
    ? { kafkaJS: { groupId, fromBeginning: true }, 'group.protocol': 'consumer' }
    : {
        kafkaJS: {
          groupId,
          fromBeginning: true,
          readUncommitted,
          ...(sessionTimeout ? { sessionTimeout } : {}),
          heartbeatInterval: 200,
          partitionAssigners: [cooperative ? PartitionAssigners.cooperativeSticky : PartitionAssigners.roundRobin]
        }
      }),
  subscribe: (consumer, topic) => consumer.subscribe({ topics: [topic] }),
  watch: () => {},
  assigned: consumer => consumer.assignment().map(({ partition }) => partition),
  offsets: (_group, consumer, topics) => ({ consumer, topics })
})
