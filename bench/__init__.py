"""Side-by-side benchmarks: the same clients against Anabranch and, where Maven is present, Kafka."""
