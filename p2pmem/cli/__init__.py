"""The command line.

    main       parse, run, and one line for every error
    command    what a command is; the parser from all of them
    session    from a home directory to the node that runs there
    output     text for people, JSON for programs
    words      durations, times, and the text of others made harmless
    views      values of `p2pmem.face` as text
    waiting    jobs, followed to their end
    logs       log lines of `p2pmem run`
    here       init, run, config                   graphs   context graphs and who is in them
    memory     from a draft to a verified version  reading  recall, query, and looking at what is there
    following  jobs                                checking certificates and proofs, without a node

What is heavy is imported where it is used: `p2pmem --help` loads neither trio nor anything of a node.
"""
