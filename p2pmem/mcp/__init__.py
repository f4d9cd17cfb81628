"""The Model Context Protocol: what a language model may ask of a node, and in which words it is answered.

* `answers`: small values for a model, made of those of the face.
* `tools`: the tools, over a `Face`.
* `server`: the official SDK's server with these tools, on standard input and output.

The SDK comes with the extra `p2pmem[mcp]` and is loaded by `server` alone.
"""
