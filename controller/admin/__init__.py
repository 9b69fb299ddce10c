"""What clients may ask of the controller: one file per request, forwarded by brokers."""
