// What both Node clients go through. confluent-js has kafkajs's calls with small differences; an adapter hides them:
// name, kafka, codecs {name: compression}, producer(options, compression), consumer(options), subscribe(consumer, topic),
// assigned(consumer) (partitions held), offsets(group, consumer, topics) for a transaction, addPartitions(admin, topic,
// count), runManually (what run() needs to commit nothing by itself), and has (what its administrator can do).
const assert = require('node:assert/strict')
const { spawn } = require('node:child_process')
const fs = require('node:fs')
const path = require('node:path')

const PATIENCE_MS = 60_000
// Records of the past could be deleted by retention while they are read.
const START_MS = Date.now()
const SIZES = [0, 1, 1_000_000, 20_000_000]
const SIZES_MAX = 25_000_000
const [, , bootstrap, mode, ...rest] = process.argv
let adapter
let admin
let failed = false

async function scenario (name, body) {
  if ((process.env.KURING_SCENARIO ?? name) !== name) return
  try {
    await Promise.race([body(), late(mode === 'outage' ? 6 * PATIENCE_MS : 2 * PATIENCE_MS)])
    console.log(`ok ${name}`)
  } catch (error) {
    failed = true
    const where = /scenarios\.js:(\d+)/.exec(error.stack ?? '')?.[1] ?? '?'
    const all = [error, ...(error.errors ?? [])].map(one => String(one.message).split('\n').slice(0, 3).join(' '))
    console.log(`FAILED ${name}: ${all.join('; ')} (line ${where})`)
  }
}

function late (ms) {
  return new Promise((_resolve, reject) => setTimeout(() => reject(new Error(`not within ${ms} ms`)), ms).unref())
}

const sleep = ms => new Promise(resolve => setTimeout(resolve, ms))

// Kafka answers an administrator from metadata that may lag behind what it has just done.
async function eventually (what, probe) {
  for (const end = Date.now() + PATIENCE_MS; Date.now() < end; await sleep(50)) {
    if (await probe()) return
  }
  throw new Error(`not within ${PATIENCE_MS} ms: ${typeof what === 'function' ? what() : what}`)
}

async function fails (body) {
  try {
    await body()
  } catch (error) {
    return `${error.type ?? ''} ${error.message} ${error.cause ?? ''}`
  }
  throw new Error('nothing failed')
}

async function create (name, numPartitions, configs = {}) {
  const topic = `${adapter.name}-${name}`
  const configEntries = Object.entries(configs).map(([name, value]) => ({ name, value: `${value}` }))
  const created = await admin.createTopics({
    // That wait of kafkajs ends with an error where a broker learns of the topic a little later.
    ...(adapter.has.waitForLeaders ? { waitForLeaders: false } : {}),
    topics: [{ topic, numPartitions, replicationFactor: -1, configEntries }],
    timeout: PATIENCE_MS
  })
  if (!created) throw new Error(`${topic} already exists`)
  await eventually(`${topic} is known`, async () => {
    try {
      const found = await admin.fetchTopicMetadata({ topics: [topic] })
      return (found.topics ?? found)[0].partitions.length === numPartitions
    } catch {
      return false
    }
  })
  return topic
}

async function send (topic, messages, options = {}, compression = undefined) {
  const producer = adapter.producer(options, compression)
  await producer.connect()
  try {
    // confluent-js changes the messages that it is given.
    return await producer.send({ topic, messages: messages.map(one => ({ ...one })), ...adapter.sendOptions(compression) })
  } finally {
    await producer.disconnect()
  }
}

// Reads until there are count records, and leaves the group.
async function consume (topic, group, count, options = {}, each = async () => {}) {
  const consumer = adapter.consumer({ groupId: `${adapter.name}-${group}`, ...options })
  await consumer.connect()
  await adapter.subscribe(consumer, topic)
  const got = []
  try {
    await new Promise((resolve, reject) => {
      late(PATIENCE_MS).catch(error => reject(new Error(`${got.length} of ${count} records: ${error.message}`)))
      Promise.resolve(consumer.run({
        eachMessage: async ({ partition, message }) => {
          got.push({ partition, ...message })
          await each(consumer, got)
          if (got.length === count) resolve()
        }
      })).catch(reject)
    })
  } finally {
    await consumer.disconnect()
  }
  return got
}

const values = records => records.map(record => record.value?.toString())
const numbered = (count, partitions) => Array.from({ length: count }, (_, n) => ({
  partition: n % partitions, value: `${n}`, timestamp: `${START_MS + n}`
}))

