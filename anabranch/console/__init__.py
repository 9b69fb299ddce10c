"""A web page of a cluster: what is wrong, how keys move, who waits for whom. Brokers carry none of it."""
