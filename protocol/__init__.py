"""The Kafka wire protocol: pure code, no sockets, files, clocks or threads."""