async function administer () {
  const topic = await create('admin', 2)
  await eventually('it is listed', async () => (await admin.listTopics()).includes(topic))
  assert.match(await fails(() => create('admin', 1)), /exists/)
  await adapter.addPartitions(admin, topic, 4)
  await eventually('four partitions', async () => {
    const found = await admin.fetchTopicMetadata({ topics: [topic] })
    return (found.topics ?? found)[0].partitions.length === 4
  })
  if (adapter.has.configs) {
    const configEntries = [{ name: 'retention.ms', value: '3600000' }]
    await admin.alterConfigs({ resources: [{ type: 2, name: topic, configEntries }] })
    await eventually('the change shows', async () => {
      const asked = [{ type: 2, name: topic, configNames: ['retention.ms'] }]
      const described = await admin.describeConfigs({ resources: asked })
      return described.resources[0].configEntries[0].configValue === '3600000'
    })
  }
  await admin.deleteTopics({ topics: [topic] })
  await eventually('it is gone', async () => !(await admin.listTopics()).includes(topic))
}

async function roundTrip (name, compression) {
  const topic = await create(`codec-${name}`, 2)
  const messages = Array.from({ length: 200 }, (_, n) => ({
    partition: n % 2, key: `k${n}`, value: `value ${n} ` + 'x'.repeat(n), timestamp: `${START_MS + n}`, headers: { h: '1' }
  }))
  await send(topic, messages, {}, compression)
  const next = [0, 1]
  for (const got of await consume(topic, `codec-${name}`, 200)) {
    const wanted = messages[next[got.partition]]
    assert.deepEqual([got.key.toString(), got.value.toString(), `${got.timestamp}`, got.headers.h.toString()],
      [wanted.key, wanted.value, wanted.timestamp, '1'])
    next[got.partition] += 2
  }
}

async function headersAndNulls () {
  const topic = await create('headers', 1)
  await send(topic, [{ value: 'v', headers: { a: ['1', '2'], b: '' } }, { key: 'k', value: null }])
  const [first, second] = await consume(topic, 'headers', 2)
  assert.deepEqual([first.key ?? null, first.value.toString()], [null, 'v'])
  assert.deepEqual([first.headers.a.map(String), first.headers.b.toString()], [['1', '2'], ''])
  assert.deepEqual([second.key.toString(), second.value], ['k', null])
}

async function sizes () {
  const topic = await create('sizes', 1, { 'max.message.bytes': SIZES_MAX })
  for (const size of SIZES) await send(topic, [{ value: Buffer.alloc(size, size % 251) }], { large: SIZES_MAX })
  const got = await consume(topic, 'sizes', SIZES.length)
  for (const [n, size] of SIZES.entries()) {
    if (size === 0 && adapter.has.nullForEmpty) assert.equal(got[n].value, null)
    else assert.ok(Buffer.alloc(size, size % 251).equals(got[n].value), `value ${n}`)
  }
}

async function tooLarge () {
  const topic = await create('too-large', 1, { 'max.message.bytes': 20000 })
  assert.match(await fails(() => send(topic, [{ value: Buffer.alloc(30000) }], { retries: 0 })), /too large|larger than/i)
}

async function logAppendTime () {
  const topic = await create('append-time', 1, { 'message.timestamp.type': 'LogAppendTime' })
  await send(topic, [{ value: 'v', timestamp: '1000' }])
  const [got] = await consume(topic, 'append-time', 1)
  assert.ok(Math.abs(got.timestamp - Date.now()) < 60_000, got.timestamp)
}

async function idempotent () {
  const topic = await create('idempotent', 1)
  const [sent] = await send(topic, [{ value: 'a' }, { value: 'b' }], { idempotent: true, maxInFlightRequests: 1 })
  assert.equal(sent.baseOffset, '0')
}

async function transactions () {
  const topic = await create('txn', 1)
  const input = await create('txn-input', 1)
  await send(input, numbered(3, 1))
  const group = `${adapter.name}-txn`
  const producer = adapter.producer({ idempotent: true, maxInFlightRequests: 1, transactionalId: group })
  await producer.connect()
  const consumer = adapter.consumer({ groupId: group })
  await consumer.connect()
  await adapter.subscribe(consumer, input)
  let seen = 0
  await Promise.resolve(consumer.run({ eachMessage: async () => { seen++ } }))
  await eventually('the input', () => seen === 3)
  for (const outcome of ['committed', 'aborted', 'committed']) {
    const transaction = await producer.transaction()
    await transaction.send({ topic, messages: [{ value: outcome }] })
    if (outcome === 'committed') {
      const topics = [{ topic: input, partitions: [{ partition: 0, offset: '3' }] }]
      await transaction.sendOffsets(adapter.offsets(group, consumer, topics))
      await transaction.commit()
    } else {
      await transaction.abort()
    }
  }
  await producer.disconnect()
  await consumer.disconnect()
  assert.deepEqual(values(await consume(topic, 'committed', 2)), ['committed', 'committed'])
  const all = await consume(topic, 'uncommitted', 3, { readUncommitted: true })
  assert.deepEqual(values(all), ['committed', 'aborted', 'committed'])
  const [offsets] = await admin.fetchOffsets({ groupId: group, topics: [input] })
  assert.equal(offsets.partitions[0].offset, '3')
}

