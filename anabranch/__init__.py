"""Anabranch: a message log that speaks the Kafka protocol."""
