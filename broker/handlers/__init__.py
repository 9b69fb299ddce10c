"""One file for each API, named after it: request in, response or Deferred out. Versions: ``protocol/messages``."""