async function groupResume () {
  const topic = await create('resume', 2)
  await send(topic, numbered(10, 2))
  assert.equal((await consume(topic, 'resume', 10)).length, 10)
  await send(topic, [{ partition: 1, value: 'later' }])
  assert.deepEqual(values(await consume(topic, 'resume', 1)), ['later'])
  const [offsets] = await admin.fetchOffsets({ groupId: `${adapter.name}-resume`, topics: [topic] })
  assert.equal(offsets.partitions.find(({ partition }) => partition === 1).offset, '6')
}

async function member (group, topic, options = {}) {
  const consumer = adapter.consumer({ groupId: `${adapter.name}-${group}`, ...options })
  adapter.watch(consumer)
  await consumer.connect()
  await adapter.subscribe(consumer, topic)
  await Promise.resolve(consumer.run({ eachMessage: async () => {} }))
  return consumer
}

const share = (wanted, ...members) =>
  eventually(`shares ${wanted}`, () => members.every((one, n) => adapter.assigned(one).length === wanted[n]))

async function groupShare () {
  const topic = await create('share', 4)
  const [one, two] = [await member('share', topic), await member('share', topic)]
  await share([2, 2], one, two)
  await two.disconnect()
  await share([4], one)
  await one.disconnect()
}

async function groupCrash () {
  const topic = await create('crash', 4)
  const other = spawn(process.execPath, [process.argv[1], bootstrap, 'member', 'crash', topic], { stdio: 'ignore' })
  process.on('exit', () => other.kill('SIGKILL'))
  const one = await member('crash', topic, { sessionTimeout: 6000 })
  await share([2], one)
  other.kill('SIGKILL')
  const killed = Date.now()
  await share([4], one)
  assert.ok(Date.now() - killed > 3000, 'its session had not ended yet')
  await one.disconnect()
}

async function groupCooperative () {
  const topic = await create('cooperative', 4)
  const one = await member('cooperative', topic, { cooperative: true })
  await share([4], one)
  const before = adapter.assigned(one)
  const two = await member('cooperative', topic, { cooperative: true })
  await share([2, 2], one, two)
  const kept = adapter.assigned(one)
  assert.ok(kept.every(partition => before.includes(partition)), `${kept} of ${before}`)
  await two.disconnect()
  await one.disconnect()
}

async function groupNewProtocol () {
  const topic = await create('shared-new', 4)
  await send(topic, numbered(8, 4))
  const [one, two] = [await member('new', topic, { modern: true }), await member('new', topic, { modern: true })]
  await share([2, 2], one, two)
  await two.disconnect()
  await share([4], one)
  await one.disconnect()
}

async function groupMigration () {
  const topic = await create('moved', 4)
  const one = await member('moved', topic)
  await share([4], one)
  const two = await member('moved', topic, { modern: true })
  await share([2, 2], one, two)
  await two.disconnect()
  await share([4], one)
  await one.disconnect()
}

async function commitAsync () {
  const topic = await create('async', 1)
  await send(topic, numbered(10, 1))
  const group = `${adapter.name}-async`
  const consumer = adapter.consumer({ groupId: group, autoCommit: false })
  await consumer.connect()
  await adapter.subscribe(consumer, topic)
  let seen = 0
  let committed
  await Promise.resolve(consumer.run({
    ...adapter.runManually,
    eachMessage: async ({ message }) => {
      // Nobody waits for it here: the next records come meanwhile.
      if (message.offset === '3') committed = consumer.commitOffsets([{ topic, partition: 0, offset: '4', metadata: 'note' }])
      seen++
    }
  }))
  await eventually('all', () => seen === 10)
  await committed
  const [found] = await admin.fetchOffsets({ groupId: group, topics: [topic] })
  assert.deepEqual([found.partitions[0].offset, found.partitions[0].metadata], ['4', 'note'])
  await consumer.disconnect()
}

async function seekPauseResume () {
  const topic = await create('seek', 2)
  await send(topic, numbered(20, 2))
  const consumer = adapter.consumer({ groupId: `${adapter.name}-seek` })
  await consumer.connect()
  await adapter.subscribe(consumer, topic)
  const got = []
  await Promise.resolve(consumer.run({ eachMessage: async ({ partition, message }) => { got.push({ partition, ...message }) } }))
  // What was read may come again: a group promises no more, and a slow broker has it join twice.
  await eventually(() => `20 records, ${got.length} came`, () => new Set(values(got)).size === 20)
  consumer.pause([{ topic, partitions: [1] }])
  got.length = 0
  consumer.seek({ topic, partition: 0, offset: '8' })
  await eventually(() => `two again, not ${values(got)}`, () => values(got).slice(-2).join() === '16,18')
  await send(topic, [{ partition: 1, value: 'later' }])
  await sleep(500)
  assert.ok(!values(got).includes('later'), 'one is paused')
  consumer.resume([{ topic, partitions: [1] }])
  await eventually('one is resumed', () => values(got).includes('later'))
  const found = await admin.fetchTopicOffsetsByTimestamp(topic, START_MS + 19)
  got.length = 0
  consumer.seek({ topic, partition: 1, offset: found.find(({ partition }) => partition === 1).offset })
  await eventually('the first at that time', () => values(got).includes('19'))
  await consumer.disconnect()
}

