// A member in JavaScript. Nothing of it comes from the Python packages: libp2p, CBOR (cborg), EIP-712 signatures
// (ethers) and Merkle trees (OpenZeppelin) are other people's, and the protocol is written down here from its
// specification.
//
// It dials a node, proves its agent in hello, checks the node's proof, joins the topic of an open graph, says what it
// is told to say, and checks whatever comes. Its one argument is JSON:
//     address, network, creator, slug      where to dial; the network's id; the graph
//     secret                               the key of its agent
//     name, content                        the asset to share, in canonical N-Quads
// What happens it says in lines of JSON; it ends with its standard input.
import { noise } from '@chainsafe/libp2p-noise'
import { yamux } from '@chainsafe/libp2p-yamux'
import { gossipsub } from '@libp2p/gossipsub'
import { identify } from '@libp2p/identify'
import { tcp } from '@libp2p/tcp'
import { multiaddr } from '@multiformats/multiaddr'
import { StandardMerkleTree } from '@openzeppelin/merkle-tree'
import { decode, encode } from 'cborg'
import { AbiCoder, Wallet, concat, getBytes, hexlify, keccak256, toUtf8Bytes, TypedDataEncoder, verifyTypedData } from 'ethers'
import { createLibp2p } from 'libp2p'

const given = JSON.parse(process.argv[2])
const say = (words) => console.log(JSON.stringify(words))
const wallet = new Wallet(given.secret)
const domain = { name: 'p2pmem', version: '1', salt: given.network }
const graph = keccak256(AbiCoder.defaultAbiCoder().encode(
  ['address', 'bytes32'], [given.creator, keccak256(toUtf8Bytes(given.slug))]))
const topic = '/p2pmem/open/2/' + keccak256(concat([toUtf8Bytes('p2pmem open graph'), graph])).slice(2)
const SHARE = 2
const DAY_MS = 86_400_000
const NOBODY = '0x' + '00'.repeat(32)

const struct = (text) => {
  const [name, fields] = text.slice(0, -1).split('(')
  return { [name]: fields.split(',').map((field) => { const [type, name] = field.split(' '); return { type, name } }) }
}
const SEAL = struct('Seal(bytes32 graph,string subgraph,string asset,uint32 version,bytes32 root,uint32 leaves,bytes32 previous,address author)')
const ENVELOPE = struct('Envelope(bytes32 graph,uint8 kind,address author,bytes32 delegation,uint32 roster,uint64 issuedAt,uint64 expiresAt,bytes body)')
const CARRY = struct('Carry(address agent,string peer,uint32 serial,uint64 until)')

// CBOR: maps with small unsigned keys, bytes as bytes
const map = (...values) => new Map(values.map((value, key) => [key, value]).filter(([, value]) => value !== undefined))
const read = (data) => decode(data, { useMaps: true, strict: true, rejectDuplicateMapKeys: true, allowIndefinite: false })

// Frames on a stream: the length as a varint, then so many bytes
const framed = (data) => {
  const length = []
  let rest = data.length
  for (; rest > 127; rest >>>= 7) length.push((rest & 127) | 128)
  return Uint8Array.from([...length, rest, ...data])
}
async function * frames (stream) {
  let held = new Uint8Array(0)
  for await (const chunk of stream) {
    held = Uint8Array.from([...held, ...chunk.subarray()])
    for (;;) {
      let length = 0
      let at = 0
      while (at < held.length && held[at] > 127) length |= (held[at] & 127) << (7 * at++)
      if (at >= held.length) break
      length |= held[at] << (7 * at)
      if (held.length < at + 1 + length) break
      yield held.slice(at + 1, at + 1 + length)
      held = held.slice(at + 1 + length)
    }
  }
}

// hello: greeting, greeting, our proof, their proof
const greeting = () => encode(map(getBytes(given.network), 2, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 1 << 17, 1 << 24, Date.now()))
async function hello (stream, us, them) {
  const said = frames(stream)
  stream.send(framed(greeting()))
  const theirs = read((await said.next()).value)
  if (hexlify(theirs.get(0)) !== given.network || theirs.get(1) !== 2) throw new Error('another network or version')
  const carry = { agent: wallet.address, peer: us, serial: 1, until: Date.now() + 30 * DAY_MS }
  const signature = getBytes(await wallet.signTypedData(domain, CARRY, carry))
  stream.send(framed(encode(map([map(getBytes(carry.agent), carry.serial, carry.until, signature)], []))))
  const { done, value } = await said.next()
  if (done) throw new Error('not welcome')
  const agents = read(value).get(0).map((shown) => {
    const claimed = { agent: hexlify(shown.get(0)), peer: them, serial: shown.get(1), until: shown.get(2) }
    const signer = verifyTypedData(domain, CARRY, claimed, hexlify(shown.get(3)))
    if (signer.toLowerCase() !== claimed.agent || claimed.until <= Date.now()) throw new Error('a bad credential')
    return claimed.agent
  })
  say({ hello: agents })
  for await (const frame of said) say({ frame: frame.length })
}

