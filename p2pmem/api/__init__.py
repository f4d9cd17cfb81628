"""The HTTP interface of a node, and its client.

    routes     the table of all calls: verb, path, where each argument goes
    codec      values of `p2pmem.face` to JSON and back
    problems   errors to codes, HTTP statuses and exit codes, and back
    events     server-sent events, to and from bytes
    guard      who may ask at all: host, origin, token
    requests   a request's bytes to the arguments of a call, within limits
    endpoints  what answers each kind of call
    server     the application, and its life in a nursery
    streaming  a request whose answer comes bit by bit
    client     the same `Face`, over HTTP

Nothing is imported here: the command line starts fast because it loads no more than it uses.
"""
