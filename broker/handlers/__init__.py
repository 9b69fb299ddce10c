"""One file per API family: request in, response or Deferred out."""