// Content: the root of OpenZeppelin's tree over the hashes of the lines
const rootOf = (content) => {
  const lines = new TextDecoder().decode(content).split(/(?<=\n)/)
  return { root: StandardMerkleTree.of(lines.map((line) => [keccak256(toUtf8Bytes(line))]), ['bytes32']).root, leaves: lines.length }
}

async function share (name, content) {
  const { root, leaves } = rootOf(content)
  const author = wallet.address
  const seal = { graph, subgraph: '', asset: name, version: 1, root, leaves, previous: NOBODY, author }
  const sealed = getBytes(await wallet.signTypedData(domain, SEAL, seal))
  const body = encode(map(map('', name, 1, getBytes(root), leaves, getBytes(NOBODY), sealed), content))
  const issuedAt = Date.now()
  const envelope = {
    graph, kind: SHARE, author, delegation: NOBODY, roster: 1, issuedAt, expiresAt: issuedAt + DAY_MS, body: hexlify(body)
  }
  const signature = getBytes(await wallet.signTypedData(domain, ENVELOPE, envelope))
  const data = encode(map(1, getBytes(given.network), getBytes(graph), SHARE, getBytes(author), undefined, 1, issuedAt,
    envelope.expiresAt, body, signature))
  return { id: TypedDataEncoder.hash(domain, ENVELOPE, envelope), data }
}

// What came: recomputed, not believed
function check (data) {
  const it = read(data)
  if (it.get(3) !== SHARE) return { kind: it.get(3) }
  const author = hexlify(it.get(4))
  const envelope = {
    graph: hexlify(it.get(2)), kind: SHARE, author, delegation: NOBODY, roster: it.get(6), issuedAt: it.get(7),
    expiresAt: it.get(8), body: hexlify(it.get(9))
  }
  const body = read(it.get(9))
  const claimed = body.get(0)
  const content = body.get(1)
  const seal = {
    graph: envelope.graph, subgraph: claimed.get(0), asset: claimed.get(1), version: claimed.get(2),
    root: hexlify(claimed.get(3)), leaves: claimed.get(4), previous: hexlify(claimed.get(5)), author
  }
  const own = rootOf(content)
  return {
    kind: SHARE,
    id: TypedDataEncoder.hash(domain, ENVELOPE, envelope),
    author,
    name: seal.asset,
    root: seal.root,
    content: new TextDecoder().decode(content),
    good: hexlify(it.get(1)) === given.network && envelope.graph === graph &&
      verifyTypedData(domain, ENVELOPE, envelope, hexlify(it.get(10))).toLowerCase() === author &&
      verifyTypedData(domain, SEAL, seal, hexlify(claimed.get(6))).toLowerCase() === author &&
      own.root === seal.root && own.leaves === seal.leaves &&
      hexlify(encode(it)) === hexlify(data)
  }
}

const node = await createLibp2p({
  addresses: { listen: ['/ip4/127.0.0.1/tcp/0'] },
  transports: [tcp()],
  connectionEncrypters: [noise()],
  streamMuxers: [yamux()],
  services: { identify: identify(), pubsub: gossipsub({ allowPublishToZeroTopicPeers: true, emitSelf: false }) }
})
const { pubsub } = node.services
pubsub.addEventListener('message', ({ detail }) => {
  if (detail.topic === topic) say({ heard: check(detail.data) })
})
pubsub.subscribe(topic)

process.stdin.on('end', () => process.exit(0))
process.stdin.resume()

const connection = await node.dial(multiaddr(given.address))
const stream = await connection.newStream('/p2pmem/member/2')
hello(stream, node.peerId.toString(), connection.remotePeer.toString()).catch((error) => say({ error: error.message }))

const timer = setInterval(async () => {
  if (pubsub.getSubscribers(topic).length === 0) return
  clearInterval(timer)
  const { id, data } = await share(given.name, toUtf8Bytes(given.content))
  await pubsub.publish(topic, data)
  say({ shared: id, size: data.length })
}, 100)
