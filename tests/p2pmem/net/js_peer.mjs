// A js-libp2p peer: dials the address it is given, echoes, gossips on the topic "open". Says what happens in lines of JSON.
import { noise } from '@chainsafe/libp2p-noise'
import { yamux } from '@chainsafe/libp2p-yamux'
import { gossipsub } from '@libp2p/gossipsub'
import { identify } from '@libp2p/identify'
import { tcp } from '@libp2p/tcp'
import { multiaddr } from '@multiformats/multiaddr'
import { createLibp2p } from 'libp2p'

const ECHO = '/echo/1'
const SIZE = 1_000_000
const say = (words) => console.log(JSON.stringify(words))

const node = await createLibp2p({
  addresses: { listen: ['/ip4/127.0.0.1/tcp/0'] },
  transports: [tcp()],
  connectionEncrypters: [noise()],
  streamMuxers: [yamux()],
  services: {
    identify: identify(),
    pubsub: gossipsub({ allowPublishToZeroTopicPeers: true, emitSelf: false })
  }
})

const send = async (stream, data) => {
  for (let at = 0; at < data.length; at += 32_768) {
    if (!stream.send(data.subarray(at, at + 32_768))) await stream.onDrain()
  }
}

await node.handle(ECHO, async (stream) => {
  for await (const chunk of stream) await send(stream, chunk.subarray())
  await stream.close()
})

node.services.pubsub.addEventListener('message', (event) => {
  say({ heard: new TextDecoder().decode(event.detail.data.subarray(0, 20)), size: event.detail.data.length })
})
node.services.pubsub.subscribe('open')
say({ address: node.getMultiaddrs()[0].toString() })

const stream = await (await node.dial(multiaddr(process.argv[2]))).newStream(ECHO)
const content = new Uint8Array(SIZE).map((_, index) => index % 251)
send(stream, content).then(() => stream.close())
let size = 0
let same = true
for await (const chunk of stream) {
  for (const byte of chunk.subarray()) same &&= byte === size++ % 251
}
say({ echoed: size, same })

setInterval(() => {
  node.services.pubsub.publish('open', new TextEncoder().encode('from js')).catch((error) => say({ error: error.message }))
}, 300)
process.stdin.on('end', () => process.exit(0))
process.stdin.resume()
