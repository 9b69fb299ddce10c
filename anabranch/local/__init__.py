"""A whole cluster of real processes on one machine, from the embedded ZooKeeper up."""
