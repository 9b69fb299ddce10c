"""The requests that brokers forward to the controller for clients, or send to it themselves: one module per request."""
