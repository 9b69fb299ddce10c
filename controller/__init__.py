"""The controller process: election, cluster image, partition and replica state machines."""
