"""The local environment: jars, Java, the Kafka broker, a Spark cluster, the demo."""
