"""The group coordinator: classic groups over __consumer_offsets."""
