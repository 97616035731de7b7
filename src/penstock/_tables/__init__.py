"""Who touches Delta: storage layout, exactly-once writer, quarantine."""
