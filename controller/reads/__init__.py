"""Reads the facts that decisions need from ZooKeeper, and sets watches. It neither writes nor changes the image."""