async function offsetsByTime () {
  const topic = await create('times', 1, { 'retention.ms': -1 })
  await send(topic, ['1000', '2000', '3000'].map(timestamp => ({ value: 'v', timestamp })))
  const [found] = await admin.fetchTopicOffsetsByTimestamp(topic, 1500)
  assert.equal(found.offset, '1')
  const [end] = await admin.fetchTopicOffsets(topic)
  assert.deepEqual([end.low, end.high], ['0', '3'])
}

async function deleteRecords () {
  const topic = await create('delete-records', 1)
  await send(topic, numbered(10, 1))
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '6' }] })
  assert.deepEqual(values(await consume(topic, 'delete-records', 4)), ['6', '7', '8', '9'])
}

async function createdAgain () {
  const topic = await create('again', 1)
  await send(topic, numbered(5, 1))
  await admin.deleteTopics({ topics: [topic] })
  await eventually('the name is free', () => create('again', 1).then(() => true, () => false))
  await send(topic, [{ value: 'new' }])
  const [got] = await consume(topic, 'again', 1)
  assert.deepEqual([got.offset, got.value.toString()], ['0', 'new'])
}

// The run stops and restarts the broker meanwhile; see outage() there.
async function outage () {
  const control = process.env.KURING_OUTAGE
  const topic = await create('outage', 1)
  const received = new Map()
  const consumer = adapter.consumer({ groupId: `${adapter.name}-outage`, patient: true })
  await consumer.connect()
  await adapter.subscribe(consumer, topic)
  await Promise.resolve(consumer.run({
    eachMessage: async ({ message }) => { received.set(Number(message.offset), message.value.toString()) }
  }))
  const producer = adapter.producer({ idempotent: true, maxInFlightRequests: 1, patient: true })
  await producer.connect()
  let sent = 0
  while (!fs.existsSync(path.join(control, 'stop'))) {
    await producer.send({ topic, messages: [{ value: `${sent++}` }] })
    if (sent === 1) fs.writeFileSync(path.join(control, `${process.env.KURING_CLIENT}.ready`), '')
    await sleep(5)
  }
  await producer.disconnect()
  await eventually('all is received', () => received.size === sent)
  await consumer.disconnect()
  const stored = await consume(topic, 'outage-stored', sent)
  assert.ok(sent > 500, `only ${sent} records were sent`)
  for (let n = 0; n < sent; n++) {
    assert.equal(received.get(n), `${n}`, `received at offset ${n}`)
    assert.equal(stored[n].value.toString(), `${n}`, `stored at offset ${n}`)
  }
}

exports.run = async function run (given) {
  adapter = given
  if (mode === 'member') return member(rest[0], rest[1], { sessionTimeout: 6000 })
  admin = adapter.kafka.admin()
  await admin.connect()
  if (mode === 'outage') {
    await scenario('outage', outage)
  } else {
    await scenario('admin', administer)
    for (const [name, compression] of Object.entries(adapter.codecs)) {
      await scenario(`codec-${name}`, () => roundTrip(name, compression))
    }
    await scenario('headers-and-nulls', headersAndNulls)
    await scenario('sizes', sizes)
    await scenario('too-large', tooLarge)
    await scenario('log-append-time', logAppendTime)
    await scenario('idempotent', idempotent)
    await scenario('transactions', transactions)
    await scenario('group-resume', groupResume)
    await scenario('group-share', groupShare)
    await scenario('group-crash', groupCrash)
    if (adapter.has.cooperative) await scenario('group-cooperative', groupCooperative)
    if (adapter.has.modern) {
      await scenario('group-new-protocol', groupNewProtocol)
      await scenario('group-migration', groupMigration)
    }
    await scenario('commit-async', commitAsync)
    await scenario('seek-pause-resume', seekPauseResume)
    await scenario('offsets-by-time', offsetsByTime)
    if (adapter.has.deleteRecords) await scenario('delete-records', deleteRecords)
    await scenario('topic-created-again', createdAgain)
  }
  process.exit(failed ? 1 : 0)
}

exports.bootstrap = bootstrap
exports.isOutage = mode === 'outage'
