"""Access to Delta tables: storage layout, exactly-once writers, readers, quarantine."""
