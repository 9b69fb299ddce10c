"""The broker's link to the rest of the cluster: the controller, and the broker's znodes."""
