"""The world of tests: the Protocols of ``anabranch.runtime.env`` in one event loop, in virtual time."""
