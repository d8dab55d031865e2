// kafkajs through the scenarios. It has gzip alone among the codecs.
const { Kafka, CompressionTypes, logLevel } = require('kafkajs')
const assert = require('node:assert/strict')

const kafka = new Kafka({ brokers: [process.argv[2]], clientId: 'kafkajs', logLevel: logLevel.NOTHING })
const admin = kafka.admin()
const PATIENCE_MS = 30_000
// Records of the past could be deleted by retention while they are read.
const START_MS = Date.now()
let failed = false

async function scenario (name, body) {
  try {
    await Promise.race([body(), late(2 * PATIENCE_MS)])
    console.log(`ok ${name}`)
  } catch (error) {
    failed = true
    console.log(`FAILED ${name}: ${error.message.split('\n')[0]}`)
  }
}

function late (ms) {
  return new Promise((_resolve, reject) => setTimeout(() => reject(new Error(`not within ${ms} ms`)), ms).unref())
}

// Kafka answers an administrator from metadata that may lag behind what it has just done.
async function eventually (what, probe) {
  for (const end = Date.now() + PATIENCE_MS; Date.now() < end;) {
    if (await probe()) return
    await new Promise(resolve => setTimeout(resolve, 50))
  }
  throw new Error(`not within ${PATIENCE_MS} ms: ${what}`)
}

async function create (name, numPartitions, configEntries = []) {
  const topic = `kafkajs-${name}`
  await admin.createTopics({ waitForLeaders: true, topics: [{ topic, numPartitions, replicationFactor: 1, configEntries }] })
  return topic
}

async function send (topic, messages, options = {}) {
  const producer = kafka.producer(options.producer)
  await producer.connect()
  const sent = await producer.send({ topic, messages, ...options.send })
  await producer.disconnect()
  return sent
}

async function consume (topic, groupId, count) {
  const consumer = kafka.consumer({ groupId: `kafkajs-${groupId}`, heartbeatInterval: 200, maxWaitTimeInMs: 100 })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  const got = []
  await new Promise((resolve, reject) => {
    late(PATIENCE_MS).catch(reject)
    consumer.run({
      eachMessage: async ({ partition, message }) => {
        got.push({ partition, ...message })
        if (got.length === count) resolve()
      }
    }).catch(reject)
  })
  await consumer.stop()
  await consumer.disconnect()
  return got
}

async function administer () {
  const topic = await create('admin', 2)
  assert.ok((await admin.listTopics()).includes(topic))
  await admin.createPartitions({ topicPartitions: [{ topic, count: 4 }] })
  await eventually('four partitions', async () => {
    const { topics } = await admin.fetchTopicMetadata({ topics: [topic] })
    return topics[0].partitions.length === 4
  })
  await admin.alterConfigs({ resources: [{ type: 2, name: topic, configEntries: [{ name: 'retention.ms', value: '3600000' }] }] })
  await eventually('the change shows', async () => {
    const asked = [{ type: 2, name: topic, configNames: ['retention.ms'] }]
    const described = await admin.describeConfigs({ resources: asked })
    return described.resources[0].configEntries[0].configValue === '3600000'
  })
  await admin.deleteTopics({ topics: [topic] })
  await eventually('it is gone', async () => !(await admin.listTopics()).includes(topic))
}

async function roundTrip (name, compression) {
  const topic = await create(`codec-${name}`, 2)
  const messages = Array.from({ length: 200 }, (_, n) => ({
    partition: n % 2, key: `k${n}`, value: `value ${n} ` + 'x'.repeat(n), timestamp: `${START_MS + n}`, headers: { h: '1' }
  }))
  await send(topic, messages, { send: { compression } })
  const next = [0, 1]
  for (const got of await consume(topic, `codec-${name}`, 200)) {
    const wanted = messages[next[got.partition]]
    assert.deepEqual([got.key.toString(), got.value.toString(), got.timestamp, got.headers.h.toString()],
      [wanted.key, wanted.value, wanted.timestamp, '1'])
    next[got.partition] += 2
  }
}

async function idempotent () {
  const topic = await create('idempotent', 1)
  const options = { producer: { idempotent: true, maxInFlightRequests: 1 } }
  const [sent] = await send(topic, [{ value: 'a' }, { value: 'b' }], options)
  assert.equal(sent.baseOffset, '0')
}

async function groupResume () {
  const topic = await create('resume', 2)
  await send(topic, Array.from({ length: 10 }, (_, n) => ({ partition: n % 2, value: `${n}` })))
  assert.equal((await consume(topic, 'resume', 10)).length, 10)
  await send(topic, [{ partition: 1, value: 'later' }])
  const [later] = await consume(topic, 'resume', 1)
  assert.equal(later.value.toString(), 'later')
  const [offsets] = await admin.fetchOffsets({ groupId: 'kafkajs-resume', topics: [topic] })
  assert.equal(offsets.partitions.find(({ partition }) => partition === 1).offset, '6')
}

async function offsetsByTime () {
  const topic = await create('times', 1, [{ name: 'retention.ms', value: '-1' }])
  await send(topic, ['1000', '2000', '3000'].map(timestamp => ({ value: 'v', timestamp })))
  const [found] = await admin.fetchTopicOffsetsByTimestamp(topic, 1500)
  assert.equal(found.offset, '1')
  const [end] = await admin.fetchTopicOffsets(topic)
  assert.deepEqual([end.low, end.high], ['0', '3'])
}

async function main () {
  await admin.connect()
  await scenario('admin', administer)
  await scenario('codec-none', () => roundTrip('none', CompressionTypes.None))
  await scenario('codec-gzip', () => roundTrip('gzip', CompressionTypes.GZIP))
  await scenario('idempotent', idempotent)
  await scenario('group-resume', groupResume)
  await scenario('offsets-by-time', offsetsByTime)
  await admin.disconnect()
  process.exit(failed ? 1 : 0)
}

main()
