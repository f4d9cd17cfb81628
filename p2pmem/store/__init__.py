"""The triple store: a projection of the ledger that answers SPARQL, and workers that run what users ask.

    placement      what the ledger tells: an asset's graph, its aggregate, its content
    content        canonical N-Quads to quads as the store holds them
    plan           from what is and what shall be to quads that leave and quads that come; no IO
    transaction    those quads as one SPARQL update
    projection     the store itself: one writer, one position
    query          limits, answers, errors and the first look at a query's text
    answering      runs a query over a restricted dataset, within row and byte limits
    query_process  the worker process: a read-only snapshot, no sockets
    confine        takes sockets and other programs from a process
    query_worker   the workers, and the snapshots they read

Nothing is imported here: the worker process must start fast and hold little.
"""
