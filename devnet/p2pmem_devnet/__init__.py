"""Many p2pmem nodes on one machine: in-process clusters, process fleets, a chain, faults."""
