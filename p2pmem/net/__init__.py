"""How nodes reach each other: one seam, and two ways to fill it.

* `seam`: what every other part of the node sees of a network. Nothing but this is imported above.
* `framing`: length-prefixed frames over any stream of the seam.
* `memory`: a network inside one process, with faults from a seed and trio's clock.
* `libp2p_host`: the real one, on py-libp2p. Importing it costs a second and 75 MB, so only the composition root does.
"""
