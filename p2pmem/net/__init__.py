"""How nodes reach each other: one seam, and two ways to fill it.

* `seam`: what every other part of the node sees of a network. Nothing but this is imported above.
* `framing`: length-prefixed frames over any stream of the seam.
* `memory`: a network inside one process, with faults from a seed and trio's clock.
* `libp2p_host`: the real one. Importing it imports py-libp2p, a second and 75 MB, so only the composition root does.
* `topics` and `gossipsub`: publish and subscribe in open groups, over either network; `gossipsub` imports py-libp2p.

README.md says how a socket becomes a stream, and what is py-libp2p's and what is ours.
"""
