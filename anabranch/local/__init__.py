"""A cluster of real processes on one machine, with an embedded ZooKeeper."""
