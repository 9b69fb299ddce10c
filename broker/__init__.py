"""The broker process: server, handlers, logs, group coordinator."""
