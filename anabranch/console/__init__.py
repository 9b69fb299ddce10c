"""A web page of a cluster: its problems, the moves of keys, and the waits of consumers. It does not run in a broker."""
