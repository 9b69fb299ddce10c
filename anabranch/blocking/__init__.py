"""The classes of ``anabranch.sync``: an async client, its event loop in a thread, and the calls between threads."""
