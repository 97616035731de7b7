"""What belongs to Databricks projects: bundles, notebooks, `dbutils`, magics and stand-ins."""
