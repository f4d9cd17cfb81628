// js-libp2p wants Node.js 22; this is all that Node.js 20 lacks of it.
Promise.withResolvers ??= function () {
  let resolve, reject
  const promise = new Promise((yes, no) => { resolve = yes; reject = no })
  return { promise, resolve, reject }
}
