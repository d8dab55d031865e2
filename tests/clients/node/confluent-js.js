// @confluentinc/kafka-javascript (librdkafka) through the scenarios, by the calls that it shares with kafkajs.
const { AdminClient, KafkaJS: { Kafka, PartitionAssigners } } = require('@confluentinc/kafka-javascript')
const { bootstrap, run } = require('./scenarios.js')

const kafka = new Kafka({ kafkaJS: { brokers: bootstrap.split(','), clientId: 'confluent-js' }, log_level: 0 })

run({
  name: 'confluent-js',
  kafka,
  codecs: { none: 'none', gzip: 'gzip', snappy: 'snappy', lz4: 'lz4', zstd: 'zstd' },
  // It sends a value of no bytes as none.
  has: { cooperative: true, modern: true, deleteRecords: true, nullForEmpty: true },
  // kafkajs's calls lack this one here.
  addPartitions: (_admin, topic, count) => new Promise((resolve, reject) => {
    const client = AdminClient.create({ 'bootstrap.servers': bootstrap })
    client.createPartitions(topic, count, 10_000, error => {
      client.disconnect()
      if (error) reject(error); else resolve()
    })
  }),
  producer: ({ large, patient, retries, ...kafkaJS }, compression = 'none') => kafka.producer({
    kafkaJS,
    'compression.codec': compression,
    ...(large ? { 'message.max.bytes': large } : {}),
    // With kafkajs's settings it gives up after five attempts.
    ...(patient ? { 'message.timeout.ms': 150_000, retries: 10_000 } : {})
  }),
  sendOptions: () => ({}),
  consumer: ({ groupId, readUncommitted = false, sessionTimeout, cooperative, modern, autoCommit = true }) => kafka.consumer(modern
    ? { kafkaJS: { groupId, fromBeginning: true }, 'group.protocol': 'consumer' }
    : {
        kafkaJS: {
          groupId,
          fromBeginning: true,
          readUncommitted,
          autoCommit,
          ...(sessionTimeout ? { sessionTimeout } : {}),
          heartbeatInterval: 200,
          partitionAssigners: [cooperative ? PartitionAssigners.cooperativeSticky : PartitionAssigners.roundRobin]
        }
      }),
  subscribe: (consumer, topic) => consumer.subscribe({ topics: [topic] }),
  runManually: {},
  watch: () => {},
  assigned: consumer => consumer.assignment().map(({ partition }) => partition),
  offsets: (_group, consumer, topics) => ({ consumer, topics })
})
