"""The main job on a local cluster: real events through real processes, checked in the consumers and on disk."""
