"""From a user's file, in any RDF format, to canonical content.

    formats    which formats there are, and how one is recognised
    errors     what can be wrong with a file, each with its own type
    parsing    bytes in, content out: pure, and the only place where a parser sees a user's file
    wire       what passes between the node and its worker process
    worker     the process that parses, within limits that the kernel enforces
    importer   the asynchronous face: `Importer` with workers, `InlineImporter` without

Nothing is imported here: the worker starts in a tenth of a second because it loads no event loop.
"""
