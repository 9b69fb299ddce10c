// One operation of kafkajs against a cluster.
//
//   node main.js produce BOOTSTRAP TOPIC CODEC   "key\tvalue" lines from standard input, acks=all
//   node main.js consume BOOTSTRAP TOPIC COUNT   "partition\tkey\tvalue" lines, from the start
//   node main.js member  BOOTSTRAP TOPIC GROUP   JSON lines: {"assigned": [..]} and {"p":, "o":, "v":}; SIGTERM leaves
const { readFileSync } = require('node:fs')
const { CompressionTypes, Kafka, Partitioners, logLevel } = require('kafkajs')

const CODECS = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP }
const [operation, bootstrap, topic, argument] = process.argv.slice(2)
const kafka = new Kafka({ clientId: 'kafkajs', brokers: bootstrap.split(','), logLevel: logLevel.ERROR })

function items() {
  const lines = readFileSync(0, 'utf8').split('\n').filter((line) => line !== '')
  return lines.map((line) => {
    const tab = line.indexOf('\t')
    return { key: line.slice(0, tab), value: line.slice(tab + 1) }
  })
}

async function produce() {
  const producer = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner, idempotent: true })
  await producer.connect()
  await producer.send({ topic, acks: -1, compression: CODECS[argument], messages: items() })
  await producer.disconnect()
}

// kafkajs reads through a group only: one that nobody else uses.
async function consume() {
  const consumer = kafka.consumer({ groupId: `reader-${topic}-${process.pid}`, maxWaitTimeInMs: 100 })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  let left = Number(argument)
  await new Promise((done) =>
    consumer.run({
      eachMessage: async ({ partition, message }) => {
        process.stdout.write(`${partition}\t${message.key}\t${message.value}\n`)
        if (--left === 0) done()
      }
    })
  )
  await consumer.disconnect()
}

async function member() {
  const say = (fields) => process.stdout.write(`${JSON.stringify(fields)}\n`)
  const consumer = kafka.consumer({
    groupId: argument,
    sessionTimeout: 6000,
    heartbeatInterval: 500,
    maxWaitTimeInMs: 100
  })
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) =>
    say({ assigned: (payload.memberAssignment[topic] ?? []).sort((a, b) => a - b) })
  )
  process.on('SIGTERM', () => consumer.disconnect())
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await consumer.run({
    autoCommitInterval: 200,
    eachMessage: async ({ partition, message }) =>
      say({ p: partition, o: Number(message.offset), v: message.value.toString() })
  })
}

;({ produce, consume, member })[operation]().catch((error) => {
  console.error(error)
  process.exitCode = 1
})
