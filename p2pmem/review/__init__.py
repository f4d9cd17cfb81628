"""How a verifier comes to a verdict, once the bytes are held and agree with root and seal.

judging     what a judge is; the policy `auto`; which policy a node has
command     the policy `exec`: a command of the operator gets the content
shapes      the policy `shacl`: a shapes graph that is itself a knowledge asset
shacl_worker  the process that validates, within limits
"""
