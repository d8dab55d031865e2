// kafkajs through the scenarios. It has gzip alone among the codecs.
const { Kafka, CompressionTypes, logLevel } = require('kafkajs')
const { bootstrap, isOutage, run } = require('./scenarios.js')

const patience = { retries: 1000, initialRetryTime: 100, maxRetryTime: 1000 }
// Its connections have a patience of their own, which a slow start of a broker exceeds.
const connecting = isOutage ? { retry: patience } : {}
const kafka = new Kafka({ brokers: bootstrap.split(','), clientId: 'kafkajs', logLevel: logLevel.NOTHING, ...connecting })
const held = new Map()

run({
  name: 'kafkajs',
  kafka,
  codecs: { none: CompressionTypes.None, gzip: CompressionTypes.GZIP },
  has: { waitForLeaders: true, configs: true },
  addPartitions: (admin, topic, count) => admin.createPartitions({ topicPartitions: [{ topic, count }] }),
  producer: ({ large, patient, retries, ...options }) => kafka.producer({
    ...options, ...(patient ? { retry: patience } : {}), ...(retries === 0 ? { retry: { retries } } : {})
  }),
  sendOptions: compression => compression === undefined ? {} : { compression },
  consumer: ({ patient, autoCommit, ...options }) => kafka.consumer({
    heartbeatInterval: 200, maxWaitTimeInMs: 100, ...options, ...(patient ? { retry: patience } : {})
  }),
  subscribe: (consumer, topic) => consumer.subscribe({ topic, fromBeginning: true }),
  runManually: { autoCommit: false },
  watch: consumer => consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    held.set(consumer, Object.values(payload.memberAssignment).flat())
  }),
  assigned: consumer => held.get(consumer) ?? [],
  offsets: (consumerGroupId, _consumer, topics) => ({ consumerGroupId, topics })
})
