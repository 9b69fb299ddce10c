"""A web page of a cluster: its problems, the moves of keys, and the waits of consumers. Brokers have no part of it."""
