"""Membership of a consumer group."""
