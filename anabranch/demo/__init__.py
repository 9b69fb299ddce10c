"""The demo: real events through real processes on a local cluster, checked in the consumers and on disk."""
