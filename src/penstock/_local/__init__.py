"""The embedded default: jars, Java, the Kafka broker, the demo."""
